"""The list of what ``popart`` publishes says of this package what is so."""

import dataclasses
import re

import pytest

import popdist
import popdist_onnx as popart
from popdist.sdk.surface import load
from popdist_onnx.builder.graphcore_methods import METHODS
from popdist_onnx.builder.onnx_methods import ai_onnx

LISTED = {entry.name: entry for entry in load("popart").entries}


def test_every_public_name_is_listed_but_our_own():
    own = {"Callback", "Checkpoint", "EarlyStopping", "History", "Trainer", "train"}
    own |= {"from_torch", "global_mean", "to_torch"}
    assert {name for name in popart.__all__ if name not in LISTED} == own


@pytest.mark.parametrize("field", dataclasses.fields(popart.SessionOptions), ids=lambda f: f.name)
def test_options_are_listed_by_what_depends_on_them(field):
    entry = LISTED[f"SessionOptions.{field.name}"]
    assert (entry.status == "works") == bool(field.metadata["setting"].effect)


def test_every_operator_is_listed():
    assert {f"Builder.aiGraphcore.{one.name}" for one in METHODS} <= LISTED.keys()
    refused = {
        one.name for one in METHODS if LISTED[f"Builder.aiGraphcore.{one.name}"].status == "refused"
    }
    assert refused == set()
    for opset in (10, 11):
        operators = {name for name in vars(ai_onnx(opset)) if not name.startswith("_")}
        listed = {name.rpartition(".")[2] for name in LISTED if ".aiOnnx" in name}
        assert operators - {"domain", "version"} <= listed


def test_names_of_release_2_2():
    """Those that A6 of the conformance notes found absent."""
    assert popart.Builder().aiOnnx.version == popart.defaultAiOnnxOpset == 10
    options = popart.SessionOptions()
    options.accumulateOuterFragmentSettings = popart.AccumulateOuterFragmentSettings(
        popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized, [0]
    )
    options.autodiffSettings.stitchStrategy = popart.AutodiffStitchStrategy.AddFwdOutputs
    serialization = options.batchSerializationSettings
    serialization.method = popart.BatchSerializationMethod.Loop
    serialization.transformContext = popart.BatchSerializationTransformContext.Forward
    serialization.batchSchedule = popart.BatchSerializationBatchSchedule.Scheduler
    options.executionPhaseSettings.schedule = popart.ExecutionPhaseSchedule.Batch
    options.executionPhaseSettings.weightIOSchedule = popart.ExecutionPhaseIOSchedule.OnDemand
    options.dotChecks = {popart.DotCheck.Final, popart.DotCheck.Fwd0}
    options.numIOTiles = popart.NumIOTiles(32)
    options.enableMergeExchange, options.groupHostSync = False, True
    assert options.numIOTiles == 32
    with pytest.raises(popart.popart_exception, match="has no option stitchStrategie"):
        options.autodiffSettings.stitchStrategie = 1
    assert popart.versionString() == popdist.__version__
    assert popdist.__version__.startswith(".".join(map(str, popart.versionNumber())))
    assert re.fullmatch("[0-9a-f]{64}", popart.packageHash())


def test_operations_are_described_as_onnx_describes_them():
    found = popart.getSupportedOperationsDefinition()
    assert list(found) == popart.getSupportedOperations()
    conv = found[popart.OperatorIdentifier("ai.onnx", "Conv", 11)]
    assert [one.name for one in conv.inputs] == ["X", "W", "B"]
    assert "tensor(float16)" in conv.inputs[0].supportedTensors
    assert re.fullmatch(conv.attributes["auto_pad"].supportedValuesRegex, "SAME_UPPER")
    assert {"pads", "group", "auto_pad"} < set(conv.attributes)
    nll = found[popart.OperatorIdentifier("ai.graphcore", "Nll", 1)]
    assert "ignoreIndex" in nll.attributes


def test_names_that_are_close_are_suggested():
    with pytest.raises(AttributeError, match="did you mean 'Builder'"):
        _ = popart.Bilder
    with pytest.raises(AttributeError, match="did you mean 'DistributedOptimizer'"):
        _ = popart.horovod.DistributedOptimiser


def test_the_older_name_of_the_reduction_type():
    options = popart.SessionOptions()
    options.accumulationReductionType = popart.ReductionType.Mean
    assert options.accumulationAndReplicationReductionType is popart.ReductionType.Mean
    assert options.accumulationReductionType is popart.ReductionType.Mean
    assert not hasattr(options, "accumulationReduction")


def test_a_process_that_is_alone_broadcasts_to_itself():
    from tests.popdist_onnx import networks

    session = popart.TrainingSession(
        networks.perceptron(2),
        popart.DataFlow(1, ["loss"]),
        "loss",
        popart.ConstSGD(0.1),
        popart.DeviceManager().createCpuDevice(),
    )
    session.broadcastWeights()
    with pytest.raises(popart.popart_exception, match="no process of this rank"):
        session.broadcastWeights(1)
