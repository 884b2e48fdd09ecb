"""Halves of a batch as two replicas: a replica's context in which nothing is exchanged.

A step may sum values over replicas: Keras' masked losses here sum what masks leave, and a program
may count its rows. So the steps of both halves run again until each gets the sum of what both gave.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow.compat.v2 as tf

from popdist.checks.parts import HALVES
from popdist.checks.passes import ExchangeError, NotJudgedError
from popdist_tf.strategies.one_replica import OnlyReplicaContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_RUNS = 3  # a sum may depend on an earlier sum


class _Sums:
    """Answers to a step that sums over replicas.

    Args:
        replicas: How many there are.
        known: The sums, in the order of the step; None where they are not known yet.
    """

    def __init__(self, replicas: int, known: Sequence[Any] | None = None) -> None:
        self.replicas = replicas
        self._known = known
        self.given: list[Any] = []

    def reduced(self, operation: Any, value: Any) -> Any:
        """The sum, or the mean, of a value over the replicas."""
        value = tf.convert_to_tensor(value)
        number = len(self.given)
        self.given.append(value.numpy())
        if self.replicas == 1:
            return tf.identity(value)
        if self._known is None or number >= len(self._known):
            total = value * self.replicas
        else:
            total = tf.constant(self._known[number])
        is_mean = str(getattr(operation, "value", operation)).upper() == "MEAN"
        total = total / self.replicas if is_mean else total
        return _without_gradient(value, total) if value.dtype.is_floating else total


def _without_gradient(value: Any, total: Any) -> Any:
    def refuse(_: Any) -> Any:
        raise NotJudgedError("the step sums over replicas what depends on weights")

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def answered(_: Any) -> Any:
        return total, refuse

    return answered(value)


class _Context(OnlyReplicaContext):
    """The context of the only replica that a step runs on."""

    sums: _Sums

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """The sum over the replicas that are measured."""
        del options
        return tf.nest.map_structure(lambda one: self.sums.reduced(reduce_op, one), value)

    def _merge_call(self, merge_fn: Any, args: Any, kwargs: Any) -> Any:
        try:
            return super()._merge_call(merge_fn, args, kwargs)
        except ExchangeError:
            # Metrics and moving averages are exchanged here. A step that uses the result fails.
            return None


class Replicas:
    """Runs a step as one replica of a strategy, or of none.

    Args:
        strategy: A strategy over Horovod; None where an optimizer reduces.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    def whole(self, step: Callable[[], Any]) -> Any:
        """What a step returns where it is the only replica."""
        with self._running(_Sums(1)):
            return step()

    def halves(self, *steps: Callable[[], Any]) -> list[Any]:
        """What the steps of both halves return.

        Raises:
            NotJudgedError: The replicas sum something else in each run.
        """
        known = None
        for _ in range(_RUNS):
            results, sums = [], []
            for step in steps:
                sums.append(_Sums(HALVES, known))
                with self._running(sums[-1]):
                    results.append(step())
            first, second = (one.given for one in sums)
            if len(first) != len(second):
                raise NotJudgedError("the halves sum different values")
            if not first:
                return results
            totals = [one + other for one, other in zip(first, second, strict=True)]
            if known is not None and all(map(np.allclose, totals, known)):
                return results
            known = totals
        raise NotJudgedError("the step sums over replicas what depends on other sums")

    @contextmanager
    def _running(self, sums: _Sums) -> Iterator[None]:
        if self._strategy is None:
            yield
            return
        extended = self._strategy.extended
        replica = _Context(self._strategy, extended._get_replica_id_in_sync_group(0))
        replica.sums = sums
        with extended.counted_as(sums.replicas), replica, tf.device(extended.worker_devices[0]):
            yield
