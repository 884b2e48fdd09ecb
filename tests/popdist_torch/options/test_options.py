import copy
import logging
import pickle

import pytest
import torch

import popdist_torch as poptorch
from popdist_torch.options.option_methods import declared, stored_only


def test_defaults_are_the_published_ones():
    options = poptorch.Options()
    options.outputMode(poptorch.OutputMode.Final)
    values = options.toDict()
    assert values["replication_factor"] == values["device_iterations"] == 1
    assert values["gradient_accumulation"] == 1
    assert values["accumulation_and_replication_reduction_type"] == 1
    assert values["meanAccumulationAndReplicationReductionStrategy"] == 1
    assert values["num_distributed_processes"] == 1
    assert values["distributed_process_id"] == 0
    assert values["output_mode"] == 0
    assert values["broadcast_buffers"] is True
    assert not options.exists("random_seed")


def test_calls_chain():
    options = poptorch.Options()
    assert options.deviceIterations(2).replicationFactor(3) is options
    training = options.Training
    assert training.gradientAccumulation(4) is training
    assert options.TensorLocations.setWeightLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(use=False).minElementsForOffChip(4)
    ).location_weight == {"onChip": False, "minElementsForOffChip": 4}


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
@pytest.mark.parametrize(
    "call",
    [
        lambda o: o.deviceIterations,
        lambda o: o.replicationFactor,
        lambda o: o.Training.gradientAccumulation,
    ],
)
def test_counts_are_whole_numbers_from_one(call, value):
    with pytest.raises(AssertionError, match="whole number"):
        call(poptorch.Options())(value)


def test_a_reduction_is_sum_or_mean():
    training = poptorch.Options().Training
    training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    for wrong in (poptorch.ReductionType.NoReduction, 1):
        with pytest.raises(ValueError, match="PD300"):
            training.accumulationAndReplicationReductionType(wrong)


def test_every_n_needs_a_period():
    options = poptorch.Options().outputMode(poptorch.OutputMode.EveryN, 3)
    assert options.output_return_period == 3
    with pytest.raises(AssertionError, match="period"):
        poptorch.Options().outputMode(poptorch.OutputMode.EveryN)
    assert poptorch.Options().anchorMode(poptorch.AnchorMode.All).output_mode == 2


def test_random_seed_seeds_torch():
    poptorch.Options().randomSeed(5)
    first = torch.rand(3)
    poptorch.Options().randomSeed(5)
    assert torch.equal(torch.rand(3), first)
    with pytest.raises(AssertionError):
        poptorch.Options().randomSeed("5")


def test_freezing_covers_every_group_and_copies_are_free():
    options = poptorch.Options()
    options._freeze()
    for change in (
        lambda o: o.deviceIterations(2),
        lambda o: o.Training.gradientAccumulation(2),
        lambda o: o.Precision.enableStochasticRounding(enabled=True),
        lambda o: o.Distributed.disable(),
        lambda o: o.TensorLocations.numIOTiles(32),
        lambda o: o._Popart.set("key", 1),
        lambda o: o.anchorTensor("a", "b"),
    ):
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            change(options)
        change(copy.deepcopy(options))
        change(options.clone())


def test_to_dict_needs_a_settled_output_mode():
    with pytest.raises(AssertionError, match="resolved output mode"):
        poptorch.Options().toDict()


def test_resolving_leaves_the_programs_options_alone():
    options = poptorch.Options()
    assert options.resolved(poptorch.OutputMode.All).output_mode == poptorch.OutputMode.All
    assert options.defaultOutputMode()


def test_printing_shows_every_group_and_no_identity():
    options = poptorch.Options()
    options.Training.gradientAccumulation(7)
    shown = repr(options)
    assert shown.startswith("Options(")
    for part in ("output_mode=OutputMode.Default", "gradient_accumulation=7", "_Popart"):
        assert part in shown
    assert " object at 0x" not in shown


def test_a_plain_process_of_an_mpi_job_is_distributed(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    options = poptorch.Options().replicationFactor(2)
    assert (options.Distributed.processId, options.Distributed.numProcesses) == (3, 4)
    assert options.placement.first_replica == 6
    assert options.placement.total_replicas == 8
    options.Distributed.disable()
    assert options.placement.total_replicas == 2


def test_variables_of_another_launcher_can_be_named(monkeypatch):
    monkeypatch.setenv("MY_SIZE", "2")
    monkeypatch.setenv("MY_RANK", "1")
    here = poptorch.Options().Distributed.setEnvVarNames("MY_SIZE", "MY_RANK")
    assert (here.processId, here.numProcesses) == (1, 2)
    monkeypatch.setenv("MY_RANK", "x")
    with pytest.raises(AssertionError, match="MY_RANK"):
        here.setEnvVarNames("MY_SIZE", "MY_RANK")
    with pytest.raises(AssertionError, match="smaller"):
        here.configureProcessId(2, 2)


def test_device_only_options_are_kept_and_say_so_once(caplog):
    stored_only.func.cache_clear()
    with caplog.at_level(logging.DEBUG, logger="popdist.torch"):
        for _ in range(2):
            options = poptorch.Options().setAvailableMemoryProportion({"IPU0": 0.2})
    assert options.available_memory_proportion == {"IPU0": 0.2}
    assert [r.message for r in caplog.records] == [
        "setAvailableMemoryProportion is stored, and has no effect on a host without IPUs"
    ]
    with pytest.raises(AssertionError, match="by device"):
        options.setAvailableMemoryProportion({"0": 0.2})


def test_wrong_values_of_device_only_options_are_errors():
    options = poptorch.Options()
    with pytest.raises(ValueError, match=r"torch\.float or torch\.half"):
        options.Precision.setPartialsType(torch.int32)
    with pytest.raises(AssertionError, match="between 32 and 192"):
        options.TensorLocations.numIOTiles(33)
    with pytest.raises(ValueError, match="tracing"):
        options.Jit.traceModel(trace_model=True)
    with pytest.raises(AssertionError, match="takes a bool"):
        options.Precision.enableFloatingPointExceptions(1)
    options.Precision.setPartialsType(torch.half)
    assert options.Precision.partials_type == "half"


def test_popart_options_are_kept_by_name():
    options = poptorch.Options()
    options._Popart.set("outlineThreshold", 10.0)
    options._Popart.setPatterns({"TiedGather": True})
    assert options._Popart.options["outlineThreshold"] == 10.0
    assert options._Popart.patterns == {"TiedGather": True}


def test_an_offline_target_is_one_that_is_never_attached_to():
    options = poptorch.Options().useOfflineIpuTarget()
    assert options.connection_type == poptorch.ConnectionType.Never


def test_replicas_may_share_input():
    options = poptorch.Options().inputReplicaGrouping(2, poptorch.CommGroupType.Orthogonal)
    assert (options.input_group_size, options.input_cgt) == (2, poptorch.CommGroupType.Orthogonal)
    with pytest.raises(AssertionError, match="Consecutive or"):
        options.inputReplicaGrouping(2, poptorch.CommGroupType.All)


@pytest.mark.parametrize("enabled", [True, 1, 2])
def test_synthetic_data_has_two_names(enabled):
    assert not poptorch.Options().synthetic_data
    options = poptorch.Options().enableSyntheticData(enabled)
    assert options.synthetic_data
    assert not options.enableSyntheticData(enabled=False).synthetic_data
    options._Popart.set("syntheticDataMode", 2)
    assert options.synthetic_data


def test_equal_options_have_equal_values_everywhere():
    assert poptorch.Options() == poptorch.Options()
    other = poptorch.Options()
    other.Precision.enableStochasticRounding(enabled=True)
    assert other != poptorch.Options()
    assert other.clone() == other
    assert other != 1


@pytest.mark.parametrize(
    "call",
    [
        lambda o: o.logDir(None),
        lambda o: o.modelName(3),
        lambda o: o.enableExecutableCaching(3),
        lambda o: o.enableProfiling(3),
        lambda o: o.setAvailableMemoryProportion(3),
        lambda o: o.setAvailableMemoryProportion({"IPU0": "a lot"}),
        lambda o: o.updatableNamedBuffers("buffer"),
        lambda o: o.TensorLocations.setWeightLocation("chip"),
        lambda o: o._Popart.set("name"),
        lambda o: o._Popart.set("name", 1, 2),
    ],
)
def test_values_that_make_no_sense_are_errors_with_a_code(call):
    with pytest.raises(AssertionError, match="PD300"):
        call(poptorch.Options())


def test_options_travel_to_other_processes():
    options = poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution("a", "b"))
    options.Training.gradientAccumulation(3)
    twin = pickle.loads(pickle.dumps(options))  # noqa: S301 - our own
    assert twin == options
    assert twin.deviceIterations(2) != options


def test_a_period_without_every_n_is_ignored_aloud(caplog):
    with caplog.at_level(logging.INFO, logger="popdist.torch"):
        options = poptorch.Options().outputMode(poptorch.OutputMode.All, 3)
    assert options.output_return_period == 1
    assert "only EveryN" in caplog.text


PUBLISHED = {
    "": "deviceIterations replicationFactor inputReplicaGrouping broadcastBuffers randomSeed "
    "outputMode anchorMode setExecutionStrategy autoRoundNumIPUs setAvailableMemoryProportion "
    "enableExecutableCaching anchorTensor useOfflineIpuTarget enableSyntheticData "
    "enableStableNorm relaxOptimizerAttributesChecks logDir maxRepeatLogs modelName useIpuModel "
    "useIpuId connectionType syncPattern logCycleCount enableProfiling disableModuleNamescope "
    "updatableNamedBuffers sourceLocationExcludes appendToLocationExcludes "
    "showCompilationProgressBar",
    "Training": "gradientAccumulation accumulationAndReplicationReductionType "
    "setMeanAccumulationAndReplicationReductionStrategy setAutomaticLossScaling "
    "setConvolutionDithering",
    "Precision": "setPartialsType enableStochasticRounding enableFloatingPointExceptions "
    "halfFloatCasting runningStatisticsAlwaysFloat autocastEnabled autocastPolicy",
    "Distributed": "disable setEnvVarNames configureProcessId IPUoFConfigFiles",
    "TensorLocations": "setActivationLocation setWeightLocation setOptimizerLocation "
    "setAccumulatorLocation numIOTiles",
    "Jit": "traceModel",
    "_Popart": "set setPatterns",
}
ADDED = {"Jit": "torchCompile"}


@pytest.mark.parametrize("group", PUBLISHED)
def test_every_published_method_is_there_and_says_what_it_does(group):
    options = poptorch.Options()
    owner = getattr(options, group) if group else options
    found = {path.rpartition(".")[2]: what for path, what, _ in declared(type(owner))}
    assert set(found) == set(f"{PUBLISHED[group]} {ADDED.get(group, '')}".split())
    assert all(what.endswith(".") for what in found.values())
    for other in ("clone", "loadFromFile", "from_json", "toDict", "defaultAnchorMode"):
        assert callable(getattr(options, other))


def test_a_method_takes_its_published_argument_only():
    options = poptorch.Options()
    options.deviceIterations(device_iterations=2)
    options.TensorLocations.setWeightLocation(location=poptorch.TensorLocationSettings())
    for wrong in ({"iterations": 2}, {}):
        with pytest.raises(TypeError, match="iterations"):
            options.deviceIterations(**wrong)
