"""Enables the SDK's names permanently in a virtual environment, by one removable file.

Python runs the lines of ``.pth`` files in the package folder at every start.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from popdist.errors import PopdistError
from popdist.sdk import finder
from popdist.sdk.finder import ALIASES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec


def real_modules() -> dict[str, str]:
    """The installed modules of the real SDK, with their places; empty on an ordinary machine."""
    found = {name: _place(name) for name in ALIASES}
    return {name: place for name, place in found.items() if place is not None}


def _place(name: str) -> str | None:
    """The place of a module, without importing it, as TensorFlow takes seconds."""
    search: Sequence[str] | None = None
    spec = None
    so_far = ""
    for part in name.split("."):
        so_far = f"{so_far}.{part}".lstrip(".")
        spec = _real_spec(so_far, search)
        if spec is None:
            return None
        search = spec.submodule_search_locations
    assert spec is not None  # noqa: S101 - no name is empty
    return spec.origin or ", ".join(spec.submodule_search_locations or ())


def _real_spec(name: str, search: Sequence[str] | None) -> ModuleSpec | None:
    for place in sys.meta_path:
        if type(place).__module__ == "popdist.sdk.finder" or not hasattr(place, "find_spec"):
            continue
        spec = place.find_spec(name, search)
        if spec is not None:
            return spec
    return None


FILE = "zz-popdist-sdk.pth"
"""Python reads such files in name order; real packages must come first."""

_TEXT = """\
# Written by `popdist-sdk enable` and removed by `popdist-sdk disable`: programs may import
# popart, poptorch, horovod.popart, tensorflow.python.ipu and ipu_tensorflow_addons, and get
# popdist's modules.
import sys, _frozen_importlib as b, _frozen_importlib_external as e; \
n = "popdist.sdk.finder"; s = e.PathFinder.find_spec(n, [{folder}]); \
s and (sys.modules.get(n) or b._load(s)).install()
"""


class NamesError(PopdistError, RuntimeError):
    """The SDK's names cannot be enabled or disabled here."""


def place() -> Path:
    """The path of the file in this Python's environment, whether the file exists or not."""
    return Path(sysconfig.get_path("purelib")) / FILE


def is_environment() -> bool:
    """Whether this Python belongs to a virtual environment or a conda environment."""
    return sys.prefix != sys.base_prefix or (Path(sys.prefix) / "conda-meta").is_dir()


def enable() -> str:
    """Writes the file, and checks that the names work.

    Raises:
        NamesError: This is not a separate environment, the environment is read-only, the SDK itself
            is installed, or popdist is not installed.
    """
    if not is_environment():
        raise NamesError(
            "PD452",
            "this Python is the system's, and all of its programs would be concerned",
            value=sys.prefix,
            accepted="a Python of a virtual environment",
            hint="python3 -m venv .venv, and popdist-sdk enable in there; for one program, "
            "python -m popdist.sdk program.py, or poprun --sdk-names",
        )
    if real := real_modules():
        raise NamesError(
            "PD452",
            "the SDK itself is installed here, and its own modules would win",
            value=", ".join(f"{name} ({where})" for name, where in real.items()),
            hint="another virtual environment for popdist's",
        )
    file = place()
    text = _TEXT.format(folder=ascii(str(Path(finder.__file__).resolve().parent)))
    try:
        before = file.read_text() if file.exists() else None
        if before != text:
            file.write_text(text)
        _try_out(file, before)
    except OSError as error:
        raise _unchangeable(file, error) from None
    if before == text:
        return f"enabled already, by {file}"
    names = ", ".join(finder.ALIASES)
    return f"enabled: wrote {file}\nprograms of this environment may import {names}"


def _try_out(file: Path, before: str | None) -> None:
    """Starts a Python of this environment, and reverts the change on failure."""
    tried = subprocess.run(
        [sys.executable, "-I", "-c", "import popart; assert popart.__name__ == 'popdist_onnx'"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode == 0:
        return
    if before is None:
        file.unlink()
    else:
        file.write_text(before)
    raise NamesError(
        "PD452",
        "the names do not work in this environment, and nothing was changed",
        value=tried.stderr.strip().rpartition("\n")[2],
        hint="install popdist into this environment: pip install popdist",
    )


def disable() -> str:
    """Removes the file.

    Raises:
        NamesError: The file cannot be removed.
    """
    file = place()
    try:
        file.unlink()
    except FileNotFoundError:
        return f"not enabled: there is no {file}"
    except OSError as error:
        raise _unchangeable(file, error) from None
    return f"disabled: removed {file}"


def _unchangeable(file: Path, error: OSError) -> NamesError:
    return NamesError(
        "PD452",
        f"the environment cannot be changed: {error.strerror}",
        value=str(file),
        hint="run it as the owner of the environment",
    )


def status() -> tuple[str, bool]:
    """A text about this environment, and whether the names are enabled."""
    file = place()
    enabled = file.exists()
    real = real_modules()
    lines = [f"enabled, by {file}" if enabled else f"not enabled: there is no {file}"]
    for name, mine in finder.ALIASES.items():
        if name in real:
            lines.append(f"  {name} is the SDK's own, {real[name]}")
        else:
            lines.append(f"  {name} {'is' if enabled else 'would be'} {mine}")
    return "\n".join(lines), enabled
