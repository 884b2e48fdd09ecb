"""From all that may set an option to one value for each: defaults < file < environment < words."""

from __future__ import annotations

from popdist.errors import UsageError
from popdist.poprun.command.options import BY_NAME, OPTIONS
from popdist.poprun.command.options.kinds import FLAG
from popdist.poprun.command.options.option import PREFIX
from popdist.poprun.command.source import Source
from popdist.poprun.command.words import read_words
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist.poprun.command.options.option import Option

_ANSWERS = ("help", "version", "completion")


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
    """Reads a command line, and with it the environment and a configuration file.

    Args:
        arguments: The words without the launcher's own name.
        environ: The environment; None for an empty one.

    Returns:
        The values and the program.

    Raises:
        UsageError: An option is unknown, ambiguous, repeated, without its value, or malformed;
            options exclude each other; or the file cannot be read.
    """
    typed, program = read_words(arguments)
    sources = [Source("the command line", typed)]
    notes: tuple[str, ...] = ()
    if not any(name in typed for name in _ANSWERS):  # an answer needs no other source
        if any(name.startswith(PREFIX) for name in environ or ()):
            from popdist.poprun.command.variables import read_variables

            variables, notes = read_variables(environ or {})
            sources.append(variables)
        path = _one(sources, BY_NAME["config"])
        if path is not None:
            from popdist.poprun.command.config_file import read_config

            file, program_of_file = read_config(str(path))
            sources.append(file)
            program = program or program_of_file
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
    """Whether an option that it cannot stand beside comes from a source that wins over its own."""
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
        return sum(map(bool, given))
    if len(given) > 1:
        raise UsageError(
            "PD100",
            f"--{option.name} was given {len(given)} times",
            value=", ".join(str(value) for value in given),
            accepted="at most once",
        )
    return given[0]
