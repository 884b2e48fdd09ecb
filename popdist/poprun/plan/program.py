"""Finds the program that a job runs."""

from __future__ import annotations

import os

from popdist.errors import LaunchError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def find_program(
    words: tuple[str, ...], environ: Mapping[str, str], *, local: bool
) -> tuple[str, ...]:
    """Finds the program as mpirun would: on PATH, in the working directory, or by its path.

    Args:
        words: The program and its arguments.
        environ: The launcher's environment.
        local: Whether it runs on this machine; on others it is theirs to find.

    Returns:
        The program as a path that can be executed, and its arguments.

    Raises:
        UsageError: No program was named.
        LaunchError: It was not found, or may not be executed.
    """
    if not words or not words[0]:
        raise UsageError(
            "PD102",
            "no program was named",
            accepted="poprun [options] program [program args]",
            hint="poprun --num-instances 2 python3 train.py",
        )
    name = words[0]
    if not local:  # it is the hosts' business; their guards report a program that is missing
        return words
    # A program in the working directory needs no ./ in front, as with mpirun.
    folders = [""] if "/" in name else [*environ.get("PATH", os.defpath).split(os.pathsep), "."]
    found = [os.path.join(folder, name) if folder else name for folder in folders]
    files = [path for path in found if os.path.isfile(path)]
    for path in files:
        if os.access(path, os.X_OK):
            return (path, *words[1:])
    if files:
        raise LaunchError(
            "PD102",
            "the program is a file that may not be executed",
            value=name,
            hint=f"python3 {name} ..." if name.endswith(".py") else f"chmod +x {files[0]}",
        )
    raise LaunchError(
        "PD102",
        "the program was not found",
        value=name,
        accepted="a program on PATH, in the working directory, or given by its path",
        hint="options of poprun go before the program, and each needs its value",
    )
