"""Keras as the SDK's TensorFlow 2.4 to 2.6 had it, for programs that were written for that.

Where a program has imported ``tensorflow.python.ipu`` by that name, ``tf.keras`` has its part
``ipu`` and its part ``optimizer_v2``, and ``tf.keras.optimizers.SGD`` is the optimizer of that
time, which TensorFlow has as ``tf.keras.optimizers.legacy.SGD``: it takes ``decay``, and programs
build on its methods.

The SDK's ``keras`` was what ``keras.src`` is now: ``keras.losses`` has the names that Keras does
not publish, such as ``LossFunctionWrapper``.

``tf.random.set_seed`` seeded the initializers of layers, which Keras draws from a generator of its
own since. Batch normalization in half precision had parameters in half precision. Names that Keras
has lost stand in `_LOST`.

TensorFlow has several modules for Keras: ``tensorflow.keras`` is another one after a program has
imported a module below it. So each is completed, also those that are imported later.
"""

from __future__ import annotations

import functools
import random
import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from popdist.startup.imports import Finder

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_ROOTS = ("keras", "keras.api._v2.keras", "tensorflow.keras")
_OPTIMIZERS = tuple(f"{root}.optimizers" for root in _ROOTS)
_MIXED = tuple(f"{root}.mixed_precision" for root in _ROOTS)


def serve(tensorflow: ModuleType) -> None:
    """Completes the modules of Keras that are loaded, and those to come; safe to call again.

    Args:
        tensorflow: The module ``tensorflow``.
    """
    loader = tensorflow.keras
    hasattr(loader, "layers")  # Keras loads, and takes the place of its loader
    for keras in (loader, tensorflow.keras):
        _complete("keras", keras)
    for name, module in list(sys.modules.items()):
        if _is_completed(name):
            _complete(name, module)
    for name, lost in _LOST.items():
        with suppress(ImportError):  # Keras 3 has no such module
            module = import_module(name)
            vars(module).update({**lost, **vars(module)})
    _seed_keras_too()
    _keep_half_parameters()
    if not any(getattr(finder, "call_for", None) is _call_for for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder(_call_for))


def _seed_keras_too() -> None:
    """Seeds the initializers of Keras 2 with the global seed of TensorFlow."""
    kind: Any = import_module("tensorflow.python.eager.context").Context
    known = kind._set_global_seed  # noqa: SLF001 - no public way
    generators = getattr(import_module("keras.src.backend"), "_SEED_GENERATOR", None)
    if generators is None or hasattr(known, "__wrapped__"):
        return

    @functools.wraps(known)
    def set_global_seed(self: Any, seed: Any) -> None:
        known(self, seed)
        generators.generator = random.Random(seed)  # noqa: S311 - no secret

    kind._set_global_seed = set_global_seed  # noqa: SLF001 - no public way


def _keep_half_parameters() -> None:
    """Keeps parameters of batch normalization in half precision in that dtype, as the SDK did."""
    with suppress(ImportError):  # Keras 3 has no such class
        home: Any = import_module("keras.src.layers.normalization.batch_normalization")
        kind = getattr(home, "BatchNormalizationBase", None)
        if kind is None or hasattr(kind.build, "__wrapped__"):
            return
        known, build = kind._param_dtype.fget, kind.build  # noqa: SLF001 - no public way

        @functools.wraps(build)
        def build_half(self: Any, input_shape: Any) -> None:
            if self.dtype == "float16":
                self.fused = False  # that kernel has parameters in single precision
            build(self, input_shape)

        kind.build = build_half
        kind._param_dtype = property(  # noqa: SLF001 - no public way
            lambda self: self.dtype if self.dtype == "float16" else known(self)
        )


def _policies() -> Any:
    return sys.modules["tensorflow"].keras.mixed_precision


def _expand_1d(data: Any) -> Any:
    """Adds a second dimension to tensors of one, as `train_step` of Keras did."""
    tf = sys.modules["tensorflow"]

    def expanded(one: Any) -> Any:
        is_row = isinstance(one, tf.Tensor) and one.shape.rank == 1
        return tf.expand_dims(one, axis=-1) if is_row else one

    return tf.nest.map_structure(expanded, data)


_LOST: dict[str, dict[str, Any]] = {
    "keras.src.engine.data_adapter": {"expand_1d": _expand_1d},
    "keras.src.mixed_precision.policy": {
        "set_policy": lambda policy: _policies().set_global_policy(policy),
    },
}
"""Names of modules of Keras 2 that later versions of it do not have."""


def _call_for(name: str) -> Callable[[str, ModuleType], None] | None:
    return _complete if _is_completed(name) else None


def _is_completed(name: str) -> bool:
    if name in (*_ROOTS, *_OPTIMIZERS, *_MIXED):
        return True
    parts = name.split(".")
    return parts[0] == "keras" and len(parts) > 1 and parts[1] not in ("api", "src")


def _complete(name: str, module: ModuleType) -> None:
    if name in _ROOTS:
        vars(module)["ipu"] = import_module("popdist_tf.ipu.keras")
        with suppress(ImportError):  # Keras 3 has none
            legacy = vars(module)["optimizer_v2"] = import_module("keras.src.optimizers.legacy")
            schedules = "keras.src.optimizers.schedules.learning_rate_schedule"
            vars(legacy)["learning_rate_schedule"] = import_module(schedules)
            if name == "keras":
                vars(module).setdefault("__getattr__", _answer(name))
        return
    if name == module.__name__ and name.startswith("keras.") and "." not in name[6:]:
        vars(module).setdefault("__getattr__", _answer(name))
    if name in _MIXED and "LossScaleOptimizer" in vars(module):
        with suppress(ImportError):  # Keras 3 has one kind of it
            home = import_module("keras.src.mixed_precision.loss_scale_optimizer")
            if issubclass(home.LossScaleOptimizer, module.LossScaleOptimizer):
                vars(module)["LossScaleOptimizer"] = home.LossScaleOptimizer
    if name not in _OPTIMIZERS:
        return
    kept = getattr(module, "legacy", None)
    if kept is None or not hasattr(getattr(kept, "Optimizer", None), "apply_gradients"):
        return  # Keras 3 has no optimizers of that time
    for own, value in vars(kept).items():
        if isinstance(value, type):
            vars(module)[own] = value


def _answer(name: str) -> Callable[[str], Any]:
    source = f"keras.src{name.removeprefix('keras')}"

    def answer(asked: str) -> Any:
        try:
            if not asked.startswith("__"):
                return getattr(import_module(source), asked)
        except (AttributeError, ImportError):  # the error that the program expects follows
            pass
        raise AttributeError(f"module {name!r} has no attribute {asked!r}", name=asked)

    return answer
