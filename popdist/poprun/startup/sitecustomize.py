"""Calls popdist when a program of a job has imported a framework of training.

Python loads this file at startup when its folder is on ``PYTHONPATH``. It then loads the
`sitecustomize` that it hides, and removes the folder from `sys.path`. Every Python 3 that a program
starts loads this file, so it uses little, and imports no popdist before a framework is imported:
importing popdist tells the launcher that a process is the instance's program.
"""

import _frozen_importlib  # `importlib` itself costs a millisecond
import _frozen_importlib_external
import sys

_FOLDER = __file__.rpartition("/")[0]
_OLDEST = 0x030A0000

_FRAMEWORKS = {
    "torch": "torch",
    "keras": "keras",
    "tf_keras": "keras",
    "tensorflow": "tensorflow",
}


class _Watch:
    """Finds frameworks as the other finders do, and calls popdist when they are imported."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        if name not in _FRAMEWORKS:
            return None
        for finder in sys.meta_path:
            spec = None
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    self._watch(name, spec.loader)  # type: ignore[no-untyped-call]
                return spec
        return None

    @staticmethod
    def _watch(name, loader):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        execute = loader.exec_module

        def executed(module):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            execute(module)
            try:
                from popdist.trained import imported
            except ImportError:  # the program's Python has no popdist
                return
            imported(_FRAMEWORKS[name], module)

        loader.exec_module = executed


if sys.hexversion >= _OLDEST:
    sys.meta_path.insert(0, _Watch())

sys.path[:] = [path for path in sys.path if path != _FOLDER]
_hidden = _frozen_importlib_external.PathFinder.find_spec("sitecustomize")
if _hidden is None:
    # What Python takes for "there is none", as without this file.
    raise ImportError("there is no other sitecustomize", name="sitecustomize")
del sys.modules["sitecustomize"]
_frozen_importlib._load(_hidden)  # type: ignore[attr-defined]  # noqa: SLF001 - as runpy loads
