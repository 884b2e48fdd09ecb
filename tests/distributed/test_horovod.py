"""Horovod as it was built here: real ranks, real frameworks, different data per rank."""

import numpy as np
import pytest

from tests.distributed.jobs import run_job

LENGTHS = (1, 7, 4096, 1_000_003)


def contribution(rank, length):
    return np.random.default_rng([rank, length]).integers(-1000, 1000, length).astype(np.float32)


def reduce_torch():
    import horovod.torch as hvd
    import torch

    hvd.init()
    sums = {
        f"sum_{length}": hvd.allreduce(
            torch.from_numpy(contribution(hvd.rank(), length)), op=hvd.Sum, name=f"sum{length}"
        ).numpy()
        for length in LENGTHS
    }
    mean = hvd.allreduce(torch.full((3,), float(hvd.rank())), name="mean").numpy()
    gathered = hvd.allgather(torch.full((hvd.rank() + 1, 2), hvd.rank())).numpy()
    sent = hvd.broadcast(torch.arange(4) * (hvd.rank() + 1), root_rank=1, name="sent").numpy()
    return {
        **about(hvd),
        **sums,
        "mean": mean,
        "gathered": gathered,
        "sent": sent,
    }


def reduce_tensorflow():
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()

    @tf.function
    def summed(values):
        return hvd.allreduce(values, op=hvd.Sum, name="in_a_graph")

    sums = {
        f"sum_{length}": hvd.allreduce(
            tf.constant(contribution(hvd.rank(), length)), op=hvd.Sum, name=f"sum{length}"
        ).numpy()
        for length in LENGTHS
    }
    graph = summed(tf.constant(contribution(hvd.rank(), 5))).numpy()
    mean = hvd.allreduce(tf.fill((3,), float(hvd.rank())), name="mean").numpy()
    gathered = hvd.allgather(tf.fill((hvd.rank() + 1, 2), hvd.rank())).numpy()
    sent = hvd.broadcast(tf.range(4) * (hvd.rank() + 1), root_rank=1, name="sent").numpy()
    return {
        **about(hvd),
        **sums,
        "graph": graph,
        "mean": mean,
        "gathered": gathered,
        "sent": sent,
    }


def about(hvd):
    return {
        "rank": hvd.rank(),
        "size": hvd.size(),
        "mpi": bool(hvd.mpi_enabled()),
        "gloo_built": bool(hvd.gloo_built()),
    }


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_two_ranks_reduce_gather_and_broadcast(framework):
    pytest.importorskip(framework)
    function = {"torch": reduce_torch, "tensorflow": reduce_tensorflow}[framework]
    answers = run_job(function, framework=framework, instances=2)
    for rank, answer in enumerate(answers):
        assert (answer["rank"], answer["size"]) == (rank, 2)
        assert answer["mpi"]
        assert answer["gloo_built"]
        for length in LENGTHS:
            expected = contribution(0, length) + contribution(1, length)
            np.testing.assert_array_equal(answer[f"sum_{length}"], expected)
        np.testing.assert_array_equal(answer["mean"], [0.5, 0.5, 0.5])
        np.testing.assert_array_equal(answer["gathered"], [[0, 0], [1, 1], [1, 1]])
        np.testing.assert_array_equal(answer["sent"], [0, 2, 4, 6])
    if framework == "tensorflow":
        expected = contribution(0, 5) + contribution(1, 5)
        np.testing.assert_array_equal(answers[1]["graph"], expected)
