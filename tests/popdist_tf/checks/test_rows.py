"""Warnings of equal data: which data count, and when they are compared.

The other instance is `Peers`, a stand-in for Horovod: it hands in the same numbers of rows as this
one does, unless a test changes them.
"""

import warnings

import numpy as np
import pytest
import tensorflow as tf

from popdist_tf import ipu
from popdist_tf.checks.first_steps import FirstSteps
from popdist_tf.checks.rows import compare_arrays, rows_of
from popdist_tf.collectives.host import HostCollectives
from tests.popdist_tf.peers import Peers
from tests.popdist_tf.strategies.job import Job


def other(value):
    return value + 1


def collectives(rank=0, says=None):
    return HostCollectives(Peers((1, 1), rank, says), 2, rank)


def said(function, *args):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args)
    return [text[:7] for one in caught if "PD4" in (text := str(one.message))]


ROWS = np.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ((ROWS, np.arange(4)), ["[PD418]"]),
        ({"a": tf.constant(ROWS), "b": None}, ["[PD418]"]),
        ((np.ones((4, 3)), np.zeros(4)), []),  # rows that are all alike
        ((ROWS[:1], None), []),
        ((tf.data.Dataset.range(3), None), []),
        (([1.0, 2.0], 3), []),
    ],
)
def test_equal_arrays(data, expected):
    assert said(compare_arrays, collectives(), data) == expected
    assert said(compare_arrays, collectives(rank=1), data) == []
    assert said(compare_arrays, collectives(says=other), data) == []


def test_a_row_in_the_middle_counts():
    long = np.arange(10_000)
    changed = long.copy()
    changed[len(long) // 63] = 0
    seen = []

    def note(value):
        seen.append(int(value[0]))
        return value

    for data in (long, changed):
        said(compare_arrays, collectives(says=note), data)
    assert len(set(seen)) == 2


def test_rows_are_tensors_with_a_dimension():
    ragged = tf.ragged.constant([[1], [2, 3]])
    batch = {"a": tf.ones([2]), "step": tf.constant(3), "name": "x", "none": None, "ragged": ragged}
    assert [one.shape for one in rows_of(batch)] == [(2,), (3,), (3,)]


def batches(kind):
    whole = [tf.range(4) + 4 * step for step in range(4)]
    return {
        "of rows": whole,
        "of text": [tf.strings.as_string(one) for one in whole],
        "of truths": [tf.equal(one, one[0] + tf.cast(one[0] / 4, tf.int32)) for one in whole],
        "one batch": whole[:1] * 4,
        "numbers of steps": [one[0] for one in whole],
    }[kind]


@pytest.mark.parametrize("says", [None, other])
@pytest.mark.parametrize("built", [False, True])
@pytest.mark.parametrize(
    ("kind", "warned"),
    [
        ("of rows", True),
        ("of text", True),
        ("of truths", True),
        ("one batch", False),
        ("numbers of steps", False),
    ],
)
def test_batches_that_are_equal_in_two_steps(kind, warned, built, says):
    step = FirstSteps(collectives(says=says), "label").compare
    if built:
        step = tf.function(lambda batch, count=step: count((batch, None)))
    expected = ["[PD418]"] if warned and says is None else []
    assert [said(step, batch) for batch in batches(kind)] == [[], expected, [], []]


def test_a_later_step_may_be_the_first_of_the_two():
    step = FirstSteps(collectives(), "label", first=2).compare
    found = [said(tf.function(step), batch) for batch in batches("of rows")]
    assert found == [[], [], ["[PD418]"], []]


@pytest.mark.parametrize("kind", ["of rows", "one batch"])
def test_batches_of_sessions(kind):
    values = np.stack([one.numpy() for one in batches(kind)])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        given = tf.compat.v1.placeholder(tf.int32, [4])
        compared = FirstSteps(collectives(), None).compare(given)
        found = [said(session.run, compared, {given: one}) for one in values]
    assert found == [[], ["[PD418]"] if kind == "of rows" else [], [], []]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("built", [False, True])
def test_the_arguments_of_a_step_that_updates_weights(replicas, built):
    strategy = Job(replicas, factor=1)
    with strategy.scope():
        weight = tf.Variable([1.0, 2.0])

    def update(rows):
        replica = tf.distribute.get_replica_context()
        total = replica.all_reduce("SUM", tf.reduce_sum(rows, axis=0))
        replica.merge_call(
            lambda where, value: where.extended.update(
                weight, lambda v, g: v.assign_add(g), (value,)
            ),
            (total,),
        )

    def look(rows):
        return tf.reduce_sum(rows)

    for function, expected in ((look, []), (update, ["[PD418]"])):
        step = tf.function(lambda batch: strategy.run(function, (batch,)))  # noqa: B023 - used at once
        run = step if built else (lambda batch: strategy.run(function, (batch,)))  # noqa: B023
        found = [said(run, tf.constant([[number, 1.0]] * 3)) for number in (1.0, 2.0, 3.0)]
        assert found == [[], expected, []]


@pytest.mark.parametrize("built", [False, True])
def test_gradients_that_a_step_is_given_are_no_rows(built):
    strategy = Job(1, factor=1)
    with strategy.scope():
        weight = tf.Variable([1.0, 2.0])

    def update(gradient):  # reduced before, and so the same everywhere
        tf.distribute.get_replica_context().merge_call(
            lambda where, value: where.extended.update(
                weight, lambda v, g: v.assign_sub(g), (value,)
            ),
            (gradient,),
        )

    step = tf.function(lambda gradient: strategy.run(update, (gradient,)))
    run = step if built else (lambda gradient: strategy.run(update, (gradient,)))
    assert [said(run, tf.constant([number, 1.0])) for number in (1.0, 2.0, 3.0)] == [[]] * 3


def descend(where, weight, gradient):
    """An update as optimizers make it."""

    def update(strategy, own):
        (total,) = strategy.extended.batch_reduce_to("SUM", [(own, weight)])
        assert strategy.extended.batch_reduce_to("SUM", []) == []
        return tf.group(strategy.extended.update(weight, lambda v, g: v.assign_sub(g), (total,)))

    return where.merge_call(update, (gradient,))


def descend_by_oneself(where, weight, gradient):
    """An update by a gradient that the program, or Keras 3, reduces before the optimizer."""

    def update(strategy, total):
        return tf.group(strategy.extended.update(weight, lambda v, g: v.assign_sub(g), (total,)))

    return where.merge_call(update, (where.all_reduce("SUM", gradient),))


def descend_on_request(where, weight, gradient):
    """An update by an optimizer that reduces, under a strategy that does not."""

    def update(strategy, own):
        total = strategy.extended.reduce_over_replicas(tf.distribute.ReduceOp.SUM, own)
        return tf.group(strategy.extended.update(weight, lambda v, g: v.assign_sub(g), (total,)))

    return where.merge_call(update, (gradient,))


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("built", [False, True])
@pytest.mark.parametrize("descend", [descend, descend_by_oneself, descend_on_request])
def test_the_gradients_of_a_step_that_has_its_rows_from_elsewhere(descend, replicas, built):
    strategy = Job(replicas, factor=1, reduce_on_device=descend is not descend_on_request)
    with strategy.scope():
        weight = tf.Variable([1.0, 2.0])
    rows = iter(tf.data.Dataset.from_tensor_slices(np.arange(12, dtype=np.float32).reshape(-1, 2)))

    def update():
        gradient = next(rows) * weight
        descend(tf.distribute.get_replica_context(), weight, gradient)

    step = tf.function(lambda: strategy.run(update))
    run = step if built else (lambda: strategy.run(update))
    if replicas > 1 and built:
        assert [text for _ in range(3) for text in said(run)] == ["[PD418]"]
    elif replicas == 1:
        assert [said(run) for _ in range(4)] == [[], [], ["[PD418]"], []]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    ("kind", "trains", "warned"),
    [("of rows", True, True), ("one batch", True, False), ("of rows", False, False)],
)
@pytest.mark.parametrize("mode", ["function", "session"])
def test_the_first_elements_of_an_infeed_queue(mode, kind, trains, warned, replicas):
    values = np.stack([one.numpy() for one in batches(kind)]).astype(np.float32)

    def prepare(strategy):
        with strategy.scope():
            weight = tf.Variable([1.0, 2.0, 3.0, 4.0])
        data = tf.data.Dataset.from_tensor_slices(np.concatenate([values] * 4))
        queue = ipu.ipu_infeed_queue.IPUInfeedQueue(data)

        def body(total, rows):
            moved = []
            if trains:
                context = tf.distribute.get_replica_context()
                moved = [descend(context, weight, rows * 0.01)]
            return [total + tf.reduce_sum(rows), *moved]

        def step():
            return ipu.loops.repeat(2, body, [tf.constant(0.0)], queue)

        return queue, step

    expected = [["[PD418]"], []] if warned else [[], []]
    strategy = Job(replicas, factor=1)
    if mode == "function":
        _, step = prepare(strategy)
        run = tf.function(lambda: strategy.experimental_local_results(strategy.run(step)))
        assert [said(run), said(run)] == expected
        return
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        queue, step = prepare(strategy)
        results = strategy.experimental_local_results(strategy.run(step))
        session.run([queue.initializer, tf.compat.v1.global_variables_initializer()])
        assert [said(session.run, results), said(session.run, results)] == expected
