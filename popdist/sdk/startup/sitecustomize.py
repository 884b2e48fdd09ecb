"""Enables the SDK's names when Python starts with this folder on ``PYTHONPATH``.

The module then loads the `sitecustomize` that it hides, and removes this folder from `sys.path`, so
that nothing else differs. Every Python 3 that a program starts loads this file, so the names are
enabled only in versions that popdist supports.
"""

import _frozen_importlib  # `importlib` itself costs a millisecond
import _frozen_importlib_external
import sys

_find = _frozen_importlib_external.PathFinder.find_spec
_load = _frozen_importlib._load  # type: ignore[attr-defined]  # noqa: SLF001 - as runpy loads
_FOLDER = __file__.rpartition("/")[0]
_STARTUP = _FOLDER.removesuffix("/version1")
_OLDEST = 0x030A0000

if sys.hexversion >= _OLDEST:
    _finder = sys.modules.get("popdist.sdk.finder") or _load(
        _find("popdist.sdk.finder", [_STARTUP.rpartition("/")[0]])
    )
    _finder.install(True if _FOLDER != _STARTUP else None)

sys.path[:] = [path for path in sys.path if path != _FOLDER]
_hidden = _find("sitecustomize")
if _hidden is None:
    # What Python takes for "there is none", as without this file.
    raise ImportError("there is no other sitecustomize", name="sitecustomize")
del sys.modules["sitecustomize"]
_load(_hidden)
