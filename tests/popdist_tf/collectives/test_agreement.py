"""Agreement of statements and weights among instances, and the numbers that weights travel as.

The other instance is `Peers`, a stand-in for Horovod that says the same, or what a test has it say.
"""

import json

import numpy as np
import pytest
import tensorflow as tf

from popdist_tf.collectives.agreement import (
    agree,
    agree_on_weights,
    digests,
)
from popdist_tf.collectives.host import HostCollectives
from popdist_tf.errors import AgreementError
from tests.popdist_tf.peers import Peers


def digest(value):
    return digests([value])[0]


def job(says=None):
    peers = Peers(says=says)
    return peers, HostCollectives(peers, 2, 0)


def other_facts(change):
    """What a peer gathers whose facts are this rank's, changed: another head, then other facts."""

    def says(row):
        content = bytes(row.numpy()[0])
        if not content.lstrip().startswith(b"{"):  # the digest and the length
            return tf.constant(np.frombuffer(b"\0" * 32 + content[32:], np.uint8)[np.newaxis])
        text = json.dumps(change(json.loads(content))).encode()
        return tf.constant(np.frombuffer(text.ljust(len(content)), np.uint8)[np.newaxis])

    return says


def test_instances_that_state_the_same_exchange_one_short_message():
    peers, collectives = job()
    agree(collectives, "a very long statement " * 100)
    assert [call.shape for call in peers.calls] == [(1, 40)]


@pytest.mark.parametrize("inside", ["eager", "function", "graph"])
def test_a_disagreement_says_who_states_what_also_while_a_graph_is_built(inside):
    _, collectives = job(other_facts(lambda _: {"statement": "b"}))

    def ask():
        with pytest.raises(AgreementError, match="disagree about what they build") as caught:
            agree(collectives, "a step")
        assert caught.value.code == "PD007"
        assert caught.value.value == "a step on instance 0; b on instance 1"
        assert "outside of the strategy's scope" in caught.value.hint

    if inside == "graph":
        with tf.Graph().as_default():
            ask()
    else:
        (tf.function(ask, autograph=False) if inside == "function" else ask)()


WEIGHTS = [("kernel", np.ones((2, 3), np.float32)), ("bias", np.zeros(0)), ("kernel", np.ones(1))]


def test_equal_weights_are_agreed_upon():
    _, collectives = job()
    agree_on_weights(collectives, WEIGHTS, "now")


def test_weights_that_differ_are_named():
    change = {"000000": "0" * 16, "000002": "0" * 16}
    _, collectives = job(other_facts(lambda facts: {**facts, **change}))
    with pytest.raises(AgreementError, match="different weights before the data set") as caught:
        agree_on_weights(collectives, WEIGHTS, "before the data set")
    assert caught.value.code == "PD007"
    assert caught.value.value == "2 of 3 variables differ: kernel, kernel"
    assert "broadcast_variables" in caught.value.hint


def test_a_variable_that_one_instance_has_dropped_is_no_difference():
    def without_bias(facts):
        return {name: value for name, value in facts.items() if name != "000001"}

    peers, collectives = job(other_facts(without_bias))
    agree_on_weights(collectives, [*WEIGHTS, ("dropped here", None)], "now")
    assert len(peers.calls) == 2  # the facts themselves have travelled


def test_alone_everybody_agrees():
    collectives = HostCollectives(None, 1, 0)
    agree(collectives, "anything")
    agree_on_weights(collectives, WEIGHTS, "now")


def test_the_number_of_a_weight_changes_with_every_bit_and_place():
    value = np.arange(6, dtype=np.float32)
    numbers = {int(digest(tf.constant(value)))}
    for byte in range(value.nbytes):
        for bit in range(8):
            changed = value.copy()
            changed.view(np.uint8)[byte] ^= 1 << bit
            numbers.add(int(digest(tf.constant(changed))))
    assert len(numbers) == 1 + 8 * value.nbytes
    assert int(digest(tf.constant([1.0, 2.0]))) != int(digest(tf.constant([2.0, 1.0])))
    assert int(digest(tf.zeros(2))) != int(digest(tf.zeros(3)))


@pytest.mark.parametrize("inside", ["eager", "function"])
def test_weights_that_share_operations_have_the_digests_of_their_own(inside):
    rng = np.random.default_rng(4)
    kinds = [
        ((3, 4), "float32"), ((0,), "float32"), ((5,), "float64"), ((), "float32"),
        ((2, 3), "float16"), ((300_000,), "float32"), ((0, 2), "int64"), ((70, 90), "float32"),
    ]  # fmt: skip
    weights = [tf.Variable(rng.normal(size=shape).astype(kind)) for shape, kind in kinds]
    found = (tf.function(digests, autograph=False) if inside == "function" else digests)(weights)
    assert found.numpy().tolist() == [int(digest(one)) for one in weights]


def test_many_small_weights_take_few_operations():
    def built(count):
        weights = [tf.Variable(tf.zeros([2, 2])) for _ in range(count)]
        graph = tf.function(lambda: digests(weights), autograph=False).get_concrete_function().graph
        return len(graph.get_operations())

    assert built(40) - built(20) <= 20 * 2


@pytest.mark.parametrize("dtype", ["uint8", "int8", "float16", "bfloat16", "int64", "complex64"])
def test_weights_of_every_size_have_a_number(dtype):
    one, other = (int(digest(tf.cast([1, last], dtype))) for last in (2, 3))
    assert one != other
