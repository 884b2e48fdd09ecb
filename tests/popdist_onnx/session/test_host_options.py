"""Session options that contradict the exchange of gradients on the host."""

import pytest

from popdist_onnx.errors import popart_exception
from popdist_onnx.optimizers.adam import Adam
from popdist_onnx.optimizers.sgd import SGD
from popdist_onnx.session.arguments import (
    HostAllReduceOptionError,
    check_host_options,
)
from popdist_onnx.types.enums import MergeVarUpdateType
from popdist_onnx.types.session_options import SessionOptions


def options(**values):
    made = SessionOptions()
    for name, value in values.items():
        setattr(made, name, value)
    return made


HOST_UPDATE = {"hostAllReduce": True, "hostWeightUpdate": True}
REMOTE = {"hostAllReduce": True, "hostAllReduceRemoteBuffer": True}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hostWeightUpdate": True}, "can't be enabled without hostAllReduce"),
        (
            {"hostAllReduce": True, "mergeVarUpdate": MergeVarUpdateType.All},
            "hostAllReduce does not work with MergeVarUpdates",
        ),
        (HOST_UPDATE | {"enablePipelining": True}, "Pipelining is not supported"),
        (
            HOST_UPDATE | {"enableGradientAccumulation": True, "accumulationFactor": 2},
            "Gradient accumulation is not supported",
        ),
        (HOST_UPDATE | REMOTE, "Remote buffers are not supported"),
        (REMOTE | {"enableReplicatedGraphs": True}, "Replicated graphs are not supported"),
    ],
)
def test_contradictions_are_refused(values, message):
    with pytest.raises(HostAllReduceOptionError, match=message) as error:
        check_host_options(options(**values))
    assert isinstance(error.value, popart_exception)
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (SGD({"defaultMomentum": (0.9, True)}), r"SGD1\) is not supported with host weight"),
        (SGD({"defaultMomentum": (0.0, False)}), r"SGD1\) is not supported with host weight"),
        (Adam({}), "Adam is not supported with host weight update"),
    ],
)
def test_the_host_updates_weights_of_plain_sgd_only(optimizer, message):
    with pytest.raises(HostAllReduceOptionError, match=message):
        check_host_options(options(**HOST_UPDATE), optimizer)
    check_host_options(options(**HOST_UPDATE), SGD({}))


def test_one_weight_with_momentum_is_enough_to_refuse():
    optimizer = SGD({})
    optimizer.insertSpecific("w", {"momentum": (0.5, True)})
    with pytest.raises(HostAllReduceOptionError, match="SGD1"):
        check_host_options(options(**HOST_UPDATE), optimizer)


def test_remote_buffers_are_ordinary_memory():
    check_host_options(options(**REMOTE))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"hostAllReduce": True},
        {"mergeVarUpdate": MergeVarUpdateType.All},
        {"hostAllReduce": True, "enableGradientAccumulation": True, "accumulationFactor": 4},
        {"hostAllReduce": True, "enableReplicatedGraphs": True, "replicatedGraphCount": 2},
    ],
)
def test_what_works_together_is_taken(values):
    check_host_options(options(**values), Adam({}))
