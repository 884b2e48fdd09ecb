"""A warning of batches that have other sizes on some instances.

The mean over instances counts the rows of small batches more than one process does.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist.checks import is_enabled
from popdist_tf.checks import SIZES
from popdist_tf.collectives.agreement import compared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from popdist_tf.collectives.host import HostCollectives

_IGNORED = r"Where this is meant: warnings.filterwarnings('ignore', message=r'\[PD431\]')."
_DEFAULT_BATCH = 32  # of Keras


def warn(text: str) -> None:
    """Says in which way an update is not that of one process; Python shows an equal warning once.

    Args:
        text: What is averaged, and what to do.
    """
    warnings.warn(f"[PD431] {text} {_IGNORED}", stacklevel=2)


def warn_of_sizes(says: str) -> None:
    """Says that batches have other sizes on some instances.

    Args:
        says: Which sizes.
    """
    if not is_enabled(SIZES):
        return
    warn(
        "the instances have batches of different sizes, and the mean over instances counts "
        f"rows of small batches more than one process does ({says}). Give all "
        "instances as many rows, or drop the last batch (drop_remainder=True)."
    )


class SameSizes(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Warns in ``fit`` of batches that have other sizes on some instances.

    Args:
        collectives: The job's collectives.
        fit: The arguments of ``fit``.
        warn_of_rows: Called after the first epoch with a model and the sizes that differ.
    """

    def __init__(
        self,
        collectives: HostCollectives,
        fit: Mapping[str, Any],
        warn_of_rows: Callable[[HostCollectives, Any, Any], None],
    ) -> None:
        super().__init__()
        self._collectives = collectives
        self._sizes = _sizes(fit)
        self._warn_of_rows = warn_of_rows
        self._found: Any = ()
        self.has_compared = False  # sizes that differ

    def on_train_begin(self, logs: Any = None) -> None:
        """Compares the sizes of batches."""
        del logs
        self._found = compared(self._collectives, "sizes of batches", {"rows": self._sizes})
        self.has_compared = bool(self._found)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Warns, now that it is known whether sizes matter to a step."""
        del epoch, logs
        found, self._found = self._found, ()
        self._warn_of_rows(self._collectives, self.model, found)


def _sizes(fit: Mapping[str, Any]) -> str:
    """How many rows the batches of a ``fit`` have, as far as it is known."""
    data = fit.get("x")
    if isinstance(data, tf.data.Dataset):
        parts = tf.nest.flatten(data.element_spec, expand_composites=True)
        shapes = [one.shape for one in parts if getattr(one, "shape", None)]
        return f"batches of {shapes[0][0]} rows" if shapes and shapes[0].rank else "unknown"
    shapes = [one.shape for one in tf.nest.flatten(data) if getattr(one, "shape", None)]
    if not shapes:
        return "unknown"
    rows = int(shapes[0][0] * (1 - (fit.get("validation_split") or 0)))
    batch = fit.get("batch_size") or _DEFAULT_BATCH
    return f"batches of {min(batch, rows)} rows, and at last {rows % batch or min(batch, rows)}"
