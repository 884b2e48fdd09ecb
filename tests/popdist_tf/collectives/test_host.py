"""Collectives over the instances: dtypes, names, gates, gradients and refusals.

The other instance is `Peers`, a stand-in for Horovod: it hands in ten times as much as this one.
"""

import copy

import numpy as np
import pytest
import tensorflow as tf

from popdist_tf.collectives.host import HostCollectives, gated
from popdist_tf.collectives.names import collective_name, pairing_name
from popdist_tf.errors import CollectiveError
from tests.popdist_tf.peers import Peers

v1 = tf.compat.v1
OWN = np.array([1.0, 2.0])


def job(rank=0):
    peers = Peers((1, 10), 0) if rank == 0 else Peers((10, 1), 1)
    return peers, HostCollectives(peers, 2, rank)


@pytest.mark.parametrize(
    ("dtype", "carried"),
    [
        *((name, name) for name in ("float16", "float32", "float64", "int8", "int32", "int64")),
        ("uint8", "uint8"),
        ("bfloat16", "float32"),
        ("int16", "int32"),
        ("uint16", "int32"),
        ("uint32", "int64"),
        ("complex64", "float32"),
        ("complex128", "float64"),
    ],
)
def test_every_numeric_dtype_is_summed_and_comes_back_as_itself(dtype, carried):
    peers, collectives = job()
    total = collectives.allreduce(tf.cast(OWN, dtype))
    assert total.dtype.name == dtype
    np.testing.assert_array_equal(tf.cast(total, tf.complex128), 11 * OWN)
    assert [call.dtype for call in peers.calls] == [carried]


def test_sums_of_carried_dtypes_are_not_cut_on_the_way():
    _, collectives = job()
    assert collectives.allreduce(tf.constant([300], tf.uint32)).numpy() == [3300]
    assert collectives.allreduce(tf.constant([3 + 4j], tf.complex64)).numpy() == [33 + 44j]
    # 11 * 1.0078125 needs more bits than bfloat16 has; it is rounded once, at the end.
    exact = np.float32(11 * 1.0078125)
    total = collectives.allreduce(tf.constant([1.0078125], tf.bfloat16))
    assert float(total[0]) == float(tf.cast(exact, tf.bfloat16))


@pytest.mark.parametrize("dtype", ["bool", "uint16", "bfloat16", "complex64"])
def test_what_is_not_summed_travels_unchanged(dtype):
    _, collectives = job()
    value = tf.cast([0, 1], dtype)
    for answer, expected in (
        (collectives.broadcast(value, 0), [0, 1]),
        (collectives.allgather(value)[:2], [0, 1]),
    ):
        assert answer.dtype == value.dtype
        np.testing.assert_array_equal(tf.cast(answer, tf.int32), expected)


def test_a_sum_of_booleans_is_refused_with_what_to_do():
    _, collectives = job()
    with pytest.raises(CollectiveError, match="bool cannot be summed") as caught:
        collectives.allreduce(tf.constant([True]))
    assert (caught.value.code, caught.value.hint) == ("PD410", "tf.cast it to tf.int32 first")


def test_text_cannot_travel():
    _, collectives = job()
    for call in (collectives.broadcast, collectives.allgather):
        with pytest.raises(CollectiveError, match="string cannot be sent") as caught:
            call(tf.constant(["a"]))
        assert (caught.value.code, caught.value.hint) == ("PD410", None)
        assert caught.value.accepted.endswith(", bool")


@pytest.mark.parametrize("kind", ["allreduce", "broadcast", "allgather"])
def test_xla_compiles_no_collective(kind):
    _, collectives = job()
    # AutoGraph would pass the error on as text.
    compiled = tf.function(getattr(collectives, kind), jit_compile=True, autograph=False)
    with pytest.raises(CollectiveError, match=f"XLA cannot compile.*{kind}") as caught:
        compiled(tf.constant([1.0]))
    assert caught.value.code == "PD410"
    assert "leave jit_compile away" in caught.value.hint


def test_alone_nothing_travels():
    collectives = HostCollectives(None, 1, 0)
    value = tf.constant(["a"])  # not even a dtype that could
    for answer in (
        collectives.allreduce(value),
        collectives.broadcast(value),
        collectives.allgather(value),
        collectives.sum_by_name(value, "name"),
    ):
        assert answer.numpy() == [b"a"]


def test_a_copy_of_a_strategy_keeps_the_job():
    _, collectives = job()
    assert copy.deepcopy({"kept": collectives})["kept"] is collectives


# Names.


def test_names_count_the_collectives_of_the_outermost_function():
    peers, collectives = job()

    @tf.function
    def inner(value):
        return collectives.allreduce(value)

    @tf.function
    def outer(value):
        tf.add(value, 1.0, name="one_more_on_this_rank")
        first = inner(value)
        second = tf.cond(first > 0, lambda: collectives.allreduce(first), lambda: first)
        return collectives.broadcast(second)

    outer(tf.constant(1.0))
    assert peers.names("allreduce") == ["popdist_allreduce_0", "popdist_allreduce_1"]
    assert peers.names("broadcast") == ["popdist_broadcast_0"]
    outer(tf.constant(1.0, tf.float64))  # built again: the count begins anew
    assert peers.names("broadcast") == ["popdist_broadcast_0"] * 2


@pytest.mark.parametrize("has_variables", [True, False])
def test_names_do_not_count_a_function_twice_that_creates_variables(has_variables):
    peers, collectives = job()
    held = [tf.Variable(1.0)] if has_variables else []

    @tf.function
    def inner(value):
        if not held:
            held.append(tf.Variable(1.0))
        return collectives.allreduce(value * held[0])

    @tf.function
    def outer(value):
        return collectives.allreduce(inner(value) + inner(value))

    assert float(outer(tf.constant(1.0))) == 242
    # Those of the functions that run, behind those of one that is built first.
    assert peers.names("allreduce")[-2:] == ["popdist_allreduce_0", "popdist_allreduce_1"]


def test_names_that_programs_give_pair_collectives_in_any_order():
    built = []
    for order in (("a:0", "scope/b"), ("scope/b", "a:0")):
        peers, collectives = job()
        with tf.Graph().as_default():
            for name in order:
                collectives.allreduce(tf.constant(1.0), name)
        built.append(set(peers.names("allreduce")))
    assert built[0] == built[1] == {"popdist_allreduce_a.0_0", "popdist_allreduce_scope.b_0"}


def test_eager_collectives_have_names_only_where_programs_give_them():
    peers, collectives = job()
    value = tf.constant([1.0])
    for call in (collectives.allreduce, collectives.allgather):
        call(value)
        call(value, tensor_name="mine")
    assert peers.names("allreduce") == [None, "popdist_allreduce_mine_0"]
    assert peers.names("allgather") == [None, "popdist_allgather_mine_0"]
    assert collective_name("allreduce") is None


def test_a_whole_name_is_taken_as_it_is():
    peers, collectives = job()
    summed = tf.function(lambda value: collectives.sum_by_name(value, "here"))(tf.constant(2))
    tf.function(lambda value: collectives.allgather(value, "there"))(tf.constant([2]))
    assert int(summed) == 22
    assert peers.names("allreduce") + peers.names("allgather") == ["here", "there"]


def test_a_tensor_is_paired_by_the_name_that_it_has():
    assert pairing_name(tf.constant(1.0), None) is None
    assert pairing_name(tf.constant(1.0), "given") == "given"
    with tf.Graph().as_default():
        assert pairing_name(tf.constant(1.0, name="own"), None) == "own:0"
        assert pairing_name(1.0, None) is None


# Gates.


def test_collectives_whose_results_are_not_used_run_all_the_same():
    ran = []

    class Counting(Peers):
        def grouped_allreduce(self, tensors, op, name, ignore_name_scope):
            del op, ignore_name_scope
            # Without state, as Horovod registers its ops.
            return [tf.numpy_function(self.note, [tensors[0], name], tf.float32, stateful=False)]

        @staticmethod
        def note(value, name):
            ran.append(name.decode())
            return value

    collectives = HostCollectives(Counting(), 2, 0)

    @tf.function
    def step():
        collectives.allreduce(tf.constant(1.0))  # of a constant, and used by nobody
        return tf.constant(0)

    graph = step.get_concrete_function().graph
    assert [op.type for op in graph.get_operations()].count("GuaranteeConst") == 2
    step()
    step()
    assert ran == ["popdist_allreduce_0"] * 2


def test_eager_code_needs_no_gate():
    value = tf.constant(1.0)
    assert gated(value) is value


# Gradients. With the weights w, the loss of this rank is sum(w * answer).

WEIGHTS = np.array([2.0, 3.0])
ROWS = np.array([2.0, 3.0, 5.0, 7.0])


def gradient(function, weights, way):
    """The gradient by the input of a function of a vector, in each way of building it."""
    if way == "graph":
        with tf.Graph().as_default(), v1.Session() as session:
            own = tf.constant(OWN)
            return session.run(tf.gradients(tf.reduce_sum(function(own) * weights), own)[0])

    def computed(own):
        with tf.GradientTape() as tape:
            tape.watch(own)
            loss = tf.reduce_sum(function(own) * weights)
        return tape.gradient(loss, own)

    return (tf.function(computed) if way == "function" else computed)(tf.constant(OWN)).numpy()


@pytest.mark.parametrize("way", ["eager", "function", "graph"])
@pytest.mark.parametrize("named", [None, "mine"])
@pytest.mark.parametrize(
    ("kind", "rank", "weights", "expected"),
    [
        # Every rank's loss depends on every rank's value; the peer's gradients are tenfold.
        ("allreduce", 0, WEIGHTS, 11 * WEIGHTS),
        ("allreduce", 1, WEIGHTS, 11 * WEIGHTS),
        ("broadcast", 0, WEIGHTS, 11 * WEIGHTS),
        ("broadcast", 1, WEIGHTS, 0 * WEIGHTS),  # the root's value alone counts
        ("allgather", 0, ROWS, 11 * ROWS[:2]),
        ("allgather", 1, ROWS, 11 * ROWS[2:]),
    ],
)
def test_gradients_of_collectives(way, named, kind, rank, weights, expected):
    _, collectives = job(rank)
    found = gradient(lambda x: getattr(collectives, kind)(x, tensor_name=named), weights, way)
    np.testing.assert_array_equal(found, expected)


def test_gradients_travel_under_names_of_their_own():
    peers, collectives = job()
    gradient(collectives.allreduce, WEIGHTS, "function")
    assert peers.names("allreduce") == ["popdist_allreduce_0", "popdist_allreduce_gradient_0"]


def test_gradients_of_dtypes_that_horovod_lacks():
    _, collectives = job()
    value = tf.constant([1.0, 2.0], tf.bfloat16)
    with tf.GradientTape() as tape:
        tape.watch(value)
        total = tf.reduce_sum(collectives.allreduce(value) * 3)
    found = tape.gradient(total, value)
    assert found.dtype == tf.bfloat16
    assert tf.cast(found, tf.float32).numpy().tolist() == [33, 33]
