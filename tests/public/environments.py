"""Virtual environments with the packages that programs pin, on top of the project's environment."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("popdist", "popdist_torch", "popdist_tf", "popdist_onnx")


def served() -> Path:
    """A folder with the packages that a user has installed, and nothing else of the checkout.

    Programs have folders of their own that are named ``benchmarks`` or ``tests``.
    """
    folder = ROOT / "build" / "public" / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    for name in _PACKAGES:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(ROOT / name)
    return folder


# The compiled parts of Horovod fit these; a package that asks for others is not installed.
_KEPT = ("torch", "tensorflow-cpu", "numpy", "onnxruntime")


def python_of(name: str, packages: tuple[str, ...], folder: Path) -> Path:
    """The interpreter of an environment, which is made at the first call.

    Args:
        name: The environment's name; empty for the project's environment.
        packages: Requirements; those that stand after ``--no-deps`` bring no requirements.
        folder: The folder of environments.

    Returns:
        The path of ``python``.
    """
    if not name:
        return Path(sys.executable)
    digest = hashlib.sha256("\n".join(packages).encode()).hexdigest()[:8]
    place = folder / f"{name}-{digest}"
    python = place / "bin" / "python"
    if (place / "ready").exists():
        return python
    venv.create(place, with_pip=False, symlinks=True, clear=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(place)}))
    below = [path for path in sys.path if path.endswith("site-packages")]
    site.joinpath("a-packages.pth").write_text("\n".join([*below, str(served())]) + "\n")
    constraints = place / "constraints.txt"
    constraints.write_text("\n".join(_kept()) + "\n")
    split = packages.index("--no-deps") if "--no-deps" in packages else len(packages)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    pip += ["--disable-pip-version-check"]
    if packages[:split]:
        subprocess.run([*pip, "-c", str(constraints), *packages[:split]], check=True)
    if packages[split + 1 :]:
        subprocess.run([*pip, "--no-deps", *packages[split + 1 :]], check=True)
    (place / "ready").touch()
    return python


def _kept() -> list[str]:
    from importlib.metadata import distributions

    found = {one.name: one.version for one in distributions() if one.name in _KEPT}
    return [f"{name}=={version}" for name, version in found.items()]
