"""Command line to values: the rules of the original launcher."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popdist.errors import UsageError
from popdist.poprun.options.parser import parse
from popdist.poprun.options.table import OPTIONS
from popdist.poprun.options.types import FALSE, TRUE

PROGRAM = ("python3", "train.py")


def test_defaults():
    line = parse(PROGRAM)
    assert line.given == frozenset()
    assert line.program == PROGRAM
    assert line.values["ipus-per-replica"] == 1
    assert line.values["num-replicas"] is None
    assert line.values["print-topology"] is False
    assert line.values["mpi-global-args"] == ()


@pytest.mark.parametrize("words", [["--num-instances", "2"], ["--num-instances=2"], ["-np", "2"]])
def test_a_value_is_attached_or_follows(words):
    assert parse([*words, *PROGRAM]).values["num-instances"] == 2


@pytest.mark.parametrize("words", [["-H", "a,b"], ["-Ha,b"], ["--host=a,b"], ["--host", "a,b"]])
def test_host_in_all_its_spellings(words):
    assert parse([*words, *PROGRAM]).values["host"] == "a,b"


def test_a_value_may_look_like_an_option():
    line = parse(["--mpi-global-args", "--tag-output", *PROGRAM])
    assert line.values["mpi-global-args"] == ("--tag-output",)


def test_repeatable_options_are_collected_in_order():
    line = parse(["--mpi-local-args=-x A", "--mpi-local-args", "-x B", "-x", "C=1", "-x=D", "p"])
    assert line.values["mpi-local-args"] == ("-x A", "-x B")
    assert line.values["env"] == ("C=1", "D")


@pytest.mark.parametrize("text", [*TRUE, *FALSE, "YES", "False"])
def test_booleans(text):
    line = parse([f"--print-topology={text}", "p"])
    assert line.values["print-topology"] is (text.lower() in TRUE)


@pytest.mark.parametrize("text", ["", "2", "y", "n", "ja", "True ", "10"])
def test_other_booleans_are_refused(text):
    with pytest.raises(UsageError, match="yes, no, true, false, on, off, 1 or 0"):
        parse([f"--print-topology={text}", "p"])


def test_unique_prefixes_are_enough():
    assert parse(["--num-inst", "3", "p"]).values["num-instances"] == 3
    assert parse(["--host", "a", "p"]).values["host"] == "a"  # exact, though --hostfile exists too


def test_an_ambiguous_prefix_lists_the_candidates():
    with pytest.raises(UsageError, match="--num-instances, --num-replicas") as caught:
        parse(["--num", "3", "p"])
    assert caught.value.code == "PD100"


@pytest.mark.parametrize(
    ("words", "verbosity"), [(["-v"], (1, 0)), (["-vv"], (0, 1)), (["--vv"], (0, 1))]
)
def test_verbosity(words, verbosity):
    values = parse([*words, "p"]).values
    assert (values["verbose"], values["vv"]) == verbosity


def test_options_after_the_program_belong_to_the_program():
    line = parse(["--num-instances", "2", "prog", "--num-replicas", "3", "-x", "--help"])
    assert line.program == ("prog", "--num-replicas", "3", "-x", "--help")
    assert line.values["num-replicas"] is None


def test_two_dashes_end_the_options():
    assert parse(["--", "--strange-program", "-v"]).program == ("--strange-program", "-v")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--gloo"], "leave it out, as poprun always uses MPI"),
        (["--ntasks=2"], "with poprun: -np N"),
        (["-c", "2"], "with poprun: -np N"),
        (["--nproc_per_node=2"], "with poprun: -np N"),
        (["-mca", "btl", "self"], "--mpi-global-args='--mca NAME VALUE'"),
        (["--tag-output", "no-such-program"], "--tag-output yes, and then the program"),
    ],
)
def test_options_as_other_launchers_have_them_get_what_to_write_here(words, hint):
    with pytest.raises(UsageError, match=re.escape(hint)):
        parse([*words, "train.py"])


def test_boolean_options_mean_yes_where_they_stand_alone():
    line = parse(["--dry-run", "--tag-output", "-np", "2", "--print-topology", "sh", "-c", "true"])
    names = ("dry-run", "tag-output", "print-topology")
    assert [line.values[name] for name in names] == [True] * 3
    assert line.values["num-instances"] == 2
    assert line.program == ("sh", "-c", "true")
    assert parse(["--dry-run"]).values["dry-run"] is True
    # "yes" is a program too, but a value here; and a slip is no program.
    assert parse(["--dry-run", "yes", "sh"]).program == ("sh",)
    assert parse(["--dry-run", "no", "sh"]).values["dry-run"] is False
    with pytest.raises(UsageError, match="accepted: yes, no"):
        parse(["--dry-run", "ye", "sh"])


def test_an_unknown_option_gets_a_suggestion():
    with pytest.raises(UsageError, match="did you mean --num-replicas"):
        parse(["--num-replica5", "2", "p"])
    with pytest.raises(UsageError, match="did you mean -np"):
        parse(["--np", "2", "p"])


@pytest.mark.parametrize("word", ["--zzz", "-q", "-", "--=1"])
def test_what_is_no_option_is_refused_or_the_program(word):
    if word == "-":
        assert parse([word]).program == ("-",)
    else:
        with pytest.raises(UsageError, match="PD100"):
            parse([word, "p"])


def test_a_missing_value_is_named():
    with pytest.raises(UsageError, match="--num-replicas needs a value"):
        parse(["--num-replicas"])


def test_a_flag_takes_no_value():
    with pytest.raises(UsageError, match="no value"):
        parse(["--verbose=1", "p"])


def test_contradicting_repetition_is_refused():
    with pytest.raises(UsageError, match="given 2 times"):
        parse(["--num-replicas=2", "--num-replicas=4", "p"])


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "two", "", "1" * 10, "٣"])
def test_malformed_counts(text):
    with pytest.raises(UsageError, match="a whole number, 1 or more"):
        parse([f"--num-replicas={text}", "p"])


FUZZ = st.lists(
    st.sampled_from([f"--{option.name}" for option in OPTIONS] + ["-v", "-H", "-x", "--", ":", "p"])
    | st.builds(
        "--{}={}".format, st.sampled_from([option.name for option in OPTIONS]), st.text(max_size=8)
    )
    | st.text(max_size=8),
    max_size=8,
)


@given(FUZZ)
def test_any_command_line_is_read_or_refused(words):
    try:
        line = parse(words)
    except UsageError:
        return
    assert len(line.program) <= len(words)
    assert words[len(words) - len(line.program) :] == list(line.program)
    assert line.values.keys() == {option.name for option in OPTIONS}
