"""Names of TensorFlow 1, for programs that were written for the SDK's TensorFlow 1.15.

Such programs use ``tf.ConfigProto`` with ``import tensorflow as tf``; TensorFlow 2 has these names
under ``tf.compat.v1``. Where a program has imported ``tensorflow.python.ipu`` by that name, names
that TensorFlow 2 lacks are found there. Names that TensorFlow 2 has are unchanged. A program with
its own sessions must still turn eager execution off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

BELOW = ("data", "graph_util", "image", "nn", "saved_model", "train")
"""Modules of both versions. ``losses`` and ``metrics`` are Keras' modules in TensorFlow 2."""


def serve(tensorflow: ModuleType) -> None:
    """Lets the module ``tensorflow`` resolve names of TensorFlow 1; safe to call again."""
    version1 = tensorflow.compat.v1
    below = [(getattr(tensorflow, name), getattr(version1, name)) for name in BELOW]
    for new, old in [(tensorflow, version1), *below]:
        # Not where TensorFlow has taken to answering for names itself.
        vars(new).setdefault("__getattr__", _answer(new.__name__, old))


def _answer(module: str, old: ModuleType) -> Callable[[str], Any]:
    def answer(name: str) -> Any:
        if not name.startswith("_") and hasattr(old, name):
            return getattr(old, name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)

    return answer
