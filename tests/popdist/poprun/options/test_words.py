import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from popdist.errors import UsageError
from popdist.poprun.options import other_launchers
from popdist.poprun.options.parser import parse
from popdist.poprun.options.serialize import config_text, provenance, respell
from popdist.poprun.options.table import BY_ALIAS, BY_NAME, OPTIONS
from popdist.poprun.options.types import BOOLEAN, FLAG


@pytest.mark.parametrize(
    "value",
    ["--num-instances=2", "--num-instances", "--num-inst", "-np", "-vv", "-x", "--", "-m", "-H"],
)
@pytest.mark.parametrize(
    "option", [o for o in OPTIONS if o.kind not in (FLAG, BOOLEAN)], ids=lambda option: option.name
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
        (["--nproc_per_node=gpu"], "-np N, for all hosts together"),
        (["-t", "3"], "--log-dir DIR"),
        (["--run-path"], "poprun -np N python FILE"),
        # horovodrun
        (["--num-proc", "2"], "-np N"),
        (["-p", "2222"], "an option of srun"),
        (["--ssh-port=2222"], "~/.ssh/config"),
        (["--min-np", "2", "--max-np", "4"], "--max-restarts N --min-instances N"),
        (["--no-stall-check"], "--stall-warning 0"),
        (["--stall-check-shutdown-time-seconds=9"], "--stall-timeout SECONDS"),
        (["--nics", "eth0"], "--host-subnet"),
        (["--autotune"], "HOROVOD_AUTOTUNE=1"),
        (["--mpi"], "poprun always uses MPI"),
        (["-cb"], "poprun doctor"),
        # mpirun of Open MPI, and mpiexec of others
        (["-hostfile", "hosts"], "did you mean --hostfile?"),
        (["-host", "a,b"], "did you mean --host?"),
        (["-machinefile", "hosts"], "--hostfile FILE"),
        (["-npernode", "2"], "-np N, for all hosts together"),
        (["-ppn", "2"], "-np N, for all hosts together"),
        (["-hosts", "a,b"], "--host HOST1,HOST2"),
        (["-genv", "A", "1"], "-x NAME=VALUE"),
        (["-wdir", "/tmp"], "cd DIR"),
        (["--report-bindings"], "--print-topology yes"),
        (["--bind-to", "core"], "--mpi-global-args='--bind-to ...'"),
        (["--nolocal"], "--mpi-global-args='--nolocal'"),
        (["-mca", "a", "b"], "--mpi-global-args='--mca NAME VALUE'"),
        (["--output", "tag"], "--tag-output yes"),
        # srun
        (["--output=log.txt"], "--output-filename DIR"),
        (["--export=ALL"], "-x NAME"),
        (["--time=10"], "--timeout 10m"),
        (["-N2"], "--host HOST1,HOST2"),
        (["-c4"], "-np N"),
        (["-l"], "--tag-output yes"),
        (["--gres=gpu:1"], "salloc"),
        (["--kill-on-bad-exit=1"], "whose instance fails"),
        (["--chdir=/tmp"], "cd DIR"),
        # accelerate and deepspeed
        (["--num_processes", "2"], "-np N"),
        (["--num_gpus=2"], "-np N"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_options_of_other_launchers_are_answered(words, hint):
    with pytest.raises(UsageError) as raised:
        parse([*words, "train.py"])
    assert hint in str(raised.value)


def test_answers_name_options_that_exist():
    known = {alias for option in OPTIONS for alias in (f"--{option.name}", *option.aliases)}
    for _, names, answer in other_launchers._TABLE:
        _, _, said = answer.partition("poprun: ")
        for word in said.replace(",", " ").split():
            if word.startswith("-"):
                assert word.partition("=")[0] in known, (names, answer)


def test_counts_may_be_attached():
    for word in ("-np2", "-n2"):
        assert parse([word, "true"]).values["num-instances"] == 2


def test_a_second_program_behind_a_colon_is_refused():
    with pytest.raises(UsageError, match="':' does not begin a second program"):
        parse(["-np", "1", "first", ":", "-np", "1", "second"])
    assert parse(["echo", ":", "x"]).program == ("echo", ":", "x")


@pytest.mark.parametrize("option", ["-np", "-n", "--num-instances", "--num-replicas=2", "--host"])
def test_options_go_before_the_program(option):
    with pytest.raises(UsageError, match="options of poprun go before the program"):
        parse(["/usr/bin/python3.11", option, "2", "x.py"])
    assert parse(["python", "-c", "1"]).program == ("python", "-c", "1")
    assert parse(["./run", "-np", "2"]).program == ("./run", "-np", "2")


@pytest.mark.parametrize(
    "name",
    [
        "--rankfiles",
        "--use_envs",
        "--verbosity-level",
        "--tunes",
        "--modules",
        "--topology",
        "--num-ipus",
        "--max-instances",
    ],
)
def test_only_what_is_near_is_suggested(name):
    with pytest.raises(UsageError) as raised:
        parse([name, "2", "x"])
    assert "did you mean" not in str(raised.value)


def test_slips_of_the_pen_get_a_suggestion():
    for slip, meant in (("--num-instnces", "--num-instances"), ("--time-out", "--timeout"),
                        ("--hosst", "--host"), ("--num_replica", "--num-replicas")):  # fmt: skip
        with pytest.raises(UsageError, match="did you mean") as raised:
            parse([f"{slip}=1", "x"])
        assert f"did you mean {meant}?" in str(raised.value)


@pytest.mark.parametrize("command", ["torchrun", "horovodrun", "accelerate launch"])
def test_all_options_of_installed_launchers_are_known(command):
    name, *words = command.split()
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        pytest.skip(f"{name} is not installed")
    done = subprocess.run(
        [path, *words, "--help"], capture_output=True, text=True, check=True,
        env={**os.environ, "COLUMNS": "4000"},
    )  # fmt: skip
    options = re.findall(r"^ +(-[\w, -]*)", done.stdout, re.MULTILINE)
    names = {each for text in options for each in re.findall(r"(?<![\w-])--[a-z][\w-]+", text)}
    assert len(names) > 25
    ours = {*BY_ALIAS, *(f"--{known}" for known in BY_NAME), "--module"}
    unknown = [
        each
        for each in sorted(names)
        if each.replace("_", "-") not in ours and not other_launchers.instead_of(each)
    ]
    assert not unknown


def named_options():
    """Each launcher with the names of its options, as its manual lists them."""
    text = Path(__file__).with_name("launchers.txt").read_text().partition("\n[")[2]
    for part in text.split("\n["):
        launcher, _, names = part.partition("]")
        yield pytest.param(names.split(), id=launcher)


@pytest.mark.parametrize("names", [*named_options()])
def test_all_options_of_other_launchers_are_known(names):
    assert len(names) > 25
    ours = {*(alias.lstrip("-") for alias in BY_ALIAS), *BY_NAME, "m", "module", "n", "np"}
    assert not [each for each in names if each not in ours and not other_launchers.instead_of(each)]


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ([], True), (["yes"], True), (["on"], True), (["no"], False), (["tf1"], "tf1"),
        (["tf1", "--sdk-names", "no"], False), (["no", "--sdk-names"], True),
    ],
)  # fmt: skip
def test_a_flag_with_words_takes_yes_and_no_as_other_options_do(words, value):
    line = parse(["--sdk-names", *words, "python", "x.py"])
    assert (line.values["sdk-names"], line.program) == (value, ("python", "x.py"))
    name = "" if value is True else f"={value or 'no'}"
    assert provenance(line).split()[1] == f"--sdk-names{name}"
    (word,) = respell(line, ())
    assert parse([word, "x"]).values["sdk-names"] == value
    assert config_text(line).splitlines().count(f"sdk-names = {json.dumps(value)}") == 1


def test_a_flag_that_a_variable_switches_off_stays_off():
    line = parse(["x"], {"POPRUN_VERBOSE": "no"})
    assert respell(line, ()) == []
    assert "verbose = false" in config_text(line)


def test_another_word_behind_a_flag_is_refused_or_the_program():
    with pytest.raises(UsageError, match="no value, yes, no, tf1"):
        parse(["--sdk-names=maybe", "x"])
    assert parse(["--sdk-names", "yes.py"]).program == ("yes.py",)
    assert parse(["-v", "yes"]).program == ("yes",)
