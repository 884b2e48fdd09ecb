"""What Python imports when it starts with this folder on ``PYTHONPATH``: enables the SDK's names.

Then it gives way to the `sitecustomize` that it hides, and this folder leaves `sys.path`, so that
nothing else differs. Every Python 3 that a program starts meets this file, so it enables nothing in
those that popdist does not support.
"""

import sys

import _frozen_importlib as bootstrap  # `importlib` itself costs a millisecond
import _frozen_importlib_external as external

_FOLDER = __file__.rpartition("/")[0]


def _load(spec):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - for any Python 3
    return bootstrap._load(spec)  # type: ignore[attr-defined]  # noqa: SLF001 - as runpy and imp do


if sys.hexversion >= 0x030A0000:
    _finder = sys.modules.get("popdist.sdk.finder") or _load(
        external.PathFinder.find_spec("popdist.sdk.finder", [_FOLDER.rpartition("/")[0]])
    )
    _finder.install()

sys.path[:] = [path for path in sys.path if path != _FOLDER]
_hidden = external.PathFinder.find_spec("sitecustomize")
if _hidden is None:
    # What Python takes for "there is none", as without this file.
    raise ImportError("there is no other sitecustomize", name="sitecustomize")
del sys.modules["sitecustomize"]
_load(_hidden)
