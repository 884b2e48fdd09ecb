"""Session options: published defaults, and errors where a binding would keep silent."""

import copy
import dataclasses
import pickle

import pytest

from popdist_onnx.errors import popart_exception
from popdist_onnx.types.enums import (
    MergeVarUpdateType,
    RecomputationType,
    ReductionType,
    ReplicatedTensorSharding,
    SyntheticDataMode,
    TensorStorage,
    TileSet,
    VirtualGraphMode,
)
from popdist_onnx.types.session_options import (
    AutomaticLossScalingSettings,
    SessionOptions,
    TensorLocation,
    TensorLocationSettings,
)

PUBLISHED = {
    "enableGradientAccumulation": False,
    "accumulationFactor": 1,
    "accumulationAndReplicationReductionType": ReductionType.Sum,
    "enableReplicatedGraphs": False,
    "replicatedGraphCount": 1,
    "enableDistributedReplicatedGraphs": False,
    "globalReplicationFactor": 1,
    "globalReplicaOffset": 0,
    "enablePipelining": False,
    "virtualGraphMode": VirtualGraphMode.Off,
    "hostAllReduce": False,
    "hostWeightUpdate": False,
    "hostAllReduceRemoteBuffer": False,
    "constantWeights": True,
    "syntheticDataMode": SyntheticDataMode.Off,
    "instrumentWithHardwareCycleCounter": False,
    "enableOutlining": True,
    "mergeVarUpdate": MergeVarUpdateType.Off,
    "enablePrefetchDatastreams": True,
    "enableStochasticRounding": False,
    "enableFloatingPointChecks": False,
    "enableNonStableSoftmax": False,
    "autoRecomputation": RecomputationType.NoRecompute,
    "enableEngineCaching": False,
    "cachePath": "session_cache",
    "logDir": "",
    "engineOptions": {},
    "convolutionOptions": {},
    "lstmOptions": {},
    "matmulOptions": {},
    "reportOptions": {},
    "gclOptions": {},
}


def test_defaults_are_the_published_ones():
    options = SessionOptions()
    assert {name: getattr(options, name) for name in PUBLISHED} == PUBLISHED


def test_dictionaries_are_written_through_and_belong_to_one_object():
    options = SessionOptions()
    options.engineOptions["debug.allowOutOfMemory"] = "true"
    options.automaticLossScalingSettings.enabled = True
    assert options.engineOptions == {"debug.allowOutOfMemory": "true"}
    other = SessionOptions()
    assert other.engineOptions == {}
    assert not other.automaticLossScalingSettings.enabled


def test_an_option_that_does_not_exist_is_an_error_with_the_nearest_name():
    options = SessionOptions()
    with pytest.raises(popart_exception, match="did you mean hostAllReduce"):
        options.hostAllreduce = True
    with pytest.raises(AttributeError, match="did you mean accumulationFactor"):
        _ = options.acumulationFactor
    with pytest.raises(AttributeError):
        options.automaticLossScalingSettings.enable = True


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hostAllReduce", 1),
        ("accumulationFactor", True),
        ("accumulationFactor", 2.0),
        ("accumulationFactor", ReductionType.Sum),
        ("virtualGraphMode", 1),
        ("engineOptions", "a"),
        ("automaticLossScalingSettings", True),
        ("cachePath", None),
    ],
)
def test_a_value_of_another_type_is_an_error(name, value):
    options = SessionOptions()
    with pytest.raises(popart_exception, match=f"SessionOptions.{name}") as error:
        setattr(options, name, value)
    assert isinstance(error.value, TypeError)
    assert options == SessionOptions()


def test_whole_numbers_are_numbers():
    options = SessionOptions()
    options.outlineThreshold = -1
    assert options.outlineThreshold == -1.0


def test_options_can_be_copied_and_sent():
    options = SessionOptions()
    options.accumulationFactor = 4
    assert copy.deepcopy(options) == options
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - written just now


@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        ({}, 1),
        ({"replicatedGraphCount": 4}, 1),
        ({"replicatedGraphCount": 4, "enableReplicatedGraphs": True}, 4),
        (
            {
                "replicatedGraphCount": 4,
                "enableReplicatedGraphs": True,
                "enableDistributedReplicatedGraphs": True,
                "globalReplicationFactor": 8,
            },
            8,
        ),
    ],
)
def test_the_global_replication_factor(settings, factor):
    options = SessionOptions()
    for name, value in settings.items():
        setattr(options, name, value)
    assert options.getGlobalReplicationFactor() == factor


def test_the_accumulation_factor_counts_where_accumulation_is_on():
    options = SessionOptions()
    options.accumulationFactor = 3
    with pytest.raises(popart_exception, match="is false, but accumulationFactor > 1"):
        options.getAccumulationFactor()
    options.enableGradientAccumulation = True
    assert options.getAccumulationFactor() == 3


@pytest.mark.parametrize("settings", [SessionOptions, AutomaticLossScalingSettings])
def test_every_option_says_what_it_does(settings):
    for field in dataclasses.fields(settings):
        setting = field.metadata["setting"]
        assert setting.meaning
        assert setting.effect in ("", setting.meaning)


def test_a_tensor_location_has_the_published_constructors():
    off, on = TensorStorage.OffChip, ReplicatedTensorSharding.On
    assert TensorLocation().storage is TensorStorage.OnChip
    assert TensorLocationSettings(off, 0).location == TensorLocation(off)
    short, long = TensorLocation(off, on), TensorLocation(off, TileSet.IO, TileSet.Compute, on)
    assert (short.storage, short.replicatedTensorSharding) == (off, on)
    assert (long.loadTileSet, long.replicatedTensorSharding) == (TileSet.IO, on)
    assert TensorLocation(storage=off) == TensorLocation(off) != short
    with pytest.raises(popart_exception, match="another type"):
        TensorLocation(on)
