import copy

import pytest

import popdist_torch as poptorch
from popdist_torch import AutoStage, Phase, PipelinedExecution, Stage


def test_a_pipeline_is_made_of_stages_or_makes_its_own():
    pipeline = PipelinedExecution(Stage("a", "b").ipu(1), "c", ["d", "e"])
    assert pipeline.stage("b").blocks == ["a", "b"]
    assert pipeline.stage("e").ipu(0).blocks == ["d", "e"]
    assert repr(pipeline.stage("a")) == "Stage('a', 'b').ipu(1)"
    assert repr(pipeline).endswith("Stage('c'), Stage('d', 'e').ipu(0))")
    assert repr(PipelinedExecution()) == "PipelinedExecution(AutoStage.SameAsIpu)"
    assert PipelinedExecution() == PipelinedExecution(AutoStage.SameAsIpu)
    assert PipelinedExecution() != PipelinedExecution(AutoStage.AutoIncrement)
    with pytest.raises(AssertionError, match="no stage has such a block"):
        pipeline.stage("z")


def test_phases_hold_stages():
    phase = Phase("a", Stage("b")).ipus(3, 4)
    assert [repr(s) for s in phase.stages] == ["Stage('a').ipu(3)", "Stage('b').ipu(4)"]
    with pytest.raises(AssertionError, match="one IPU for each"):
        phase.ipus(1)
    strategy = poptorch.SerialPhasedExecution(phase, "c", ["d", "e"])
    assert strategy.phase(0) is phase
    assert [s.blocks for s in strategy.phase(2).stages] == [["d"], ["e"]]
    strategy.stage("e").ipu(5)
    assert repr(strategy.phase(2).stages[1]) == "Stage('e').ipu(5)"
    with pytest.raises(AssertionError, match="no stage has such a block"):
        strategy.stage("z")
    strategy.useSeparateBackwardPhase().setTensorsLiveness(poptorch.Liveness.AlwaysLive)
    assert poptorch.ParallelPhasedExecution(AutoStage.AutoIncrement) is not None


@pytest.mark.parametrize(
    "make",
    [
        lambda: PipelinedExecution("a", Stage("b", "a")),
        lambda: poptorch.ParallelPhasedExecution("a", ["b", "a"]),
    ],
)
def test_a_block_is_in_one_stage_only(make):
    with pytest.raises(AssertionError, match="in two stages"):
        make()


@pytest.mark.parametrize("blocks", [(), ("",), (1.5,)])
def test_a_stage_needs_blocks(blocks):
    with pytest.raises(AssertionError, match="names of blocks"):
        Stage(*blocks)


def test_options_keep_a_strategy():
    options = poptorch.Options()
    assert options.execution_strategy == PipelinedExecution()
    for strategy in (
        poptorch.ShardedExecution(),
        poptorch.SerialPhasedExecution("a"),
        PipelinedExecution(AutoStage.AutoIncrement),
    ):
        options.setExecutionStrategy(strategy)
        assert options.execution_strategy == strategy
        assert repr(strategy) in repr(options)
    options.setExecutionStrategy(AutoStage.SameAsIpu)
    assert copy.deepcopy(options).execution_strategy == PipelinedExecution()
    with pytest.raises(AssertionError, match="execution strategy"):
        options.setExecutionStrategy("pipelined")
