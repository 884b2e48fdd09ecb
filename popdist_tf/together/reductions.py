"""How the gradients of a Keras model are reduced: by its strategy, or by optimizers that do so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist_tf.versions import optimizer_kinds, strategy_of

if TYPE_CHECKING:
    from popdist_tf.collectives.host import HostCollectives

REDUCTION = "_popdist_reduction"
"""An attribute of optimizers that `popdist_tf.keras` has wrapped; it has the job's collectives."""

AVERAGES = "_popdist_averages"
"""An attribute of optimizers that average gradients over replicas by themselves."""

_REDUCES = (REDUCTION, "_allreduce_grads")


def optimizers_of(model: Any) -> list[Any]:
    """The optimizers that a program has set as attributes of a model, or else that of ``compile``.

    Args:
        model: A model of Keras. Its ``train_step`` may update by optimizers of its own; that of
            ``compile`` is then Keras' default, which updates nothing.
    """
    compiled = getattr(model, "optimizer", None)
    held = [compiled]
    for value in vars(model).values():
        is_dict = isinstance(value, dict)
        held += (
            value.values() if is_dict else value if isinstance(value, (list, tuple)) else [value]
        )
    known = {id(one): one for one in held if isinstance(one, optimizer_kinds())}
    if len(known) > 1:
        known.pop(id(compiled), None)
    return list(known.values())


def reduction_of(model: Any) -> Any:
    """The reduction of a model's wrapped optimizer; None where no optimizer is wrapped.

    Args:
        model: A model of Keras.
    """
    found = (getattr(one, REDUCTION, None) for one in optimizers_of(model))
    return next((one for one in found if one is not None), None)


def reduces(optimizer: Any) -> bool:
    """Whether an optimizer reduces by itself: Horovod's wrapper, and ours.

    Args:
        optimizer: An optimizer of Keras.
    """
    parts = (optimizer, getattr(optimizer, "inner_optimizer", optimizer))
    return any(hasattr(one, mark) for one in parts for mark in _REDUCES)


def collectives_of(held: Any) -> HostCollectives | None:
    """The collectives of a strategy over Horovod; None for other strategies, and for none.

    Args:
        held: A strategy, or None.
    """
    return getattr(getattr(held, "extended", None), "collectives", None)


def is_first_replica() -> bool:
    """Whether the code that is built or run is that of this instance's first replica."""
    replica = tf.distribute.get_replica_context()
    if replica is None:
        return False
    number = replica._replica_id_in_sync_group  # the number, not a tensor
    return not number or not replica.strategy.extended._get_local_replica_id(number)


class Reduction:
    """How the gradients of a model's replicas are combined.

    Attributes:
        wrapper: The reduction of the model's wrapped optimizer; None where none is wrapped.
        extended: The extended class of the model's strategy; None without a strategy.
        collectives: Of the wrapper or the strategy; None where neither is over Horovod.
        strategy: A strategy over Horovod that the model belongs to; None for an optimizer alone.
        averages: Whether gradients are averaged; otherwise they are summed.
        rank: This instance.
    """

    def __init__(self, model: Any) -> None:
        strategy = strategy_of(model)
        self.wrapper = reduction_of(model)
        extended: Any = getattr(strategy, "extended", None)
        self.extended = extended
        is_ours = self.wrapper is None and hasattr(extended, "counted_as")
        self.strategy = strategy if is_ours else None
        self.collectives: HostCollectives | None = (
            collectives_of(strategy) if self.wrapper is None else self.wrapper.collectives
        )
        self.rank = getattr(self.collectives, "rank", 0)
        if is_ours:
            self._replicas = extended._num_replicas_in_sync
            self.averages = not extended.reduces_on_device
        else:
            self._replicas = 1 if self.wrapper is None else self.wrapper.collectives.size
            self.averages = getattr(self.wrapper, "averages", True)

    @property
    def is_needed(self) -> bool:
        """Whether there are several replicas."""
        return bool(self._replicas > 1)

    @property
    def any_factor(self) -> bool:
        """Whether a program divides by the number of replicas where no measurement can see it."""
        if self.averages:
            return False
        return self.strategy is None or bool(self.strategy.has_been_asked)
