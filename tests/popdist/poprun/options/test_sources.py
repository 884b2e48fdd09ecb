"""Defaults < file < environment < command line, and where each value is said to come from."""

import pytest

from popdist.errors import UsageError
from popdist.poprun.options import types
from popdist.poprun.options.parser import parse
from popdist.poprun.options.serialize import provenance
from popdist.poprun.options.table import OPTIONS

TEXTS = {
    types.FLAG: ("yes", True),
    types.BOOLEAN: ("on", True),
    types.INSTANCES: ("3", 3),
    types.COUNT: ("3", 3),
    types.INDEX: ("0", 0),
    types.PORT: ("8080", 8080),
    types.SECONDS: ("2m", 120.0),
}


def example(option):
    """A text that the option accepts, and its value."""
    if option.kind.choices and option.kind is not types.BOOLEAN:
        return option.kind.choices[-1], option.kind.choices[-1]
    text, value = TEXTS.get(option.kind, ("NAME", "NAME"))
    return text, (value,) if option.repeatable else value


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_on_the_command_line(option):
    text, value = example(option)
    spellings = [f"--{option.name}", *option.aliases]
    for name in spellings:
        forms = [[name]] if option.kind is types.FLAG else [[name, text], [f"{name}={text}"]]
        for words in forms:
            line = parse([*words, "program", "--help"]) if option.name != "config" else None
            if line is None:
                continue
            assert line.values[option.name] == value
            assert (line.given, line.program) == ({option.name}, ("program", "--help"))


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.variable], ids=lambda o: o.name)
def test_every_option_from_the_environment_and_a_file(option, tmp_path):
    if option.name == "config":
        return
    text, value = example(option)
    line = parse(["p"], {option.variable: text})
    assert line.values[option.name] == value
    assert line.origins == {option.name: option.variable}
    path = tmp_path / "job.toml"
    for key in (option.name, option.name.replace("-", "_")):
        path.write_text(f'{key} = "{text}"\n')
        line = parse([f"--config={path}", "p"])
        assert line.values[option.name] == value
        assert line.origins[option.name] == str(path)


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.typed_only], ids=lambda o: o.name)
def test_what_counts_on_the_command_line_only(option, tmp_path):
    name = f"POPRUN_{option.name.upper().replace('-', '_')}"
    line = parse(["p"], {name: "1"})
    assert line.given == frozenset()
    assert line.notes == (f"{name} is not read: that option counts on the command line only",)
    path = tmp_path / "job.toml"
    path.write_text(f'{option.name} = "1"\n')
    with pytest.raises(UsageError, match="cannot be set in a file") as caught:
        parse([f"--config={path}", "p"])
    assert caught.value.code == "PD106"


def test_the_nearest_source_wins(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text("num-instances = 2\nnum-replicas = 4\nipus-per-replica = 2\n")
    environ = {"POPRUN_CONFIG": str(path), "POPRUN_NUM_REPLICAS": "6", "POPRUN_NUM_INSTANCES": "3"}
    line = parse(["--num-instances=1", "p"], environ)
    assert line.values["num-instances"] == 1
    assert line.values["num-replicas"] == 6
    assert line.values["ipus-per-replica"] == 2
    assert line.values["print-topology"] is False
    assert line.origins == {
        "config": "POPRUN_CONFIG",
        "num-instances": f"the command line, before POPRUN_NUM_INSTANCES and {path}",
        "num-replicas": f"POPRUN_NUM_REPLICAS, before {path}",
        "ipus-per-replica": str(path),
    }
    shown = provenance(line).splitlines()
    assert ["#", "--ipus-per-replica=2", "from", str(path)] in [row.split() for row in shown]
    assert shown[-1].split() == ["#", "all", "other", "options", "have", "their", "defaults"]


def test_lists_are_replaced_by_the_nearest_source_not_joined(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('env = ["A=1"]\n')
    words = [f"--config={path}", "p"]
    assert parse(words).values["env"] == ("A=1",)
    assert parse(words, {"POPRUN_ENV": "B=2\nC"}).values["env"] == ("B=2", "C")
    assert parse(["-xD", *words], {"POPRUN_ENV": "B=2"}).values["env"] == ("D",)


def test_options_that_exclude_each_other_obey_the_nearest_source(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('host = "a"\n')
    line = parse([f"--config={path}", "--hostfile=f", "p"])
    assert (line.values["host"], line.values["hostfile"]) == (None, "f")
    assert "host" not in line.given
    line = parse(["--host=b", "p"], {"POPRUN_HOSTFILE": "f"})
    assert (line.values["host"], line.values["hostfile"]) == ("b", None)
    with pytest.raises(UsageError, match="exclude each other") as caught:
        parse(["--host=b", "--hostfile=f", "p"])
    assert caught.value.code == "PD101"


def test_help_needs_no_readable_configuration():
    assert parse(["--help", "--config=/nowhere"], {"POPRUN_NUM_REPLICAS": "x"}).values["help"] == 1


def test_variables_that_are_no_options():
    assert parse(["p"], {"POPRUN_NUM_REPLICA": "2"}).notes == (
        "POPRUN_NUM_REPLICA sets no option; did you mean POPRUN_NUM_REPLICAS?",
    )
    assert parse(["p"], {"POPRUN_ZZZ": "2"}).notes == ()


@pytest.mark.parametrize(("text", "name"), [("TRACE", "vv"), ("info", "verbose"), ("WARN", None)])
def test_the_published_variable_for_the_log_level(text, name):
    assert parse(["p"], {"POPRUN_LOG_LEVEL": text}).given == ({name} if name else set())


@pytest.mark.parametrize(
    "environ", [{"POPRUN_NUM_REPLICAS": ""}, {"POPRUN_HOST": " "}, {"POPRUN_LOG_LEVEL": "loud"},
                {"POPRUN_VERBOSE": "2"}, {"POPRUN_STATUS": "maybe"}],
)  # fmt: skip
def test_malformed_variables_are_named(environ):
    with pytest.raises(UsageError, match=next(iter(environ))):
        parse(["p"], environ)


def test_secrets_are_not_shown():
    line = parse(["-x", "A_TOKEN=s3cr3t", "--mpi-local-args=-x B_TOKEN=s3cr3t -x C=1", "p"])
    assert "s3cr3t" not in provenance(line)
    assert "C=1" in provenance(line)
