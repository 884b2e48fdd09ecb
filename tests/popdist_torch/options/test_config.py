"""Options from a file and from JSON: calls, and nothing but calls."""

import pytest
import torch

import popdist_torch as poptorch

FILE = """
# a comment
deviceIterations(2)   # behind a call too
Training.gradientAccumulation(gradient_accumulation=4)
Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
outputMode(OutputMode.EveryN, output_return_period=2)
setAvailableMemoryProportion({"IPU0": 0.5})
Precision.setPartialsType(torch.half).enableStochasticRounding(True)
TensorLocations.setOptimizerLocation(
    poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(-3 + 7)
)
setExecutionStrategy(PipelinedExecution(Stage("a", "b").ipu(1), "c"))
_Popart.set("outlineThreshold", 10.0)
"""


@pytest.fixture
def load(tmp_path):
    def load(text, options=None):
        path = tmp_path / "options.conf"
        path.write_text(text)
        return (options or poptorch.Options()).loadFromFile(str(path))

    return load


def test_a_file_says_what_a_program_would(load):
    by_file = load(FILE.replace("-3 + 7", "4"))
    by_calls = (
        poptorch.Options()
        .deviceIterations(2)
        .outputMode(poptorch.OutputMode.EveryN, 2)
        .setAvailableMemoryProportion({"IPU0": 0.5})
        .setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage("a", "b").ipu(1), "c"))
    )
    by_calls.Training.gradientAccumulation(4).accumulationAndReplicationReductionType(
        poptorch.ReductionType.Sum
    )
    by_calls.Precision.setPartialsType(torch.half).enableStochasticRounding(enabled=True)
    by_calls.TensorLocations.setOptimizerLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(use=False).minElementsForOffChip(4)
    )
    by_calls._Popart.set("outlineThreshold", 10.0)
    assert by_file == by_calls
    assert by_file.toDict() == by_calls.toDict()
    assert by_file != by_calls.clone().deviceIterations(3)


@pytest.mark.parametrize(
    "line",
    [
        "deviceIterations(2",
        "deviceIterations",
        "deviceIterations(2); import os",
        "import os",
        "__import__('os').system('true')",
        "deviceIterations(__import__('os').system('true'))",
        "deviceIterations(open('/etc/passwd'))",
        "deviceIterations(len([1]))",
        "deviceIterations(torch.cuda.device_count())",
        "outputMode(OutputMode.Nothing)",
        "outputMode(OutputMode.All.__class__)",
        "deviceIterations('2')",
        "deviceIterations(0)",
        "deviceIterations(2, 3)",
        "deviceIteration(2)",
        "Training.nothing(2)",
        "Nothing.gradientAccumulation(2)",
        "Training.Training.gradientAccumulation(2)",
        "clone()",
        "loadFromFile('/etc/passwd')",
        "_freeze()",
        "__init__()",
        "TensorLocations.setWeightLocation(TensorLocationSettings()._freeze())",
        "setExecutionStrategy(Stage)",
        "lambda: 1",
        "(lambda: 1)()",
        "deviceIterations(*[1])",
    ],
)
def test_what_is_no_such_call_is_an_error_with_line_and_file(load, line):
    with pytest.raises(poptorch.options.ConfigFileError, match=r"line 3 of .*options\.conf"):
        load(f"replicationFactor(2)\n\n{line}\n")


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(poptorch.options.ConfigFileError, match="cannot read"):
        poptorch.Options().loadFromFile(tmp_path / "missing")


def test_frozen_options_load_nothing(load):
    options = poptorch.Options()
    options._freeze()
    with pytest.raises(poptorch.options.ConfigFileError, match="frozen"):
        load("deviceIterations(2)", options)


def test_json_lists_calls():
    options = poptorch.Options().from_json(
        '{"Training.gradientAccumulation": 4, "outputMode": ["OutputMode.EveryN", 3],'
        ' "_Popart.set": ["key", [1, 2]], "enableExecutableCaching": null}'
    )
    assert options.Training.gradient_accumulation == 4
    assert (options.output_mode, options.output_return_period) == (1, 3)
    assert options._Popart.options["key"] == [1, 2]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[1]", "an object"),
        ("{", "not valid JSON"),
        ('{"Training.nothing": 1}', "no such method"),
        ('{"Nothing.set": 1}', "no such group"),
        ('{"clone": []}', "no such method"),
        ('{"outputMode": "OutputMode.No"}', "not a plain value"),
        ('{"deviceIterations": 0}', "whole number"),
    ],
)
def test_wrong_json_is_an_error(text, what):
    with pytest.raises(AssertionError, match=what):
        poptorch.Options().from_json(text)


def test_the_environment_gives_defaults(monkeypatch):
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"deviceIterations": 5}')
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "/cache")
    options = poptorch.Options()
    assert (options.device_iterations, options.cachePath) == (5, "/cache")
    assert not options.enableExecutableCaching(None).exists("cachePath")


def test_lines_may_be_indented_and_errors_name_the_right_one(load):
    made = load("""
        deviceIterations(2)
            Training.gradientAccumulation(4)
      maxRepeatLogs(None)
    """)
    assert made.device_iterations == 2
    assert made.Training.gradient_accumulation == 4
    assert made.max_repeat_logs is None
    assert made.clone() == made
    with pytest.raises(poptorch.options.ConfigFileError, match="line 3 of"):
        load("\n  deviceIterations(2)\n    nothing(1)\n")


def test_an_option_of_a_group_is_told_where_it_is():
    options = poptorch.Options()
    with pytest.raises(AttributeError, match=r"opts\.Training\.gradientAccumulation"):
        options.gradientAccumulation(4)
    with pytest.raises(AttributeError, match=r"opts\.Precision\.enableStochasticRounding"):
        options.enableStochasticRounding(enabled=True)
