"""Options from environment variables: ``POPRUN_NUM_REPLICAS=4`` is ``--num-replicas 4``."""

from __future__ import annotations

from popdist.errors import UsageError
from popdist.poprun.command.options import OPTIONS
from popdist.poprun.command.options.option import PREFIX
from popdist.poprun.command.source import Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from popdist.poprun.command.words import Given

LOG_LEVEL = "POPRUN_LOG_LEVEL"
"""The original launcher's variable for what it says; its levels stand for -v and -vv."""

LEVELS = {"TRACE": 2, "DEBUG": 2, "INFO": 1, "WARN": 0, "ERR": 0, "CRITICAL": 0, "OFF": 0}

_BY_VARIABLE = {option.variable: option for option in OPTIONS if option.variable}
_TYPED_ONLY = {f"{PREFIX}{o.name.upper().replace('-', '_')}" for o in OPTIONS if o.typed_only}


def read_variables(environ: Mapping[str, str]) -> tuple[Source, tuple[str, ...]]:
    """Reads the variables that set options.

    Args:
        environ: The environment. A variable of a repeatable option has one value a line.

    Returns:
        The values, and remarks about variables that look like an option's but are none.

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
                given[option.name] = [option.kind.convert(each) for each in texts or [""]]
            except ValueError:
                raise UsageError(
                    "PD100",
                    f"environment variable {name} is not accepted as --{option.name}",
                    value=text,
                    accepted=option.kind.accepted.replace("no value", "yes or no"),
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


def _remark(name: str) -> list[str]:
    if name in _TYPED_ONLY:
        return [f"{name} is not read: that option counts on the command line only"]
    from popdist.nearest import did_you_mean

    question = did_you_mean(name, _BY_VARIABLE, cutoff=0.85)
    return [f"{name} sets no option; {question}"] if question else []
