"""A warning of gradients that each replica clips before they are reduced.

The sum of clipped gradients is not the clipped sum, which one process computes. In a function that
TensorFlow builds, gradients that come from `tf.clip_by_global_norm`, `tf.clip_by_norm` or
`tf.clip_by_value` are known by the operation that makes them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist_tf.guards.means import warn

if TYPE_CHECKING:
    from collections.abc import Iterable

# The name and the type of the last operation of each function.
_CLIPS = {"clip_by_global_norm": "Identity", "clip_by_norm": "Identity", "clip_by_value": "Maximum"}
_NAME = re.compile(rf"(?:^|/)({'|'.join(_CLIPS)})(?:_\d+)?(?:/|$)")
_BACKWARD = re.compile(r"(?:^|/)gradient(?:s|_tape)(?:_\d+)?/")
# Between a reduction and a clip: what leaves one value for each element.
_PASSED = {"AddV2", "AddN", "Cast", "GuaranteeConst", "Identity", "IdentityN", "Mul", "RealDiv"}
_PASSED |= {"Maximum", "Minimum"}
_LIBRARIES = ("/site-packages/", f"{Path(__file__).parents[1]}/")


def warn_of_local_clips(gradients: Iterable[Any], replicas: int) -> None:
    """Warns if gradients of a replica, before they are reduced, come from a clip.

    Args:
        gradients: Of one replica; None for weights without one.
        replicas: Of the job.
    """
    for gradient in gradients:
        held = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        operation = None if tf.executing_eagerly() else getattr(held, "op", None)
        clip = None if operation is None else _clip(operation)
        if clip is not None and not _is_reduced(operation):
            warn(
                f"a replica clips its own gradients ({clip}, {place(operation)}) before they are "
                f"reduced over {replicas} replicas: one process clips the gradient of all rows, "
                "which is another update. Use clipnorm, global_clipnorm or clipvalue of the "
                "optimizer, which clip after the reduction."
            )
            return


def warn_in_replica(_: Any, __: Any, gradients: list[Any]) -> None:
    """Warns on the job's first replica, where a strategy of several replicas sums gradients."""
    replica, strategy = tf.distribute.get_replica_context(), tf.distribute.get_strategy()
    if replica is None or not getattr(strategy.extended, "reduces_on_device", True):
        return
    replicas = strategy.extended._num_replicas_in_sync
    if replicas > 1 and replica._replica_id_in_sync_group == 0:  # the number, not a tensor
        warn_of_local_clips(gradients, replicas)


def _clip(operation: Any) -> str | None:
    found = _NAME.search(operation.name)
    if found is None or _BACKWARD.search(operation.name):
        return None
    return f"tf.{found[1]}" if operation.type == _CLIPS[found[1]] else None


def _is_reduced(operation: Any) -> bool:
    """Whether the values that a clip was given have been reduced already."""
    waiting, seen = [operation], {operation.name}
    while waiting:
        for source in waiting.pop().inputs:
            one = source.op
            if one.type.startswith(("Horovod", "Collective")):
                return True
            if one.type in _PASSED and one.name not in seen:
                seen.add(one.name)
                waiting.append(one)
    return False


def place(operation: Any) -> str:
    """The line of the program that made an operation.

    Args:
        operation: Of a graph.
    """
    for frame in reversed(list(operation.traceback or ())):
        if not any(part in frame.filename for part in _LIBRARIES):
            return f"{frame.filename}:{frame.lineno}"
    return "in an unknown line"
