"""The published collectives of both SDKs, and how a program's job is found.

Horovod is `Peers`: a stand-in whose second rank hands in ten times as much.
"""

import numpy as np
import pytest
import tensorflow as tf

from popdist import backend
from popdist_tf.collectives import instances, published
from popdist_tf.errors import CollectiveError, StrategyError
from tests.popdist_tf.peers import Peers

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


@pytest.fixture
def peers(monkeypatch):
    """Horovod, running."""
    found = Peers()
    monkeypatch.setattr(backend, "started", lambda *_: found)
    monkeypatch.setattr(backend, "connect", lambda *_: found)
    return found


@pytest.mark.parametrize(
    ("values", "dtype", "op", "expected"),
    [
        ([1, 2], "float32", SUM, [11, 22]),
        ([1, 2], "float32", MEAN, [5.5, 11]),
        ([1, 2], "int32", MEAN, [5, 11]),
        ([-1, 2], "int64", MEAN, [-6, 11]),  # -11 // 2
    ],
)
def test_reductions_of_sdk_3_keep_the_dtype(peers, values, dtype, op, expected):
    assert peers.size() == 2
    answer = instances.allreduce(tf.constant(values, dtype), op)
    assert (answer.dtype.name, answer.numpy().tolist()) == (dtype, expected)


def test_another_reduction_of_sdk_3_is_refused():
    with pytest.raises(CollectiveError, match="reduction over instances") as caught:
        instances.allreduce(tf.constant(1.0), "mean")
    assert (caught.value.code, caught.value.hint) == ("PD410", None)
    assert caught.value.accepted.endswith("ReduceOp.SUM or tf.distribute.ReduceOp.MEAN")


def test_gathers_of_sdk_3_stack_and_those_of_horovod_concatenate(peers):
    assert peers.rank() == 0
    assert instances.allgather(tf.constant([1.0, 2.0])).numpy().tolist() == [[1, 2], [10, 20]]
    assert instances.allgather(tf.constant(1.0)).numpy().tolist() == [1, 10]
    assert published.allgather(tf.constant([1.0, 2.0])).numpy().tolist() == [1, 2, 10, 20]


@pytest.mark.parametrize("broadcast", [instances.broadcast, published.broadcast])
def test_broadcasts_have_the_value_of_their_root(peers, broadcast):
    assert [float(broadcast(tf.constant(2.0), root)) for root in range(peers.size())] == [2, 20]


@pytest.mark.parametrize(
    ("op", "dtype", "expected", "result"),
    [
        (instances.Sum, "int32", [11, 22], "int32"),
        (instances.Average, "float32", [5.5, 11], "float32"),
        (None, "int32", [5.5, 11], "float64"),  # divided truly
    ],
)
def test_reductions_of_horovod(peers, op, dtype, expected, result):
    assert peers.size() == 2
    answer = published.allreduce(tf.constant([1, 2], dtype), op)
    assert (answer.dtype.name, answer.numpy().tolist()) == (result, expected)


@pytest.mark.parametrize(("op", "share"), [(instances.Sum, 1), (None, 2)])
def test_rows_of_a_table_add_up_to_the_reduction_of_the_table(peers, op, share):
    rows = tf.IndexedSlices(tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([2, 2]), [4, 2])
    answer = published.allreduce(rows, op)
    assert isinstance(answer, tf.IndexedSlices)
    expected = np.zeros((4, 2))
    expected[2] = [11 * (1 + 3) / share, 11 * (2 + 4) / share]
    np.testing.assert_array_equal(tf.convert_to_tensor(answer), expected)
    assert [call.kind for call in peers.calls] == ["allgather"] * 2


def test_tensors_are_paired_by_their_own_name_or_a_given_one(peers):
    with tf.Graph().as_default():
        value = tf.constant([1.0], name="loss")
        published.allreduce(value)
        published.allgather(value, "given")
        instances.allreduce(value, SUM)
        instances.broadcast(value, tensor_name="given")
    assert peers.names("allreduce") == ["popdist_allreduce_loss.0_0", "popdist_allreduce_loss.0_1"]
    # Instances compare what is reduced and sent by `host_collective_ops`.
    layouts = ["popdist_allgather_loss.0_layout_0", "popdist_allgather_given_layout_0"]
    assert peers.names("allgather") == ["popdist_allgather_given_0", *layouts]
    assert peers.names("broadcast") == ["popdist_broadcast_given_0"]


def test_a_gradient_passes_through_a_mean(peers):
    value = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(value)
        loss = tf.reduce_sum(instances.allreduce(value, MEAN) * [3.0, 4.0])
    assert tape.gradient(loss, value).numpy().tolist() == [16.5, 22]
    assert [call.kind for call in peers.calls] == ["allgather", "allreduce", "allreduce"]


# The job.


def test_horovod_must_be_running(monkeypatch):
    monkeypatch.setattr(backend, "started", lambda *_: None)
    with pytest.raises(StrategyError, match="has not been initialised") as caught:
        instances.initialised_collectives()
    assert caught.value.code == "PD411"
    assert caught.value.hint == "call popdist_tf.ipu.horovod.init() first"


def test_processes_of_another_launcher_must_start_horovod_themselves(monkeypatch):
    monkeypatch.setattr(backend, "started", lambda *_: None)
    monkeypatch.setattr(backend, "launch", lambda: backend.Launch("mpirun", 0, 3))
    with pytest.raises(StrategyError, match="mpirun started 3 processes") as caught:
        instances.job_collectives()
    assert caught.value.code == "PD411"
    assert caught.value.hint.startswith("start the job with poprun, or call")


def test_a_job_of_one_needs_no_binding(monkeypatch):
    monkeypatch.setattr(backend, "started", lambda *_: Peers((1,)))
    assert instances.initialised_collectives().horovod is None
    monkeypatch.setattr(backend, "started", lambda *_: None)
    alone = instances.job_collectives()
    assert (alone.horovod, alone.size, alone.rank) == (None, 1, 0)


def test_the_place_is_horovods_unless_poprun_or_nobody_has_started_it(monkeypatch, peers):
    monkeypatch.setattr(backend, "launch", lambda: backend.Launch("srun", 3, 4))
    assert instances.place_in_job() == (peers.size(), 0)
    monkeypatch.setattr(backend, "launch", lambda: backend.Launch("poprun", 3, 4))
    assert instances.place_in_job() == (4, 3)
    monkeypatch.setattr(backend, "started", lambda *_: None)
    monkeypatch.setattr(backend, "launch", lambda: backend.Launch("mpiexec", None, None))
    assert instances.place_in_job() == (1, 0)


def test_operations_that_horovod_has_and_the_published_module_lacks():
    with pytest.raises(NotImplementedError, match="Adasum reduction is not implemented"):
        instances.require_op(instances.Adasum)
    with pytest.raises(CollectiveError, match="reduction is not supported") as caught:
        instances.require_op("min")
    assert (caught.value.code, caught.value.accepted) == ("PD410", "Average or Sum")
    assert caught.value.hint is None


def test_names_that_horovod_lacks():
    with pytest.raises(AttributeError, match="no attribute 'reducescatter'"):
        instances.reducescatter  # noqa: B018 - the access is the test
