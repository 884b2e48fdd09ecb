"""The door of PopART programs: options and a device as the launcher says."""

import pytest

import popdist.popart
import popdist_onnx as popart
from popdist.errors import ArgumentError


def test_without_a_launcher_options_stay_as_they_are():
    options = popart.SessionOptions()
    popdist.popart.configureSessionOptions(options)
    assert not options.enableReplicatedGraphs
    assert not options.enableDistributedReplicatedGraphs
    assert options.getGlobalReplicationFactor() == 1
    assert not popdist.popart.getDevice().offline


def test_options_know_the_replicas_of_the_job(launched):
    launched(
        num_total_replicas=6, num_local_replicas=2, replica_index_offset=4,
        num_instances=3, instance_index=2,
    )  # fmt: skip
    options = popart.SessionOptions()
    popdist.popart.configureSessionOptions(options)
    assert options.enableReplicatedGraphs
    assert options.replicatedGraphCount == 2
    assert options.enableDistributedReplicatedGraphs
    assert options.globalReplicaOffset == 4
    assert options.getGlobalReplicationFactor() == 6


def test_options_that_ask_for_other_replicas_are_refused(launched):
    launched(
        num_total_replicas=2, num_local_replicas=1, replica_index_offset=0,
        num_instances=2, instance_index=0,
    )  # fmt: skip
    options = popart.SessionOptions()
    options.replicatedGraphCount = 3
    with pytest.raises(ArgumentError, match="another number of replicas than the launcher"):
        popdist.popart.configureSessionOptions(options)


def test_a_program_alone_in_a_comparison_may_have_the_replicas_of_the_job(launched):
    launched(
        num_total_replicas=1, num_local_replicas=1, replica_index_offset=0,
        num_instances=1, instance_index=0, num_ipus_per_replica=4, compare_replicas=2,
    )  # fmt: skip
    options = popart.SessionOptions()
    options.replicatedGraphCount = 2
    popdist.popart.configureSessionOptions(options)
    assert options.enableReplicatedGraphs
    assert options.getGlobalReplicationFactor() == 2
    assert popdist.popart.getDevice(4).numIpus == 8
    options.replicatedGraphCount = 3
    with pytest.raises(ArgumentError, match="another number of replicas than the launcher"):
        popdist.popart.configureSessionOptions(options)
