"""Loops, compiled functions and norms in graphs; expectations come from numpy and torch."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import torch
from tensorflow.python.autograph.impl import api as autograph
from tensorflow.python.eager import context

from popdist_tf import ipu
from tests.popdist_tf.strategies.job import Job, replica_number

v1 = tf.compat.v1


def run(build):
    """What a session returns of a function that builds a graph."""
    with tf.Graph().as_default(), v1.Session() as session:
        built = build()
        session.run(v1.global_variables_initializer())
        return session.run(built)


def test_a_body_takes_the_values_that_it_has_returned():
    first, second = run(lambda: ipu.loops.repeat(4, lambda a, b: (a + b, a), [1, 1]))
    assert (first, second) == (8, 5)  # Fibonacci
    assert run(lambda: ipu.loops.repeat(3, lambda a: a * 2, 1.5)) == 12


def test_a_loop_ends_with_its_condition_or_its_limit():
    def doubled(limit):
        return lambda: ipu.loops.while_loop(
            lambda a: a < 100, lambda a: a * 2, [1], maximum_iterations=limit
        )

    assert run(doubled(None)) == 128
    assert run(doubled(3)) == 8


@pytest.mark.parametrize("count", [1, 3])
def test_what_goes_in_must_come_out(count):
    with (
        tf.Graph().as_default(),
        pytest.raises(ValueError, match=f"takes 2 values and returned {count}"),
    ):
        ipu.loops.repeat(2, lambda *_: (tf.constant(0),) * count, [1, 2])


def test_operations_run_in_each_iteration_and_without_values():
    def build():
        count = v1.get_variable("count", [], initializer=tf.zeros_initializer(), use_resource=True)
        loop = ipu.loops.repeat(5, lambda: count.assign_add(2.0).op)
        assert isinstance(loop, tf.Operation)
        with tf.control_dependencies([loop]):
            return count.read_value()

    assert run(build) == 10


@pytest.mark.parametrize(
    ("element", "body"),
    [
        (np.arange(3.0), lambda total, x: total + x),
        ((np.arange(3.0), np.ones(3)), lambda total, x, y: total + x * y),
        ({"x": np.arange(3.0)}, lambda total, x: total + x),
    ],
)
def test_elements_of_a_queue_are_arguments(element, body):
    with tf.Graph().as_default(), v1.Session() as session:
        queue = ipu.ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(element))
        total = ipu.loops.repeat(3, body, [tf.constant(0.0, tf.float64)], queue)
        session.run(queue.initializer)
        assert session.run(total) == 3


@pytest.mark.parametrize("replicas", [1, 2])
def test_replicas_loop_together_and_each_takes_its_own_element(replicas):
    """Sums over replicas in a loop: the other instance hands in ten times the same values."""
    with tf.Graph().as_default(), v1.Session() as session:
        strategy = Job(replicas)
        elements = np.arange(1.0, 1 + 3 * replicas, dtype=np.float32)
        data = tf.data.Dataset.from_tensor_slices(elements)
        queue = ipu.ipu_infeed_queue.IPUInfeedQueue(data)

        def body(own, total, x):
            summed = tf.distribute.get_replica_context().merge_call(
                lambda where, value: where.extended.reduce_over_replicas(
                    tf.distribute.ReduceOp.SUM, value
                ),
                args=(x,),
            )
            return own + x * replica_number(), total + summed

        looped = strategy.run(lambda: ipu.loops.repeat(3, body, [0.0, 0.0], queue))
        session.run(queue.initializer)
        own, total = session.run([strategy.experimental_local_results(one) for one in looped])
    taken = elements.reshape(3, replicas)
    np.testing.assert_allclose(own, taken.sum(0) * np.arange(1, replicas + 1))
    np.testing.assert_allclose(total, [11 * taken.sum()] * replicas)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_session_runs_what_a_strategy_returns_of_a_loop_without_values(replicas):
    with tf.Graph().as_default(), v1.Session() as session:
        strategy = Job(replicas)
        elements = np.arange(3.0 * replicas)
        queue = ipu.ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(elements))
        outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
        loop = strategy.run(lambda: ipu.loops.repeat(3, outfeed.enqueue, [], queue))
        session.run(queue.initializer)
        session.run(loop)
        np.testing.assert_array_equal(session.run(outfeed.dequeue()).ravel(), elements)


def test_a_compiled_function_returns_lists_and_runs_its_operations():
    def build(outputs):
        def built():
            count = v1.get_variable("n", [], initializer=tf.zeros_initializer(), use_resource=True)
            held = ipu.ipu_compiler.compile(lambda x: outputs(x, count.assign_add(1.0).op), [3.0])
            if outputs(1, 2) == 2:  # an operation alone
                assert isinstance(held, tf.Operation)
                held = [held]
            assert isinstance(held, list)
            with tf.control_dependencies(held):
                return [one for one in held if isinstance(one, tf.Tensor)], count.read_value()

        return built

    assert run(build(lambda _, op: op)) == ([], 1)
    assert run(build(lambda x, op: (x + 1, op))) == ([4], 1)
    assert run(build(lambda x, op: [x, x * 2, op, None])) == ([3, 6], 1)
    with pytest.raises(TypeError, match="a list of inputs"):
        ipu.ipu_compiler.compile(lambda x: x, 3.0)


class EstimatorSpec(NamedTuple):
    loss: Any


def test_a_compiled_function_computes_gradients_before_its_update():
    """With variables as TensorFlow 1 has them by default, whose buffer an update may change."""
    x, w = np.array([[1.0, 2.0]], np.float32), np.zeros((2, 1), np.float32)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        scope = tf.compat.v1.get_variable_scope()
        scope.set_use_resource(False)
        inputs = tf.constant(x)

        def step(given):
            weights = tf.compat.v1.get_variable("w", [2, 1], initializer=tf.zeros_initializer())
            assert hasattr(weights, "handle")
            loss = tf.reduce_sum((given @ weights - 1) ** 2)
            update = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
            return loss, tf.gradients(loss, given)[0], update

        compiled = ipu.ipu_compiler.compile(step, [inputs])
        assert not scope.use_resource
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(20):
            error = x @ w - 1
            loss, gradient = session.run(compiled)
            np.testing.assert_allclose(loss, (error**2).sum(), rtol=1e-5, atol=1e-9)
            np.testing.assert_allclose(gradient, 2 * error @ w.T, rtol=1e-5, atol=1e-6)
            w = w - 0.1 * 2 * x.T @ error


def test_a_compiled_function_keeps_nested_results():
    def pairs(x):
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        return {"y": x * 2}, optimizer.compute_gradients(x**2, x)

    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [3])
        found = ipu.ipu_compiler.compile(pairs, [x])
        assert isinstance(found, tuple)
        outputs, ((gradient, variable),) = session.run(found, {x: [1.0, 2.0, 3.0]})
        assert outputs["y"].tolist() == [2, 4, 6]
        assert gradient.tolist() == [2, 4, 6]
        assert variable.tolist() == [1, 2, 3]
        spec = EstimatorSpec(x)
        with pytest.raises(ValueError, match="contains an EstimatorSpec"):
            ipu.ipu_compiler.compile(lambda: [2, [], [spec]])
        with pytest.raises(ValueError, match="does not support Operation as return value"):
            ipu.ipu_compiler.compile(lambda: [tf.constant(1.0), [tf.no_op()]])


@pytest.mark.parametrize("version2", [False, True])
@pytest.mark.parametrize("values", [[], [1.0]])
def test_a_compiled_function_runs_loops_that_it_does_not_return(values, version2):
    rows = np.arange(4, dtype=np.float32)
    expected, weight = [], 1.0
    for row in rows:
        expected.append(weight * row)
        weight -= 0.1 * row
    was_version2 = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if version2 else v1.disable_control_flow_v2)()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(v1.data.Dataset.from_tensor_slices(rows))
            outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
            variable = v1.get_variable("weight", [], initializer=v1.ones_initializer())
            optimizer = v1.train.GradientDescentOptimizer(0.1)

            def body(*arguments):
                loss = variable * arguments[-1]
                return *arguments[:-1], optimizer.minimize(loss), outfeed.enqueue(loss)

            def computation():
                ipu.loops.repeat(len(rows), body, values, infeed)

            compiled = ipu.ipu_compiler.compile(computation)
            read = outfeed.dequeue()
            session.run([infeed.initializer, v1.global_variables_initializer()])
            session.run(compiled)
            np.testing.assert_allclose(np.ravel(session.run(read)), expected, rtol=1e-6)
            np.testing.assert_allclose(session.run(variable), weight, rtol=1e-6)
    finally:
        (v1.enable_control_flow_v2 if was_version2 else v1.disable_control_flow_v2)()


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("axis", [-1, 1])
def test_groups_of_channels_are_normalised_as_torch_does(axis, strided):
    values = np.random.default_rng(1).normal(size=(2, 6, 3, 6)).astype(np.float32)
    first = torch.tensor(np.moveaxis(values, axis, 1))
    order = np.arange(6)
    if strided:  # group g holds channels g, g + 3, ...
        order = order.reshape(2, 3).T.reshape(-1)
    expected = np.empty_like(first.numpy())
    expected[:, order] = torch.nn.functional.group_norm(first[:, order], 3, eps=1.53e-5).numpy()
    ops = ipu.ops.normalization_ops
    found = run(lambda: ops.group_norm(values, 3, axis, strided_channel_grouping=strided))
    np.testing.assert_allclose(found, np.moveaxis(expected, 1, axis), rtol=1e-4, atol=1e-5)


def test_layers_and_instances_are_groups_of_all_channels_and_of_one():
    values = np.random.default_rng(2).normal(size=(2, 4, 3)).astype(np.float32)
    ops, last = ipu.ops.normalization_ops, torch.tensor(values).movedim(-1, 1)
    whole = torch.nn.functional.group_norm(last, 1, eps=1.53e-5).movedim(1, -1)
    each = torch.nn.functional.group_norm(last, 3, eps=1.53e-5).movedim(1, -1)
    np.testing.assert_allclose(run(lambda: ops.layer_norm(values)), whole, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(run(lambda: ops.instance_norm(values)), each, rtol=1e-4, atol=1e-5)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="not commensurate"):
        ops.group_norm(values, 2)


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("group_norm", "GroupNorm"),
        ("layer_norm", "LayerNorm"),
        ("instance_norm", "InstanceNorm"),
    ],
)
def test_variables_of_normalisations_have_the_published_names_and_order(name, scope):
    with tf.Graph().as_default():
        getattr(ipu.ops.normalization_ops, name)(tf.ones([2, 3, 4]))
        names = [one.op.name for one in tf.compat.v1.global_variables()]
    assert names == [f"{scope}/beta", f"{scope}/gamma"]


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_train_op_of_a_body_may_count_steps(replicas):
    def build():
        strategy = Job(replicas, factor=1)
        with strategy.scope():

            def body():
                weight = v1.get_variable("weight", initializer=1.0, use_resource=True)
                step = v1.train.get_or_create_global_step()
                # 0.5 in the first two steps, a tenth of it in the next two.
                rate = v1.train.exponential_decay(0.5, step, 2, 0.1, staircase=True)
                descent = v1.train.GradientDescentOptimizer(rate)
                return descent.minimize(weight / strategy.num_replicas_in_sync, global_step=step)

            results = strategy.run(lambda: ipu.loops.repeat(4, body, []))
            with tf.control_dependencies(tf.nest.flatten(results)):
                values = [v1.train.get_global_step(), *v1.trainable_variables()]
                return [one.read_value() for one in values]

    step, weight = run(build)
    assert step == 4
    assert weight == pytest.approx(1 - 2 * 0.5 - 2 * 0.05)


@pytest.mark.parametrize("local", [1, 2])
def test_autograph_rewrites_bodies_of_the_program_and_no_code_of_the_package(local, monkeypatch):
    rewritten = set()
    convert = autograph._convert_actual

    def noted(entity, context):
        rewritten.add(entity.__module__)
        return convert(entity, context)

    monkeypatch.setattr(autograph, "_convert_actual", noted)
    strategy = Job(local, factor=1)

    def body(value):
        if value > 5:  # a tensor, of which Python alone knows no truth
            value = value - 4
        return value + 3

    @tf.function
    def step():
        return strategy.run(lambda: ipu.loops.repeat(4, body, [tf.constant(1.0)]))

    values = strategy.experimental_local_results(step())
    assert [float(value) for value in values] == [5.0] * local  # 1, 4, 7, 6, 5
    assert __name__ in rewritten
    assert not any(name.startswith("popdist_tf") for name in rewritten)


def test_queues_of_a_loop_belong_to_the_graph_of_the_program():
    # Without a scope of the graph itself, TensorFlow takes eager code for what is outside.
    with context.graph_mode():
        queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
        run = ipu.ipu_compiler.compile(
            lambda x: ipu.loops.repeat(3, lambda y: (y + 1, queue.enqueue(y)), [x]),
            [tf.constant([1.0, 2.0])],
        )
        kept = queue.dequeue()
        with tf.compat.v1.Session() as session:
            np.testing.assert_array_equal(session.run(run), [[4.0, 5.0]])
            np.testing.assert_array_equal(session.run(kept), [[1, 2], [2, 3], [3, 4]])
