"""Options from a TOML file: keys are the options' long names, ``program`` is the program.

::

    num-replicas = 8
    host = "node[1-4]"
    program = ["python3", "train.py", "--epochs", "3"]

    [env]                       # as -x NAME=VALUE; true forwards the launcher's own value
    OMP_NUM_THREADS = "4"
    HF_HOME = true
"""

from __future__ import annotations

import os
import sys

from popdist.errors import UsageError
from popdist.poprun.options.table import BY_NAME
from popdist.poprun.options.words import Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from popdist.poprun.options.types import Option
    from popdist.poprun.options.words import Given

PROGRAM = "program"
_LARGEST_BYTES = 1 << 20


def read_config(path: str) -> tuple[Source, tuple[str, ...]]:
    """The values, and the program with its arguments, of a configuration file.

    Raises:
        UsageError: The file cannot be read, or its content is not accepted.
    """
    given: Given = {}
    program: tuple[str, ...] = ()
    for key, value in _load(path).items():
        if key == PROGRAM:
            program = _program(value, path)
            continue
        option = _option(key, path)
        if option.name in given:
            raise _wrong(path, f"'{key}' is there twice, with '-' and with '_'", value=key)
        given[option.name] = [_convert(option, text, path) for text in _texts(option, value, path)]
    return Source(path, given), program


def _load(path: str) -> dict[str, Any]:
    try:
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
    except ModuleNotFoundError:  # popdist runs from a checkout, without what it requires
        raise _wrong(path, "this Python has no reader for TOML", hint="pip install tomli") from None
    try:
        if os.path.isdir(path):
            raise OSError("it is a directory")  # noqa: TRY301 - as open() says it, without a number
        with open(path, "rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
        if len(content) > _LARGEST_BYTES:
            raise OSError("it is larger than 1 MiB")  # noqa: TRY301
        values: dict[str, Any] = tomllib.loads(content.decode())
    except OSError as error:
        raise _wrong(path, f"it cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise _wrong(path, "its values are nested too deeply") from None
    except ValueError as error:  # also for text that is not UTF-8, and numbers that are too long
        raise _wrong(path, f"it is not TOML: {error}") from None
    return values


def _option(key: str, path: str) -> Option:
    name = key.replace("_", "-")
    option = BY_NAME.get(name)
    if option is not None and not option.typed_only and name != "config":
        return option
    if option is not None:
        raise _wrong(path, f"'{key}' cannot be set in a file", value=key)
    from popdist.nearest import did_you_mean

    raise _wrong(
        path,
        f"'{key}' is not an option",
        value=key,
        hint=did_you_mean(name, [*BY_NAME, PROGRAM]),
    )


def _texts(option: Option, value: Any, path: str) -> list[str]:
    """A value as the texts that a user would type for it."""
    if option.name == "env" and isinstance(value, dict):
        named = [(f"{name}=", one) for name, one in value.items() if one is not True]
        texts = [name for name, one in value.items() if one is True]
    else:
        values = value if isinstance(value, list) and option.repeatable else [value]
        named, texts = [("", one) for one in values], []
    for name, one in named:
        text = _text(one)
        if text is None:
            raise _wrong(path, f"the value of '{option.name}' has a type it cannot have", value=one)
        texts.append(name + text)
    return texts


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if isinstance(value, str | int | float) else None


def _convert(option: Option, text: str, path: str) -> object:
    try:
        return option.convert(text)
    except ValueError:
        raise _wrong(
            path,
            f"the value of '{option.name}' is not accepted",
            value=text,
            accepted=option.accepted.replace("no value", "true or false"),
        ) from None


def _program(value: Any, path: str) -> tuple[str, ...]:
    words = value if isinstance(value, list) else []
    if words and all(isinstance(word, str) and "\0" not in word for word in words):
        return tuple(value)
    raise _wrong(
        path,
        f"'{PROGRAM}' is not a list of words",
        value=value,
        accepted=f'{PROGRAM} = ["python3", "train.py"]',
    )


def _wrong(
    path: str,
    what: str,
    *,
    value: object = None,
    accepted: str | None = None,
    hint: str | None = None,
) -> UsageError:
    return UsageError(
        "PD106",
        f"the configuration file {path} cannot be used: {what}",
        value=value,
        accepted=accepted or "TOML with long option names, as num-replicas = 4",
        hint=hint,
    )
