"""The IPU's names in TensorFlow itself: its devices, and parts that moved since.

A program may name an IPU wherever TensorFlow takes a device. Its code then runs on the replica's
own device, and counts as device code, as in `ipu.scopes.ipu_scope`.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.python.eager.context import Context
from tensorflow.python.framework.ops import Graph

from popdist_tf.patches import surround
from popdist_tf.strategies.extended import device_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

_PARTED = ("framework.ops", "ops.array_ops", "ops.control_flow_ops", "ops.math_ops")
"""Modules below ``tensorflow.python`` of which parts, such as ``cond``, have moved to others."""


class StatsAggregator:
    """Statistics of data sets, which TensorFlow does not count any more: there are none."""

    def get_summary(self) -> Any:
        """A summary without values, as a serialized string."""
        return tf.constant(tf.compat.v1.Summary().SerializeToString())


def _uncounted(_tag: str) -> Callable[[Any], Any]:
    return lambda dataset: dataset


_STATISTICS = {
    "StatsAggregator": StatsAggregator,
    "bytes_produced_stats": _uncounted,
    "latency_stats": _uncounted,
}


def serve(tensorflow: ModuleType) -> None:
    """Adds the names of IPUs to those of devices in TensorFlow; safe to call again.

    Args:
        tensorflow: The module ``tensorflow``.
    """
    for kind in (Graph, Context):
        surround(kind, "device", "IPUs", _device)
    for method in ("save", "restore"):
        surround(tf.compat.v1.train.Saver, method, "graph", _in_graph)
    reader = tf.compat.v1.train.NewCheckpointReader
    wrapped = import_module("tensorflow.python.pywrap_tensorflow")
    vars(wrapped)["NewCheckpointReader"] = reader
    vars(tensorflow)["pywrap_tensorflow"] = wrapped
    vars(tf.compat.v1.data.experimental).update(_STATISTICS)
    tf.data.Options.experimental_stats = SimpleNamespace()  # settings that nothing reads
    # TensorFlow's own copy of Keras lacks parts that programs use, and is another Keras.
    vars(import_module("tensorflow.python"))["keras"] = tensorflow.keras
    for name in _PARTED:
        module = import_module(f"tensorflow.python.{name}")
        vars(module).setdefault("__getattr__", _moved_from(module.__name__))
    # Variables of graphs were TensorFlow 1's, of which they lack one method since.
    kind = import_module("tensorflow.python.ops.resource_variable_ops").BaseResourceVariable
    if "initialized_value" not in vars(kind):
        version1 = import_module("tensorflow.python.ops.variable_v1").VariableV1
        kind.initialized_value = version1.initialized_value


def _in_graph(known: Any, saver: Any, sess: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs a method of savers in its session's graph, the default graph of TensorFlow 1."""
    with nullcontext() if sess is None else sess.graph.as_default():
        return known(saver, sess, *args, **kwargs)


def _moved_from(module: str) -> Callable[[str], Any]:
    """Answers for the names that a module has lost: TensorFlow publishes them."""

    def answer(name: str) -> Any:
        if not name.startswith("_") and hasattr(tf.compat.v1, name):
            return getattr(tf.compat.v1, name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)

    return answer


def _device(known: Any, owner: Any, name: Any) -> Any:
    return _on_ipu(known, owner) if _is_ipu(name) else known(owner, name)


def _is_ipu(name: Any) -> bool:
    return isinstance(name, str) and "device:ipu:" in name.lower()


@contextmanager
def _on_ipu(known: Any, owner: Any) -> Iterator[None]:
    with device_code():
        if tf.distribute.has_strategy():  # which has set the replica's device already
            yield
            return
        gpu = tf.config.list_physical_devices("GPU")
        with known(owner, "/device:GPU:0" if gpu else "/device:CPU:0"):
            yield
