"""Reductions over the replicas of all instances: values, rows of tables, variables and optimizers.

Two instances, of one or two local replicas. The other instance is `Peers`, a stand-in for Horovod:
each of its replicas hands in ten times what this instance's replica of the same place does.
"""

import numpy as np
import pytest
import tensorflow as tf

from popdist_tf.errors import StrategyError
from popdist_tf.ipu.optimizers.cross_replica_optimizer import apply_cross_replica_op
from popdist_tf.keras.wrapped_optimizers import MapGradientOptimizer
from popdist_tf.strategies.extended import device_code
from popdist_tf.versions import keras_is_3
from tests.popdist_tf.strategies.job import Job, replica_number, run

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
NEITHER = "sum or mean, please"


@pytest.fixture(params=[1, 2], ids=["one replica", "two replicas"])
def replicas(request):
    return request.param


@pytest.fixture(params=[0, 1], ids=["first instance", "second instance"])
def strategy(replicas, request):
    return Job(replicas, request.param)


def own_sum(replicas):
    return sum(range(1, replicas + 1))


# Values.


@pytest.mark.parametrize("eagerly", [True, False])
@pytest.mark.parametrize("op", [SUM, MEAN])
def test_values_of_replicas(strategy, replicas, op, eagerly):
    def replica():
        context = tf.distribute.get_replica_context()
        return context.all_reduce(op, replica_number() * tf.constant([1.0, 2.0]))

    share = 1 if op == SUM else 2 * replicas
    expected = 11 * own_sum(replicas) * np.array([1.0, 2.0]) / share
    answers = run(strategy, replica, eagerly=eagerly)
    assert len(answers) == replicas
    for answer in answers:
        np.testing.assert_array_equal(answer, expected)


def test_gradients_are_averaged_as_pairs(strategy, replicas, monkeypatch):
    monkeypatch.setattr("popdist_tf.loops.replicas.PopDistStrategy", Job)

    def replica():
        value = replica_number() * tf.constant([1.0, 2.0])
        (first, name), (nothing, _) = apply_cross_replica_op([(value, "x"), (None, "y")])
        assert (name, nothing) == ("x", None)
        return first

    expected = 11 * own_sum(replicas) * np.array([1.0, 2.0]) / (2 * replicas)
    for answer in run(strategy, replica, eagerly=False):
        np.testing.assert_array_equal(answer, expected)


@pytest.mark.parametrize("op", [SUM, MEAN])
def test_rows_of_tables_are_reduced_as_the_tables_would_be(strategy, replicas, op):
    def replica():
        number = replica_number()
        place = tf.cast(number, tf.int32)
        rows = tf.IndexedSlices(
            tf.stack([number * tf.constant([1.0, 2.0]), tf.constant([5.0, 5.0])]),
            tf.stack([place, 0]),
            tf.constant([3, 2]),
        )
        answer = tf.distribute.get_replica_context().all_reduce(op, rows)
        assert isinstance(answer, tf.IndexedSlices)
        return tf.convert_to_tensor(answer)

    expected = np.zeros((3, 2))
    for number in range(1, replicas + 1):
        expected[number] += 11 * number * np.array([1.0, 2.0])
        expected[0] += 11 * 5
    for answer in run(strategy, replica):
        np.testing.assert_allclose(answer, expected / (1 if op == SUM else 2 * replicas))


@pytest.mark.parametrize("op", [SUM, MEAN])
@pytest.mark.parametrize("shape", [None, [3, 2]])
def test_rows_that_all_replicas_share_count_for_each_of_them(strategy, replicas, op, shape):
    # TensorFlow hands over one object, not one for each replica.
    dense = None if shape is None else tf.constant(shape)
    rows = tf.IndexedSlices(tf.constant([[1.0, 2.0]]), tf.constant([1]), dense)

    def replica():
        answer = tf.distribute.get_replica_context().all_reduce(op, rows)
        assert isinstance(answer, tf.IndexedSlices)
        return tf.math.unsorted_segment_sum(answer.values, answer.indices, 3)

    expected = np.zeros((3, 2))
    expected[1] = 11 * np.array([1.0, 2.0]) * (replicas if op == SUM else 0.5)
    for answer in run(strategy, replica):
        np.testing.assert_array_equal(answer, expected)


def test_a_plain_tensor_counts_once_for_each_replica_in_device_code_alone(strategy, replicas):
    def reduced(op):
        return float(strategy.reduce(op, tf.constant(1.0), axis=None))

    assert (reduced(SUM), reduced(MEAN)) == (11, 5.5)
    with device_code():
        assert (reduced(SUM), reduced(MEAN)) == (11 * replicas, 5.5)


def test_whole_structures_are_reduced(strategy):
    answer = strategy.reduce(SUM, {"a": tf.constant(1.0), "b": [tf.constant([2])]}, axis=None)
    assert tf.nest.map_structure(lambda one: one.numpy().tolist(), answer) == {"a": 11, "b": [[22]]}


def test_an_axis_is_reduced_with_the_replicas(strategy, replicas):
    values = strategy.run(lambda: replica_number() * tf.constant([1.0, 3.0]))
    assert float(strategy.reduce(SUM, values, axis=0)) == 44 * own_sum(replicas)
    # The elements are counted too, and the stand-in multiplies that number, which is whole, by 11.
    mean = 44 * own_sum(replicas) / (11 * 2 * replicas)
    assert float(strategy.reduce(MEAN, values, axis=0)) == pytest.approx(mean)


def test_a_reduction_that_is_neither_is_refused(strategy):
    extended = strategy.extended
    for reduce in (
        lambda: extended._reduce_to(NEITHER, tf.constant(1.0), "CPU:0", None),
        lambda: extended._host_ops.reduce_over_instances(NEITHER, tf.constant(1.0)),
    ):
        with pytest.raises(StrategyError, match="reduction over replicas") as caught:
            reduce()
        assert (caught.value.code, caught.value.hint) == ("PD412", None)
        assert caught.value.value == NEITHER


def test_reductions_in_device_code_can_be_left_out_but_not_those_asked_for(replicas):
    strategy = Job(replicas, reduce_on_device=False)

    def replica():
        def merged(current, value):
            kept = current.extended.reduce_to(SUM, value, value)
            return kept, current.extended.reduce_over_replicas(SUM, value)

        context = tf.distribute.get_replica_context()
        return tf.stack(context.merge_call(merged, args=(replica_number(),)))

    for number, answer in enumerate(run(strategy, replica), 1):
        assert answer.numpy().tolist() == [number, 11 * own_sum(replicas)]
    assert float(strategy.reduce(SUM, tf.constant(1.0), axis=None)) == 11


# Gathering.


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_values_are_gathered_in_the_order_of_replicas(strategy, replicas, axis):
    def replica():
        return replica_number() * tf.constant([[1.0, 2.0]])

    own = [number * np.array([[1.0, 2.0]]) for number in range(1, replicas + 1)]
    peers = strategy.peers.factors
    expected = np.concatenate([factor * one for factor in peers for one in own], axis)
    gathered = strategy.gather(strategy.run(replica), axis)
    np.testing.assert_array_equal(gathered, expected)

    def all_gathered():
        return tf.distribute.get_replica_context().all_gather(replica(), axis)

    for answer in run(strategy, all_gathered):
        np.testing.assert_array_equal(answer, expected)


def test_a_plain_tensor_is_gathered_once_for_each_replica_in_device_code_alone(strategy, replicas):
    own = tf.constant([1])
    assert strategy.gather(own, 0).numpy().tolist() == [1, 1]
    with device_code():
        assert strategy.gather(own, 0).numpy().tolist() == [1] * 2 * replicas


def test_scalars_cannot_be_gathered(strategy):
    with pytest.raises(StrategyError, match="scalars cannot be gathered") as caught:
        strategy.extended._host_ops.gather_over_instances(tf.constant(1.0), 0)
    assert (caught.value.code, caught.value.hint) == ("PD412", "tf.expand_dims(value, 0) first")


def test_gradients_pass_through_reductions_and_gathers_of_replicas(strategy, replicas):
    def replica():
        own = replica_number() * tf.constant([1.0, 2.0])
        context = tf.distribute.get_replica_context()
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(own)
            total = tf.reduce_sum(context.all_reduce(SUM, own) * tf.constant([3.0, 4.0]))
            rows = tf.reduce_sum(context.all_gather(own, 0))
        return tf.stack([tape.gradient(total, own), tape.gradient(rows, own)])

    for answer in run(strategy, replica):
        expected = 11 * replicas * np.array([[3.0, 4.0], [1.0, 1.0]])
        np.testing.assert_array_equal(answer, expected)


# Optimizers, whose peers have the same gradients: factor 1.

START = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)


def trained(strategy, optimizer_class, options, loss_of):
    """The weights of each local replica after one step."""
    with strategy.scope():
        table = tf.Variable(START)
        optimizer = optimizer_class(**options)

    def replica():
        with tf.GradientTape() as tape:
            loss = loss_of(table)
        optimizer.apply_gradients(zip(tape.gradient(loss, [table]), [table], strict=True))

    run(strategy, replica)
    return [value.numpy() for value in table.values]


def dense_loss(table):
    return replica_number() * tf.reduce_sum(table * table) / 2


def sparse_loss(table):
    # Rows 0 and 0, or 0 and 1: of one step, some meet within a replica and some between replicas.
    rows = tf.gather(table, tf.stack([0, tf.cast(replica_number(), tf.int32) - 1]))
    return tf.reduce_sum(rows)


def total_gradient(loss, replicas):
    """The sum over the replicas of both instances, in the form that one process would have."""
    if loss is dense_loss:
        return tf.constant(2 * own_sum(replicas) * START)
    rows = [row for replica in range(replicas) for row in (0, replica)] * 2
    return tf.IndexedSlices(tf.ones([len(rows), 2]), tf.constant(rows), tf.constant([3, 2]))


def trained_alone(optimizer, gradients_and_starts):
    """What plain TensorFlow makes of the gradients; Keras clips rows before it adds equal ones."""
    held = [(gradient, tf.Variable(start)) for gradient, start in gradients_and_starts]
    optimizer.apply_gradients(held)
    return [variable.numpy() for _, variable in held]


@pytest.mark.parametrize("loss", [dense_loss, sparse_loss])
@pytest.mark.parametrize("clip", ["clipvalue", "clipnorm", "global_clipnorm"])
def test_gradients_are_clipped_after_they_are_summed(replicas, loss, clip):
    options = {"learning_rate": 0.5, clip: 1.5}
    gradient = total_gradient(loss, replicas)
    (expected,) = trained_alone(tf.keras.optimizers.SGD(**options), [(gradient, START)])
    strategy = Job(replicas, factor=1)
    for weights in trained(strategy, tf.keras.optimizers.SGD, options, loss):
        np.testing.assert_allclose(weights, expected, rtol=1e-6)


def test_a_clipped_sum_of_dense_gradients_has_the_norm_that_it_may_have(replicas):
    options = {"learning_rate": 1.0, "global_clipnorm": 1.5}
    for weights in trained(Job(replicas), tf.keras.optimizers.SGD, options, dense_loss):
        expected = START - 1.5 * START / np.linalg.norm(START)
        np.testing.assert_allclose(weights, expected, rtol=1e-6)


def test_the_global_norm_is_that_of_all_sums(replicas):
    strategy = Job(replicas, factor=1)
    start = np.array([3.0, 0.0], np.float32)
    with strategy.scope():
        dense, table = tf.Variable(start), tf.Variable(START)
        optimizer = tf.keras.optimizers.SGD(1.0, global_clipnorm=1.0)

    def replica():
        with tf.GradientTape() as tape:
            loss = replica_number() * tf.reduce_sum(dense * [3.0, 4.0]) + sparse_loss(table)
        both = [dense, table]
        optimizer.apply_gradients(zip(tape.gradient(loss, both), both, strict=True))

    run(strategy, replica)
    first = 2 * own_sum(replicas) * tf.constant([3.0, 4.0])
    second = total_gradient(sparse_loss, replicas)
    expected = trained_alone(
        tf.keras.optimizers.SGD(1.0, global_clipnorm=1.0), [(first, start), (second, START)]
    )
    for variable, weights in zip((dense, table), expected, strict=True):
        for value in variable.values:
            np.testing.assert_allclose(value, weights, rtol=1e-6)


@pytest.mark.parametrize("loss", [dense_loss, sparse_loss])
def test_a_second_moment_is_that_of_the_sum(replicas, loss):
    options = {"learning_rate": 0.1, "initial_accumulator_value": 0.5, "epsilon": 1e-7}
    total = total_gradient(loss, replicas)
    gradient = tf.convert_to_tensor(total).numpy()
    expected = START - 0.1 * gradient / np.sqrt(0.5 + gradient**2 + 1e-7)
    if keras_is_3() and loss is sparse_loss:
        # Keras 3 does not add equal rows before it squares them, in one process neither.
        (expected,) = trained_alone(tf.keras.optimizers.Adagrad(**options), [(total, START)])
    for weights in trained(Job(replicas, factor=1), tf.keras.optimizers.Adagrad, options, loss):
        np.testing.assert_allclose(weights, expected, rtol=1e-5)


def test_a_gradient_that_is_not_finite_on_one_replica_updates_none():
    strategy = Job(2, factor=1)
    with strategy.scope():
        table = tf.Variable(START)
        optimizer = tf.keras.mixed_precision.LossScaleOptimizer(
            tf.keras.optimizers.SGD(0.1), initial_scale=4.0
        )
        if keras_is_3():
            optimizer.build([table])

    def replica(bad):
        factor = tf.where(bad & (replica_number() == 2), float("inf"), 1.0)
        with tf.GradientTape() as tape:
            loss = dense_loss(table) * factor
            scaled = (optimizer.scale_loss if keras_is_3() else optimizer.get_scaled_loss)(loss)
        gradients = tape.gradient(scaled, [table])
        if not keras_is_3():
            gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, [table], strict=True))

    step = tf.function(lambda bad: strategy.run(replica, args=(bad,)))
    for bad, expected, scale in ((True, START, 2.0), (False, START * (1 - 0.1 * 6), 2.0)):
        step(tf.constant(bad))
        for value in table.values:
            np.testing.assert_allclose(value, expected, rtol=1e-6)
        held = optimizer.dynamic_scale if keras_is_3() else optimizer.loss_scale
        assert float(tf.convert_to_tensor(held)) == scale


def test_a_mapped_gradient_is_the_sum_before_it_is_clipped(replicas):
    def make(**options):
        optimizer = tf.keras.optimizers.SGD(**options)
        return MapGradientOptimizer(optimizer, lambda gradient, _: 2 * gradient)

    options = {"learning_rate": 0.5, "clipvalue": 30.0}
    expected = START - 0.5 * np.minimum(2 * 2 * own_sum(replicas) * START, 30)
    for weights in trained(Job(replicas, factor=1), make, options, dense_loss):
        np.testing.assert_allclose(weights, expected, rtol=1e-6)
