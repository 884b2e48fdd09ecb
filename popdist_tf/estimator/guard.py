"""Stops an Estimator's training whose workers hold different weights after the first step."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from popdist_tf.collectives.digests import digest
from popdist_tf.errors import AgreementError

_NAMED = 5


class CompareAfterFirstStep(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Compares the trained weights of all workers once, after the first step of a training.

    A sum over the workers of a number for each weight is as many times a worker's own number as
    there are workers, where they are equal. It works under every strategy.

    Args:
        strategy: The strategy of the training.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._names: list[str] = []
        self._differ: Any = None

    def begin(self) -> None:
        """Adds the comparison to the graph."""
        weights = tf.compat.v1.trainable_variables()
        if not weights:
            return
        self._names = [weight.name for weight in weights]
        own = tf.stack([digest(getattr(one, "values", (one,))[0]) for one in weights])
        with self._strategy.scope():
            total = self._strategy.reduce(tf.distribute.ReduceOp.SUM, own, axis=None)
            self._differ = tf.not_equal(total, own * self._workers)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Compares, once.

        Raises:
            AgreementError: Weights differ; raised on all workers.
        """
        del run_values
        if self._differ is None:
            return
        differ, self._differ = run_context.session.run(self._differ), None
        if differ.any():
            names = [name for name, one in zip(self._names, differ, strict=True) if one]
            raise AgreementError(
                "PD413",
                "the workers hold different weights after the first step: each would train a "
                "model of its own",
                value=f"{len(names)} of {len(differ)} weights differ: {', '.join(names[:_NAMED])}",
                hint="build the optimizer alike on all workers, inside of the model function, and "
                "update weights through it alone (optimizer.apply_gradients)",
            )

    @property
    def _workers(self) -> int:
        # Each instance hands in one value, whatever its local replicas.
        extended = self._strategy.extended
        return int(self._strategy.num_replicas_in_sync // getattr(extended, "replicas_per_step", 1))
