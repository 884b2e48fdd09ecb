"""Large jobs: the same contexts in a file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popdist.errors import LaunchError
from popdist.poprun.plan.command import Command, Context, check_lengths, into_file, needs_file
from popdist.poprun.protocol.guard_argv import (
    packed_variables,
    packed_word,
    plain_words,
    read_words,
)

START = ("/opt/python", "-I", "-S", "/opt/popdist/guard_start.py")
WORDS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1
)
SETTINGS = st.dictionaries(
    st.text("abcdefgh.", min_size=1).filter(lambda name: name != "colon"),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
)


def command(number=2, program=("true",), options=("-np", "1"), settings=("index=0", "show=1")):
    context = Context(options, START, settings)
    return Command(("/opt/mpirun", "--bind-to", "none"), (context,) * number, program, {"A": "1"})


@given(SETTINGS, WORDS)
def test_a_guard_reads_what_was_written_in_either_form(settings, program):
    words = [f"{name}={value}" for name, value in settings.items()] or ["index=0"]
    expected = dict(word.split("=", 1) for word in words)
    found, read = read_words(plain_words(words, program), {})
    assert ({k: v for k, v in found.items() if k != "colon"}, read) == (expected, program)
    environ = {**packed_variables(words[1:], program), "OTHER": "1"}
    assert read_words([packed_word(words[:1])], environ) == (expected, program)
    assert environ == {"OTHER": "1"}


def test_a_long_program_takes_several_variables():
    program = ["x" * 200_000, "\udcff", ":"]
    variables = packed_variables(["a=b"], program)
    assert len(variables) > 3
    assert all(len(value) <= 100_000 for value in variables.values())
    assert read_words([packed_word(["index=0"])], dict(variables))[1] == program


def test_short_commands_stay_on_the_command_line():
    assert not needs_file(command(), 2_000_000)
    assert needs_file(command(10_000), 2_000_000)
    assert needs_file(command(2, ("x" * 300_000,)), 2_000_000)
    assert command().arguments.count(":") == 1


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (command(1, ("echo", "é" * 70_000)), "an argument or a variable is longer"),
        (command(1, ("echo", *["x" * 100_000] * 30)), "together are longer"),
    ],
)
def test_what_the_kernel_would_refuse(made, what):
    with pytest.raises(LaunchError, match=what) as caught:
        check_lengths(made, 2_000_000)
    assert len(str(caught.value)) < 1000
    check_lengths(command(), 2_000_000)


def test_a_file_has_one_short_harmless_line_per_instance():
    made, text = into_file(command(3, ("echo", "a b", "#", "'")), "/tmp/f/contexts")
    assert made.arguments == ("/opt/mpirun", "--bind-to", "none", "--app", "/tmp/f/contexts")
    lines = text.splitlines()
    assert len(lines) == 3
    assert lines[0] == (
        "-np 1 -x POPRUN_SHARED_0 -x POPRUN_PROGRAM_0 /opt/python -I -S /opt/popdist/guard_start.py"
        " packed="
    )
    assert set(made.environment) == {"A", "POPRUN_SHARED_0", "POPRUN_PROGRAM_0"}


def test_what_differs_stands_in_the_file_and_what_does_not_is_told_once():
    contexts = tuple(
        Context(("-np", "1", "-x", f"I={i}", "-x", "ALL=x y"), START, (f"index={i}", "show=1"))
        for i in range(3)
    )
    made, text = into_file(Command(("/opt/mpirun",), contexts, ("true",), {}), "/f")
    for index, line in enumerate(text.splitlines()):
        assert "x%20y" not in line
        settings, program = read_words([line.split()[-1]], dict(made.environment))
        assert settings == {"index": str(index), "set.I": str(index), "show": "1", "set.ALL": "x y"}
        assert program == ["true"]


def test_a_value_that_a_file_cannot_hold_becomes_a_setting():
    made, text = into_file(command(1, options=("-np", "1", "-x", "PLACE=/my dir")), "/f")
    line = text.split()
    assert "PLACE" not in text
    settings, _ = read_words([line[-1]], dict(made.environment))
    assert settings["set.PLACE"] == "/my dir"


@pytest.mark.parametrize("word", ["a b", "", "it's", "#1", "é", "x" * 5000])
def test_other_words_that_a_file_cannot_hold_are_refused(word):
    with pytest.raises(LaunchError, match="PD105"):
        into_file(command(1, options=("-np", "1", "--mca", "x", word)), "/f")
