import sys

import pytest

from popdist.errors import UsageError
from popdist.poprun.options.parser import parse
from popdist.poprun.options.table import OPTIONS
from popdist.poprun.options.types import FLAG


@pytest.mark.parametrize(
    "value",
    ["--num-instances=2", "--num-instances", "--num-inst", "-np", "-vv", "-x", "--", "-m", "-H"],
)
@pytest.mark.parametrize(
    "option", [o for o in OPTIONS if o.kind is not FLAG], ids=lambda option: option.name
)
def test_an_option_is_no_value_of_another_unless_attached(option, value):
    if option.takes_options:  # mpirun's own may have the same names
        parse([f"--{option.name}", value, "true"])
        return
    with pytest.raises(UsageError, match="PD100"):
        parse([f"--{option.name}", value, "true"])


def test_a_value_that_looks_like_an_option_is_taken_when_it_is_attached():
    line = parse(["--json=--num-instances=2", "echo", "one"])
    assert (line.values["json"], line.program) == ("--num-instances=2", ("echo", "one"))
    with pytest.raises(UsageError, match="--json=--num-instances=2 if that is the value"):
        parse(["--json", "--num-instances=2", "echo", "one"])
    line = parse(["--mpi-global-args", "--tag-output", "echo"])
    assert line.values["mpi-global-args"] == ("--tag-output",)
    assert parse(["--json", "-unlike-any", "echo"]).values["json"] == "-unlike-any"


@pytest.mark.parametrize("word", ["-m", "--module"])
def test_a_module_is_run_by_this_python(word):
    line = parse(["-np", "2", word, "package.train", "--json", "x"])
    assert line.program == (sys.executable, "-m", "package.train", "--json", "x")
    assert line.values["json"] is None
    with pytest.raises(UsageError, match="needs the name of a module"):
        parse(["-np", "2", word])


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--no-python"], "leave it out: poprun starts the program as it is named"),
        (["--rdzv_backend=c10d"], "mpirun brings the instances together"),
        (["--master-addr=a"], "an address and a free port"),
        (["--nnodes", "2"], "--host HOST1,HOST2"),
    ],
)
def test_torchruns_options_are_answered(words, hint):
    with pytest.raises(UsageError) as raised:
        parse([*words, "train.py"])
    assert hint in str(raised.value)
