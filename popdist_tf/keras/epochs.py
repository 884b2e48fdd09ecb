"""How many steps an epoch has where an instance runs several replicas.

Every replica takes a batch of its own, so a step of an instance with R replicas takes R batches.
Keras counts the batches of a data set before the strategy sees it, would wait for R times as many
steps as there are, and then ends the training early with a warning. The correction applies under
our strategies alone; the original's Keras extensions do the same.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable

_MARK = "_popdist_counts_replicas"


def count_replica_steps() -> None:
    """Makes Keras count the steps of an epoch per instance; safe to call again."""
    handler: Any = import_module("keras.src.engine.data_adapter").DataHandler
    if not hasattr(handler, _MARK):
        handler._infer_steps = _per_instance(handler._infer_steps)
        setattr(handler, _MARK, True)


def _per_instance(infer_steps: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(infer_steps)
    def corrected(self: Any, steps: int | None, dataset: Any) -> Any:
        inferred = infer_steps(self, steps, dataset)
        if steps is not None or inferred is None:
            return inferred
        replicas = getattr(tf.distribute.get_strategy().extended, "replicas_per_step", 1)
        return inferred // replicas

    return corrected
