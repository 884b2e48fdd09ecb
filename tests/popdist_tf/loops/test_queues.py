"""Queues outside of graphs: asked by ``next``, read by iteration."""

import numpy as np
import pytest
import tensorflow as tf

from popdist_tf import ipu
from popdist_tf.errors import LayerError

MODES = ipu.ipu_outfeed_queue.IPUOutfeedMode


def test_an_iterator_hands_out_elements_one_by_one():
    iterator = ipu.ipu_infeed_queue.IPUIterator(tf.data.Dataset.range(2))
    assert iter(iterator) is iterator
    assert [int(next(iterator)), int(next(iterator))] == [0, 1]
    with pytest.raises(StopIteration):
        next(iterator)
    again = ipu.ipu_infeed_queue.IPUIterator(tf.data.Dataset.range(2))
    assert [int(again.next()), int(again.get_next())] == [0, 1]
    with pytest.raises(NotImplementedError, match="does not support get_next_as_optional"):
        again.get_next_as_optional()


def test_an_infeed_is_not_asked_for_elements():
    queue = ipu.ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.range(2))
    with pytest.raises(ValueError, match="automatically dequeued by the loop"):
        queue.get_next()


def test_an_outfeed_is_read_iteration_by_iteration():
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
    assert not queue.enqueued
    for number in (1.0, 2.0):
        queue.enqueue({"loss": tf.constant(number), "pair": (tf.constant([number, 0.0]),)})
    assert queue.enqueued
    found = list(queue)
    assert [float(one["loss"]) for one in found] == [1, 2]
    assert found[1]["pair"][0].numpy().tolist() == [2, 0]
    assert list(queue) == []


def test_an_outfeed_of_the_last_value_has_one():
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue(MODES.LAST)
    for number in (1.0, 2.0):
        queue.enqueue(tf.constant(number))
    assert float(queue.dequeue()) == 2
    with pytest.raises(RuntimeError, match=r"set to 'IPUOutfeedMode\.ALL'"):
        iter(queue)


def test_an_outfeed_can_be_read_before_and_while_it_is_filled():
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
    assert list(queue) == []
    iterator = iter(queue)
    assert isinstance(iterator, ipu.ipu_outfeed_queue.IPUOutfeedQueueIterator)
    found = []
    for number in range(3):
        queue.enqueue({"x": tf.constant(number)})
        found.append(int(next(iterator)["x"]))
    assert found == [0, 1, 2]
    assert list(iterator) == []


def test_an_outfeed_serves_one_graph_after_the_other():
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
    for size in (2, 3):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            assert not queue.enqueued
            run = ipu.loops.repeat(2, lambda size=size: queue.enqueue([tf.ones(size)]))
            assert queue.enqueued
            found = queue.dequeue()
            session.run(run)
            assert session.run(found)[0].shape == (2, size)


def test_an_iteration_enqueues_once():
    """Values of two calls would stand one after the other, as if of two iterations."""

    def body():
        return queue.enqueue(tf.constant(1)), queue.enqueue(tf.constant(2))

    for build in (tf.function(body), lambda: ipu.loops.repeat(2, body)):
        queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
        with pytest.raises(ValueError, match="An outfeed can only be enqueued once"):
            tf.function(build)()
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    def enqueue(value):
        queue.enqueue(value)

    for value in (1, 2):  # each builds the function
        tf.function(enqueue)(value)
    assert queue.dequeue().numpy().tolist() == [1, 2]


def test_in_a_graph_the_values_are_not_known_yet():
    with tf.Graph().as_default():
        queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
        queue.enqueue(tf.constant(1.0))
        with pytest.raises(RuntimeError, match="only be iterated over in eager mode"):
            next(iter(queue))


def test_a_tuple_of_a_single_dict_counts_as_the_dict():
    data = tf.data.Dataset.from_tensors(({"x": tf.constant(2.0)},)).repeat(3)
    queue = ipu.ipu_infeed_queue.IPUInfeedQueue(data)
    total = ipu.loops.repeat(3, lambda total, x: total + x, [tf.constant(0.0)], queue)
    assert float(total) == 6


def test_what_is_not_a_data_set_or_a_mode_is_refused():
    with pytest.raises(LayerError, match=r"PD434.*takes a data set"):
        ipu.ipu_infeed_queue.IPUInfeedQueue(np.ones((8, 2)))
    with pytest.raises(ValueError, match=r"Output shape \(None,\) is not fully defined"):
        ipu.ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.range(3).batch(2))
    for depth, words in (
        (0, "greater than zero"),
        (-1, "greater than zero"),
        (256, "less than 256"),
    ):
        with pytest.raises(ValueError, match=f"prefetch_depth must be {words}"):
            ipu.ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.range(3), prefetch_depth=depth)
    with pytest.raises(LayerError, match=r"PD434.*no such mode"):
        ipu.ipu_outfeed_queue.IPUOutfeedQueue(outfeed_mode="last")


@pytest.mark.parametrize("built", [False, True])
def test_a_loop_in_a_function_takes_one_element_after_the_other(built):
    queue = ipu.ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.range(6))
    outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    def loop():
        return ipu.loops.repeat(
            3, lambda total, x: (total + x, outfeed.enqueue(x)), [tf.constant(0, tf.int64)], queue
        )

    run = tf.function(loop) if built else loop
    assert [int(run()), int(run())] == [0 + 1 + 2, 3 + 4 + 5]
    assert [int(one) for one in outfeed] == list(range(6))


@pytest.mark.parametrize("queue", ["infeed", "outfeed"])
def test_xla_compiles_no_queue(queue):
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.range(6))
    outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    def use():
        return infeed.dequeue() if queue == "infeed" else outfeed.enqueue(tf.constant(1.0))

    with pytest.raises(ValueError, match=rf"\[PD428\] XLA cannot compile a loop with an {queue}"):
        tf.function(use, autograph=False, jit_compile=True)()


def test_queues_may_have_names_as_in_sdk_2():
    mode = ipu.ipu_outfeed_queue.IPUOutfeedMode
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue
    assert queue(None).mode is mode.ALL
    assert queue("losses").mode is mode.ALL
    assert queue("losses", mode.LAST).mode is mode.LAST
    assert queue("losses", outfeed_mode=mode.LAST, replication_factor=2).mode is mode.LAST
    assert queue(feed_name="losses", io_batch_size=2).mode is mode.ALL
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue
    pairs = tf.data.Dataset.from_tensor_slices((np.ones(4), np.zeros(4)))
    assert infeed(pairs, "rows", 0).number_of_tuple_elements == 2
    assert infeed(pairs.map(lambda x, _: x), feed_name="rows").number_of_tuple_elements == 1


def test_a_queue_of_a_graph_is_restarted_from_outside():
    with tf.Graph().as_default() as graph:
        queue = ipu.ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.range(2))
        element = queue.dequeue()
    restart = queue.initializer  # as a program of TensorFlow 1 asks for it, whose mode is graphs
    with tf.compat.v1.Session(graph=graph) as session:
        for _ in range(2):
            session.run(restart)
            assert [session.run(element), session.run(element)] == [0, 1]
