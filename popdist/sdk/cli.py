"""The commands of the SDK's names: ``popdist-sdk``, and ``python -m popdist.sdk``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from popdist.errors import PopdistError

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE_EXIT_CODE = 2

_RUN_HELP = """\
usage: python -m popdist.sdk [python options] program.py [arguments]
       python -m popdist.sdk [python options] -m module [arguments]

Runs a Python program in which `import popart`, `import poptorch`, `import horovod.popart` and
`from tensorflow.python import ipu` give popdist's modules, where the real ones are not installed.
Everything else is as under `python`, whose options are taken too.

See also: popdist-sdk --help"""


def run_program(arguments: Sequence[str]) -> int:
    """Runs ``python -m popdist.sdk``.

    Args:
        arguments: Its command line.

    Returns:
        The exit code where no program was started.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_RUN_HELP)  # noqa: T201 - asked for
        return 0
    from popdist.sdk.run import become

    try:
        become(arguments)
    except PopdistError as error:
        return _complain("popdist.sdk", error)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``popdist-sdk``.

    Args:
        arguments: The command line without the command's name; None for this process's.

    Returns:
        0; 1 where the names are not enabled, or a checked program uses what is refused or unknown;
        2 for a mistake.
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
        from popdist.sdk.check.report import check

        return check(asked.paths, as_json=asked.json)
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
    check.add_argument("--json", action="store_true", help="print JSON")
    return parser
