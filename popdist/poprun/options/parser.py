"""Merges all sources of options to one value each: defaults < file < environment < words.

`words` reads the words, `config_file` the file, and this module the environment:
``POPRUN_NUM_REPLICAS=4`` is ``--num-replicas 4``.
"""

from __future__ import annotations

from popdist.errors import UsageError
from popdist.poprun.options.table import BY_NAME, OPTIONS
from popdist.poprun.options.types import FLAG, PREFIX
from popdist.poprun.options.words import Source, read_words
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist.poprun.options.types import Option
    from popdist.poprun.options.words import Given

_ANSWERS = ("help", "version", "completion")
_BEFORE_A_PROGRAM = ("-np", "-n", "-c", "-x", "-H", "--np", "--n", "--host")
_NEVER_PYTHONS = ("-np", "-n", "-H", "--np", "--n")
_PYTHONS = ("--help", "--version")
LOG_LEVEL = "POPRUN_LOG_LEVEL"
"""The original launcher's variable for its messages; the levels correspond to -v and -vv."""
LEVELS = {"TRACE": 2, "DEBUG": 2, "INFO": 1, "WARN": 0, "ERR": 0, "CRITICAL": 0, "OFF": 0}
_BY_VARIABLE = {option.variable: option for option in OPTIONS if option.variable}
_TYPED_ONLY = {f"{PREFIX}{o.name.upper().replace('-', '_')}" for o in OPTIONS if o.typed_only}


class CommandLine(Record):
    """What was asked for.

    Attributes:
        values: The value of every option, by name; defaults are filled in.
        given: The names of the options that were set somewhere.
        program: The program and its arguments; empty where none was named.
        origins: Where the value of each option in `given` comes from, in words.
        notes: What the user should know about how the values came about.
    """

    values: Mapping[str, object]
    given: frozenset[str]
    program: tuple[str, ...]
    origins: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()


def parse(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> CommandLine:
    """Reads a command line, the environment (None for an empty one) and a configuration file.

    Raises:
        UsageError: An option is unknown, ambiguous, repeated, without its value, or malformed;
            options exclude each other; or the file cannot be read.
    """
    typed, program = read_words(arguments)
    sources = [Source("the command line", typed)]
    notes: tuple[str, ...] = ()
    if not any(name in typed for name in _ANSWERS):  # help and version need no other source
        if any(name.startswith(PREFIX) for name in environ or ()):
            variables, notes = read_variables(environ or {})
            sources.append(variables)
        path = _one(sources, BY_NAME["config"])
        if path is not None:
            from popdist.poprun.options.config_file import read_config

            file, program_of_file = read_config(str(path))
            sources.append(file)
            program = program or program_of_file
    _check_program(program)
    return _merge(sources, program, notes)


def _merge(sources: list[Source], program: tuple[str, ...], notes: tuple[str, ...]) -> CommandLine:
    values, origins = {}, {}
    for option in OPTIONS:
        values[option.name] = _default(option)
        found = [source for source in sources if option.name in source.given]
        if found and not _is_excluded(option, sources):
            values[option.name] = _value(option, found[0])
            origins[option.name] = found[0].origin(option.name)
            if len(found) > 1:
                others = " and ".join(source.origin(option.name) for source in found[1:])
                origins[option.name] += f", before {others}"
    return CommandLine(values, frozenset(origins), program, origins, notes)


def _is_excluded(option: Option, sources: list[Source]) -> bool:
    """Whether an option that excludes this one comes from a source of higher priority."""
    for source in sources:
        both = [name for name in (option.name, option.excludes) if name in source.given]
        if len(both) > 1:
            raise UsageError(
                "PD101",
                f"--{option.name} and --{option.excludes} exclude each other",
                value=", ".join(f"--{name} {source.given[name][0]}" for name in both),
                accepted="one of the two",
            )
        if both:
            return both[0] != option.name
    return False


def _default(option: Option) -> object:
    return () if option.repeatable else 0 if option.kind is FLAG else option.default


def _one(sources: list[Source], option: Option) -> object:
    return next((_value(option, s) for s in sources if option.name in s.given), option.default)


def _value(option: Option, source: Source) -> object:
    given = source.given[option.name]
    if option.repeatable:
        return tuple(given)
    if option.kind is FLAG:
        return given[-1] if option.words else sum(map(bool, given))
    if len(given) > 1:
        raise UsageError(
            "PD100",
            f"--{option.name} was given {len(given)} times",
            value=", ".join(str(value) for value in given),
            accepted="at most once",
        )
    return given[0]


def read_variables(environ: Mapping[str, str]) -> tuple[Source, tuple[str, ...]]:
    """The values of variables that set options, and remarks about similar variable names.

    A variable of a repeatable option has one value per line.

    Raises:
        UsageError: A value is not accepted.
    """
    given: Given = {}
    names: dict[str, str] = {}
    notes: list[str] = []
    for name in sorted(environ):
        if not name.startswith(PREFIX):
            continue
        option = _BY_VARIABLE.get(name)
        if option is not None:
            text = environ[name]
            texts = text.splitlines() if option.repeatable else [text]
            try:
                given[option.name] = [option.convert(each) for each in texts or [""]]
            except ValueError:
                raise UsageError(
                    "PD100",
                    f"environment variable {name} is not accepted as --{option.name}",
                    value=text,
                    accepted=option.accepted.replace("no value", "yes or no"),
                    hint=f"unset {name}, or correct it",
                ) from None
            names[option.name] = name
        elif name == LOG_LEVEL:
            _read_level(environ[name], given, names)
        else:
            notes += _remark(name)
    return Source("the environment", given, names), tuple(notes)


def _read_level(text: str, given: Given, names: dict[str, str]) -> None:
    if text.upper() not in LEVELS:
        raise UsageError(
            "PD100",
            f"environment variable {LOG_LEVEL} is not a level",
            value=text,
            accepted=", ".join(LEVELS),
            hint=f"unset {LOG_LEVEL}, or correct it",
        )
    name = {2: "vv", 1: "verbose"}.get(LEVELS[text.upper()])
    if name and name not in given:
        given[name] = [True]
        names[name] = LOG_LEVEL


def _check_program(program: Sequence[str]) -> None:
    """Checks that no options of a launcher stand among the arguments of the program.

    Raises:
        UsageError: A second program follows, as mpirun would start it, or Python gets options of
            poprun.
    """
    for at, word in enumerate(program[:-1]):
        if word == ":" and program[at + 1] in _BEFORE_A_PROGRAM:
            raise UsageError(
                "PD100",
                "':' does not begin a second program, as it does with mpirun",
                value=" ".join(program[at : at + 4]),
                accepted="one program, which all instances start",
                hint="start one program, which asks popdist.getInstanceIndex() what to do",
            )
    name = program[1].partition("=")[0] if len(program) > 1 else ""
    is_python = bool(program) and program[0].rpartition("/")[2].startswith("python")
    if is_python and (name in _NEVER_PYTHONS or (name[2:] in BY_NAME and name not in _PYTHONS)):
        raise UsageError(
            "PD100",
            "options of poprun go before the program",
            value=" ".join(program[:3]),
            accepted=f"poprun {name} ... {program[0]} ...",
        )


def _remark(name: str) -> list[str]:
    if name in _TYPED_ONLY:
        return [f"{name} is not read: that option counts on the command line only"]
    from popdist.nearest import did_you_mean

    question = did_you_mean(name, _BY_VARIABLE, cutoff=0.85)
    return [f"{name} sets no option; {question}"] if question else []
