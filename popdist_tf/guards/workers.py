"""Comparisons between the workers of an Estimator, in their sessions between two steps.

A sum of a number over the workers is as many times a worker's own number as there are workers,
where all have the same. So a reduction of the strategy is all that is needed, with gRPC too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow.compat.v2 as tf

from popdist.checks import is_enabled
from popdist.checks.trained import note_end
from popdist_tf.checks import STATE
from popdist_tf.collectives.agreement import digests
from popdist_tf.errors import AgreementError
from popdist_tf.guards.equal_data import rows_of, warn
from popdist_tf.guards.means import warn_of_sizes
from popdist_tf.guards.rows import ODD, rows_of_batch

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NAMED = 5
_STEPS = 2


class CompareWorkers(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Compares weights after the first step, rows of the first two, and the sizes of all batches.

    Args:
        strategy: The strategy of the training.
        batch: Of this worker, a structure of tensors.
        sizes: Whether the sizes of batches are compared at the end of the training.
    """

    def __init__(self, strategy: Any, batch: Any, *, sizes: bool) -> None:
        self._strategy = strategy
        rows = rows_of(batch)
        self._rows = digests(rows) if rows else None
        self._size = rows_of_batch(batch) if sizes else None
        self._names: list[str] = []
        self._weights: list[Any] = []
        self._digests: Any = None
        self._steps = 0
        self._seen: list[bytes] = []  # rows of the first steps, where all workers have the same
        self._sizes = np.zeros(1, np.int64)
        self._given: Any = None
        self._total: Any = None

    def begin(self) -> None:
        """Adds the comparison to the graph."""
        weights = tf.compat.v1.trainable_variables()
        self._names = [weight.name for weight in weights]
        self._weights = [getattr(weight, "values", (weight,))[0] for weight in weights]
        self._digests = digests(self._weights) if weights else None
        numbers = max(len(weights), 0 if self._rows is None else self._rows.shape[0], 1)
        self._given = tf.compat.v1.placeholder(tf.int64, [numbers])
        with self._strategy.scope():
            self._total = self._strategy.reduce(tf.distribute.ReduceOp.SUM, self._given, axis=None)

    def before_run(self, run_context: Any) -> Any:
        """Reads the rows of the first two batches, and the size of each."""
        del run_context
        rows = self._rows if self._steps < _STEPS else None
        wanted = {"rows": rows, "size": self._size}
        return tf.compat.v1.train.SessionRunArgs(
            {name: value for name, value in wanted.items() if value is not None}
        )

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Compares the weights once, and the rows twice.

        Raises:
            AgreementError: Weights differ; raised on all workers.
        """
        found, session = run_values.results, run_context.session
        if self._steps == 0 and self._digests is not None:
            self._require_equal_weights(session)
        if "rows" in found:
            self._compare_rows(found["rows"], session)
        if "size" in found:
            self._sizes += np.int64(found["size"]) * (np.array([self._steps]) * ODD + 1)
        self._steps += 1

    def end(self, session: Any) -> None:
        """Compares the sizes, and notes the weights, which the launcher compares."""
        if self._weights:
            values = session.run(self._weights)
            note_end("Estimator", list(zip(self._names, values, strict=True)))
        is_apart = self._size is not None and self._is_apart(self._sizes, session).any()
        if is_apart and self._is_chief:
            warn_of_sizes("steps of the training had other numbers of rows on some instances")

    def _require_equal_weights(self, session: Any) -> None:
        differ = self._is_apart(session.run(self._digests), session)
        if differ.any() and is_enabled(STATE):
            names = [name for name, one in zip(self._names, differ, strict=True) if one]
            raise AgreementError(
                "PD007",
                "the workers hold different weights after the first step: each would train a "
                "model of its own",
                value=f"{len(names)} of {len(differ)} weights differ: {', '.join(names[:_NAMED])}",
                hint="build the optimizer alike on all workers, inside of the model function, and "
                "update weights through it alone (optimizer.apply_gradients)",
            )

    def _compare_rows(self, rows: NDArray[np.int64], session: Any) -> None:
        """Warns of rows that are the same everywhere in both steps, and not in these alike."""
        if not self._is_apart(rows, session).any():
            self._seen.append(rows.tobytes())
        if self._steps == _STEPS - 1 and len(set(self._seen)) == _STEPS and self._is_chief:
            warn(self._workers)

    def _is_apart(self, own: NDArray[np.int64], session: Any) -> NDArray[np.bool_]:
        """Which numbers differ between workers; all must call it."""
        padded = np.zeros(self._given.shape, np.int64)
        padded[: len(own)] = own
        total = np.asarray(session.run(self._total, {self._given: padded}))
        apart: NDArray[np.bool_] = (total != padded * self._workers)[: len(own)]
        return apart

    @property
    def _is_chief(self) -> bool:
        return bool(self._strategy.extended.should_checkpoint)

    @property
    def _workers(self) -> int:
        # Each instance hands in one value, whatever its local replicas.
        extended = self._strategy.extended
        return int(self._strategy.num_replicas_in_sync // getattr(extended, "replicas_per_step", 1))
