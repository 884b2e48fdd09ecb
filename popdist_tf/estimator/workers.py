"""Comparisons between the workers of an Estimator: weights, rows, and the sizes of batches."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist.checks.trained import note_end
from popdist_tf.checks import STATE
from popdist_tf.checks.first_steps import FirstSteps, Weights
from popdist_tf.checks.rows import count_in_words, count_of_step, rows_of_batch, warn_of_sizes
from popdist_tf.collectives.agreement import compared
from popdist_tf.errors import AgreementError
from popdist_tf.together.reductions import collectives_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from popdist.agreement import Disagreement

_NAMED = 5
_DIFFERENT = "[PD007] workers hold different weights after the first step:"


class CompareWorkers(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Compares weights after the first step, rows of the first two, and the sizes of all batches.

    Args:
        strategy: The strategy of the training.
        batch: Of this worker, a structure of tensors.
    """

    def __init__(self, strategy: Any, batch: Any) -> None:
        self._gathering = getattr(getattr(strategy.extended, "guard", None), "collectives", None)
        collectives = collectives_of(strategy)
        is_several = collectives is not None and collectives.horovod is not None
        self._collectives = collectives if is_several else None
        self._batch = batch
        self._weights: list[tuple[str, Any]] = []
        self._count = [0, 0, 0]
        rows = rows_of_batch(batch)
        is_unknown = isinstance(rows, tf.Tensor)
        size = "unknown" if is_unknown else f"{rows} rows"
        found = self._differing({"rows": size})
        if found:
            self._warn(found[0].says)
        # Steps alone know it.
        self._size = rows if is_unknown and self._collectives is not None and not found else None

    def after_update(self, train_op: Any) -> Any:
        """An operation that runs an update and then compares, if it is one of the first.

        Args:
            train_op: The update.
        """
        held = tf.compat.v1.trainable_variables()
        self._weights = [(one.name, getattr(one, "values", (one,))[0]) for one in held]
        if self._gathering is None:
            return train_op
        weights = Weights(frozenset({1}), STATE, _DIFFERENT, self._weights)
        with tf.control_dependencies([train_op]):
            return tf.group(FirstSteps(self._gathering, None).compare(self._batch, [weights]))

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Surrounds the training.

        Raises:
            AgreementError: Weights differ; raised on all workers.
        """
        try:
            yield
        except tf.errors.InvalidArgumentError as error:
            found = re.search(rf"{re.escape(_DIFFERENT)}([^\n\]]*)", error.message)
            if found is None:
                raise
            names = found[1].split()
            said = f"{len(names)} of {len(self._weights)} weights differ"
            raise AgreementError(
                "PD007",
                "the workers hold different weights after the first step: each would train a "
                "model of its own",
                value=f"{said}: {', '.join(names[:_NAMED])}",
                hint="build the optimizer alike on all workers, inside of the model function, and "
                "update weights through it alone (optimizer.apply_gradients)",
            ) from None

    def before_run(self, run_context: Any) -> Any:
        """Reads the size of a batch."""
        del run_context
        return None if self._size is None else tf.compat.v1.train.SessionRunArgs(self._size)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Counts the rows of a batch."""
        del run_context
        if self._size is not None:
            more = count_of_step(self._count[0], int(run_values.results))
            self._count = [before + now for before, now in zip(self._count, more, strict=True)]

    def end(self, session: Any) -> None:
        """Compares the sizes, and notes the weights, which the launcher compares."""
        if self._weights:
            names, held = zip(*self._weights, strict=True)
            note_end("Estimator", list(zip(names, session.run(list(held)), strict=True)))
        if self._size is not None and self._differing({"rows": count_in_words(self._count)}):
            self._warn("steps of the training had other numbers of rows on some instances")

    def _differing(self, facts: dict[str, str]) -> list[Disagreement]:
        if self._collectives is None:
            return []
        return compared(self._collectives, "sizes of batches", facts)

    def _warn(self, says: str) -> None:
        if self._collectives is not None and self._collectives.rank == 0:
            warn_of_sizes(says)
