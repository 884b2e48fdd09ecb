"""The commands of the SDK's names: ``popdist-sdk``, and ``python -m popdist.sdk``."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from popdist import program_status
from popdist.errors import PopdistError, UsageError
from popdist.startup.environment import SDK_NAMES, TENSORFLOW1, enable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn


USAGE_EXIT_CODE = 2

_RUN_HELP = """\
usage: python -m popdist.sdk [--tf1] [python options] program.py [arguments]
       python -m popdist.sdk [--tf1] [python options] -m module [arguments]

Runs a Python program in which `import popart`, `import poptorch`, `import horovod.popart`,
`from tensorflow.python import ipu` and `import ipu_tensorflow_addons` give popdist's modules, where
the real ones are not installed. With --tf1, and by itself where a program's sources are those of
TensorFlow 1, `import tensorflow` gives TensorFlow 1's interface.
Everything else is as under `python`, whose options are taken too.

See also: popdist-sdk --help"""


def run_program(arguments: Sequence[str]) -> int:
    """Runs ``python -m popdist.sdk``; returns an exit code where no program was started."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_RUN_HELP)  # noqa: T201 - asked for
        return 0
    try:
        become(arguments)
    except PopdistError as error:
        return _complain("popdist.sdk", error)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``popdist-sdk``; None means this process's command line.

    The exit code is 0; 1 where the names are not enabled, or a checked program uses a refused or
    unknown name; 2 for a mistake.
    """
    parser = _parser()
    asked = parser.parse_args(arguments)
    if asked.command is None:
        parser.print_help()
        return 0
    try:
        return _answer(asked)
    except PopdistError as error:
        return _complain("popdist-sdk", error)


def _answer(asked: argparse.Namespace) -> int:
    if asked.command == "check":
        from popdist.sdk.check.verdicts import check

        return check(asked.paths, as_json=asked.json)
    if asked.command == "custom-ops":
        from popdist.sdk.loadable import write

        for path in write(asked.paths):
            print(path)  # noqa: T201 - asked for
        return 0
    from popdist.sdk import permanent

    if asked.command == "status":
        text, enabled = permanent.status()
        print(text)  # noqa: T201 - asked for
        return int(not enabled)
    print(permanent.enable() if asked.command == "enable" else permanent.disable())  # noqa: T201 - asked for
    return 0


def _complain(command: str, error: PopdistError) -> int:
    print(f"{command}: {error}", file=sys.stderr)  # noqa: T201 - for people
    return USAGE_EXIT_CODE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="popdist-sdk",
        description="Programs that import popart, poptorch, horovod.popart or "
        "tensorflow.python.ipu, on ordinary machines.",
        epilog="One program without enabling anything: python -m popdist.sdk program.py, "
        "or poprun --sdk-names.",
    )
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("enable", help="make the names importable in this virtual environment")
    commands.add_parser("disable", help="take that back")
    commands.add_parser("status", help="whether they are enabled, and what each name gives")
    check = commands.add_parser(
        "check",
        help="list the SDK's names in sources, with how each fares, and what else to change",
        description="Lists the SDK's names in sources, with how each fares on a host, and names "
        "that today's libraries refuse. Sources are parsed, never run.",
        epilog="Exits 1 where something is refused, unknown or has to be changed, and 2 where a "
        "file cannot be checked.",
    )
    check.add_argument("paths", nargs="+", metavar="path", help="a Python file, or a folder")
    operators = commands.add_parser(
        "custom-ops",
        help="write the libraries of custom operators that a program loads",
        description="Writes an empty shared library at each path. Programs load it in place of the "
        "operators that they compile for an IPU; poptorch.custom_op calls host functions.",
    )
    operators.add_argument("paths", nargs="+", metavar="path", help="such as custom_ops.so")
    check.add_argument("--json", action="store_true", help="print JSON")
    return parser


_DEAF = {"I": "isolated", "E": "ignore_environment", "S": "no_site"}
"""Options that start Python without the names, with their names in `sys.flags`."""

_WITH_VALUE = "WXcm"


def become(arguments: Sequence[str]) -> NoReturn:
    """Replaces this process by a Python that has the SDK's names.

    The program's own view (`sys.argv`, ``sys.path[0]``, ``__main__``, exit codes, tracebacks,
    worker processes) is the same as under a plain ``python``. The arguments are Python's: options,
    then a program, ``-m module``, ``-c code`` or ``-``, and the program's arguments.

    Raises:
        UsageError: An option would start Python without the names.
    """
    version1 = list(arguments[:1]) == ["--tf1"]
    words = [*_own_options(), *arguments[version1:]]
    refused = [letter for letter in _letters(words) if letter in _DEAF]
    refused += [letter for letter, flag in _DEAF.items() if getattr(sys.flags, flag)]
    if refused:
        raise UsageError(
            "PD452",
            "this Python is told to ignore what would enable the SDK's names",
            value=f"-{refused[0]}",
            hint=f"leave out -{refused[0]}, or enable the names for the whole environment: "
            "popdist-sdk enable",
        )
    enable(os.environ, TENSORFLOW1 if version1 else SDK_NAMES)
    program_status.release()  # this process is not the program yet
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *words])  # noqa: S606 - no shell is the point


def _own_options() -> list[str]:
    """The words of this interpreter's command line before ``-m popdist.sdk``.

    The words are Python's options, or a tool that runs this module, such as a profiler.
    """
    words = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv[1:])]
    module = words.pop()
    option = words.pop() if not module.startswith("-") else module[: module.index("m") + 1]
    return words if option == "-m" else [*words, option[:-1]]  # the options of `-Bm`


def _letters(words: Sequence[str]) -> list[str]:
    """The one-letter options before the program."""
    letters: list[str] = []
    pending = iter(words)
    for word in pending:
        if not word.startswith("-") or word in ("-", "--"):
            break
        if word.startswith("--"):
            continue
        for place, letter in enumerate(word[1:], 2):
            if letter in "cm":
                return letters
            if letter in _WITH_VALUE:
                if place == len(word):
                    next(pending, None)
                break
            letters.append(letter)
    return letters
