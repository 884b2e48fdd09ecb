"""Tells the Open MPI of a wheel where it is, in programs that no launcher has started.

Open MPI looks for its files where it was built. The wheel's own mpirun sets ``OPAL_PREFIX`` for the
programs that it starts; without it, MPI_Init ends a program that starts alone, such as
``from mpi4py import MPI``, ``horovod.torch.init()`` or ``lightning.Trainer()``. The Horovod build
writes a ``.pth`` file, by which each Python of the environment loads this module at its start. The
variable is set when a package that starts MPI is imported, and not for other programs, as it would
mislead another Open MPI that they start.

The file is loaded by its path and at every start, so it imports only `sys` at first.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

FILE = "zz-popdist-openmpi.pth"

_TEXT = """\
# Written by `python -m popdist.horovod_build`: tells the Open MPI of this environment where it is.
import sys, _frozen_importlib as b, _frozen_importlib_external as e; \
s = e.FileFinder({folder}, (e.SourceFileLoader, [".py"])).find_spec("openmpi_prefix"); \
s and b._load(s).install()
"""

_PACKAGES = ("mpi4py", "horovod")
_LAUNCHERS = ("OMPI_COMM_WORLD_", "PMIX_", "PMI_", "OPAL_PREFIX", "MPI4PY_LIBMPI", "MPI4PY_MPIABI")


class Prefix:
    """A finder that finds nothing, and sets the variable before MPI is loaded."""

    def find_spec(
        self,
        name: str,
        path: "Sequence[str] | None" = None,
        _target: "ModuleType | None" = None,
    ) -> None:
        """Sets ``OPAL_PREFIX`` if the package that is imported uses this environment's Open MPI."""
        if name not in _PACKAGES or path is not None:
            return
        import os

        if any(variable.startswith(_LAUNCHERS) for variable in os.environ):
            return
        if os.access(f"{sys.prefix}/bin/orted", os.X_OK) and _uses_wheel(name):
            os.environ["OPAL_PREFIX"] = sys.prefix


def _uses_wheel(name: str) -> bool:
    """Whether a package is of a kind that loads the Open MPI of this environment."""
    import os
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(name)
    for folder in (spec and spec.submodule_search_locations) or ():
        # mpi4py's wheel chooses the library of the environment; ours of Horovod has our version.
        where, sign = (folder, "MPI.openmpi") if name == "mpi4py" else (f"{folder}/..", "+popdist")
        if any(sign in entry.name for entry in os.scandir(where)):
            return True
    return False


def install() -> None:
    """Adds the finder to this process."""
    sys.meta_path.insert(0, Prefix())


def write(*, wanted: bool) -> None:
    """Writes the ``.pth`` file of this environment, or removes it.

    Args:
        wanted: Whether Horovod uses the Open MPI of this environment.

    Raises:
        OSError: The environment cannot be changed.
    """
    import sysconfig
    from pathlib import Path

    file = Path(sysconfig.get_path("purelib")) / FILE
    text = _TEXT.format(folder=ascii(str(Path(__file__).resolve().parent)))
    if not wanted:
        file.unlink(missing_ok=True)
    elif not file.exists() or file.read_text() != text:
        file.write_text(text)
