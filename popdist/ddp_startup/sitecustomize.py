"""Patches DistributedDataParallel when Python starts with this folder on ``PYTHONPATH``.

As that of `popdist.sdk.startup`, it then loads the `sitecustomize` that it hides, and removes this
folder from `sys.path`.
"""

import _frozen_importlib
import _frozen_importlib_external
import sys

_find = _frozen_importlib_external.PathFinder.find_spec
_load = _frozen_importlib._load  # type: ignore[attr-defined]  # noqa: SLF001 - as runpy loads
_FOLDER = __file__.rpartition("/")[0]
_OLDEST = 0x030A0000

if sys.hexversion >= _OLDEST:
    # Importing popdist itself would tell poprun that each of these processes is its program.
    _load(_find("popdist.ddp_startup.patch", [_FOLDER])).install()

sys.path[:] = [path for path in sys.path if path != _FOLDER]
_hidden = _find("sitecustomize")
if _hidden is None:
    # What Python takes for "there is none", as without this file.
    raise ImportError("there is no other sitecustomize", name="sitecustomize")
del sys.modules["sitecustomize"]
_load(_hidden)
