"""The job of a Keras program that runs alone."""

import pytest
import tensorflow as tf

import popdist_tf.keras as hvd
from popdist_tf.collectives.instances import Adasum
from popdist_tf.errors import CollectiveError


def test_a_program_that_runs_alone_is_rank_0_of_1():
    hvd.init()
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (0, 1, 0, 1)


@pytest.mark.parametrize("op", [None, hvd.Average, hvd.Sum])
def test_a_reduction_over_one_rank_changes_nothing(op):
    assert hvd.allreduce(tf.constant([1.0, 2.0]), op).numpy().tolist() == [1, 2]


def test_another_reduction_is_refused_and_never_taken_for_an_average():
    with pytest.raises(CollectiveError, match="Average or Sum"):
        hvd.allreduce(tf.constant(1.0), "loss")
    with pytest.raises(NotImplementedError, match="Adasum"):
        hvd.allreduce(tf.constant(1.0), Adasum)
