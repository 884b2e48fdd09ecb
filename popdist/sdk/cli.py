"""The commands of the SDK's names: ``popdist-sdk``, and ``python -m popdist.sdk``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from popdist.errors import PopdistError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        print(f"popdist.sdk: {error}", file=sys.stderr)  # noqa: T201 - for people
        return 2
