"""Options about mpirun and about the environment of instances."""

from __future__ import annotations

from popdist.poprun.command.options.kinds import BOOLEAN, FILE, TEXT
from popdist.poprun.command.options.option import Option

_GROUP = "MPI and environment"

OPTIONS: tuple[Option, ...] = (
    Option(
        "mpirun",
        FILE,
        "The mpirun to use",
        _GROUP,
        shown_default="the one beside this Python, else the first on PATH",
        since="popdist",
    ),
    Option(
        "mpi-global-args",
        TEXT,
        "Global options for mpirun; may be given several times",
        _GROUP,
        repeatable=True,
    ),
    Option(
        "mpi-local-args",
        TEXT,
        "Options for mpirun, per instance; may be given several times",
        _GROUP,
        repeatable=True,
    ),
    Option(
        "instance-mpi-local-args",
        TEXT,
        "Options for mpirun for one instance, as <index>:<options>; may be given several times",
        _GROUP,
        repeatable=True,
        since="2.1",
    ),
    Option(
        "env",
        TEXT,
        "Forward a variable to every instance, as NAME or NAME=VALUE; may be given several times",
        _GROUP,
        aliases=("-x",),
        repeatable=True,
        since="popdist",
    ),
    Option(
        "tf-config",
        BOOLEAN,
        "Set TF_CONFIG for MultiWorkerMirroredStrategy",
        _GROUP,
        default=False,
        since="popdist",
    ),
)
