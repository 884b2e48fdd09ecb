"""Loads the parts of popdist that ``POPDIST_STARTUP`` names.

Python imports this file at startup where its folder is on ``PYTHONPATH``. The file then removes the
folder from `sys.path` and loads the `sitecustomize` that it hides, so that nothing else differs.
Every Python 3 that a program starts reads it, so it uses little, and loads parts only in versions
that popdist supports. Parts are loaded by their path: importing popdist itself would tell the
launcher that a process is the instance's program.
"""

import _frozen_importlib  # `importlib` itself costs a millisecond
import _frozen_importlib_external
import os
import sys

_find = _frozen_importlib_external.PathFinder.find_spec
_load = _frozen_importlib._load  # type: ignore[attr-defined]  # noqa: SLF001 - as runpy loads
_FOLDER = __file__.rpartition("/")[0]
_POPDIST = _FOLDER.rpartition("/")[0]
_OLDEST = 0x030A0000


def _part(name):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - typing costs milliseconds
    path = name.replace(".", "/")
    return sys.modules.get(f"popdist.{name}") or _load(
        _find(f"popdist.{name}", [f"{_POPDIST}/{path}".rpartition("/")[0]])
    )


if sys.hexversion >= _OLDEST:
    for _name in os.environ.get("POPDIST_STARTUP", "").split(","):
        if _name in ("sdk", "tf1"):
            _part("sdk.finder").install(True if _name == "tf1" else None)  # type: ignore[no-untyped-call]
        elif _name == "stacks":
            _part("program_status").show_stacks()  # type: ignore[no-untyped-call]
        elif _name in ("ddp", "frameworks"):
            _part("startup.imports").install(_name)  # type: ignore[no-untyped-call]

sys.path[:] = [path for path in sys.path if path != _FOLDER]
_hidden = _find("sitecustomize")
if _hidden is None:
    # What Python takes for "there is none", as without this file.
    raise ImportError("there is no other sitecustomize", name="sitecustomize")
del sys.modules["sitecustomize"]
_load(_hidden)
