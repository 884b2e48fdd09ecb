"""The published variable classes, and the creation of distributed variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.python.distribute import distribute_lib, distribute_utils, values, values_util
from tensorflow.python.trackable import base as trackable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class IPUDistributedVariable(values.DistributedVariable):  # type: ignore[misc]
    """A variable with one component for each local replica."""


class IPUMirroredVariable(values.MirroredVariable):  # type: ignore[misc]
    """A variable that is kept equal on all replicas of all instances (ON_WRITE)."""

    def _update_replica(self, update_fn: Any, value: Any, **kwargs: Any) -> Any:
        if self.aggregation == tf.VariableAggregation.NONE:
            # Each replica writes its own value, which may differ from the others'.
            self.distribute_strategy.extended.note_own_update(self)
        return super()._update_replica(update_fn, value, **kwargs)


class IPUSyncOnReadVariable(values.SyncOnReadVariable):  # type: ignore[misc]
    """A variable that each replica writes alone, reduced over all replicas when read (ON_READ)."""

    def value(self) -> Any:
        """The replica's own value; the reduced one outside of replicas."""
        if _reads_first_replica(self):
            return self._get_cross_replica()
        return super().value()

    def _get_cross_replica(self) -> Any:
        _read_by_all_instances(self)
        if self.aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA:
            return _of_first_replica(self)
        return super()._get_cross_replica()


class IPUOnWritePolicy(values.OnWritePolicy):  # type: ignore[misc]
    """The policy of variables that are kept equal."""


class IPUOnReadPolicy(values.OnReadPolicy):  # type: ignore[misc]
    """The policy of variables that are reduced when read."""

    def value(self, var: Any) -> Any:
        """The replica's own value; the reduced one outside of replicas."""
        return self._get_cross_replica(var) if _reads_first_replica(var) else super().value(var)

    def _get_cross_replica(self, var: Any) -> Any:
        _read_by_all_instances(var)
        if var.aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA:
            return _of_first_replica(var)
        return super()._get_cross_replica(var)


def _read_by_all_instances(variable: Any) -> None:
    """Checks that no instance reads alone, as one that saves a model alone does."""
    extended = variable.distribute_strategy.extended
    # The workers of TensorFlow's own collectives share no Horovod to compare by.
    if tf.executing_eagerly() and hasattr(extended, "agree_to_read"):
        extended.agree_to_read(variable)


# TensorFlow reads such a variable from the first replica of each process, which are different ones.


def _reads_first_replica(variable: Any) -> bool:
    if variable.aggregation != tf.VariableAggregation.ONLY_FIRST_REPLICA:
        return False
    if values_util.is_saving_non_distributed() or values_util.in_replica_update_context():
        return False
    with distribute_lib.enter_or_assert_strategy(variable.distribute_strategy):
        return bool(distribute_lib.in_cross_replica_context())


def _of_first_replica(variable: Any) -> Any:
    strategy = variable.distribute_strategy
    with distribute_lib.enter_or_assert_strategy(strategy):
        return strategy.extended.from_first_replica(variable.values[0].read_value())


def _by_synchronization(mapping: dict[Any, Any], ours: dict[str, Any]) -> dict[Any, Any]:
    return {key: ours[value.__name__] for key, value in mapping.items()}


CLASSES = _by_synchronization(
    distribute_utils.VARIABLE_CLASS_MAPPING,
    {
        "DistributedVariable": IPUDistributedVariable,
        "MirroredVariable": IPUMirroredVariable,
        "SyncOnReadVariable": IPUSyncOnReadVariable,
    },
)
POLICIES = _by_synchronization(
    distribute_utils.VARIABLE_POLICY_MAPPING,
    {"OnWritePolicy": IPUOnWritePolicy, "OnReadPolicy": IPUOnReadPolicy},
)


def evaluate_initial_value(initial_value: Any, dtype: Any) -> Any:
    """The tensor that a variable starts from; calls functions and reads checkpoint values."""
    value = initial_value() if callable(initial_value) else initial_value
    if isinstance(value, trackable.CheckpointInitialValue):
        value = value.wrapped_value
    return tf.convert_to_tensor(value, dtype=dtype)


def create_variable(
    extended: Any, host_device: str | None, next_creator: Callable[..., Any], kwargs: dict[str, Any]
) -> Any:
    """Creates a distributed variable, with one component for each local replica.

    ON_WRITE variables are placed on ``host_device`` if it is given. Variables that each replica
    writes alone (ON_READ) are always placed on the replica's own device.
    """
    colocated = kwargs.pop("colocate_with", None)
    if colocated is not None and not hasattr(colocated, "_devices"):
        with tf.device(colocated.device):
            return next_creator(**kwargs)
    devices = extended._devices if colocated is None else colocated._devices
    on_read = kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ
    if host_device is not None and not on_read:
        devices = (host_device,) * len(devices)

    def create_components(**kwargs: Any) -> list[Any]:
        components: list[Any] = []
        for replica, device in enumerate(devices):
            with tf.device(device):
                primary = components[0] if components else None
                kwargs["initial_value"] = extended._get_variable_creator_initial_value(
                    replica, device, primary, **kwargs
                )
                if primary is not None:
                    # With a slash at its end, TensorFlow uses the name unchanged.
                    kwargs["name"] = f"{primary.name.split(':')[0]}/replica_{replica}/"
                components.append(next_creator(**kwargs))
        return components

    strategy = extended._container_strategy()
    return distribute_utils.create_mirrored_variable(
        strategy, create_components, CLASSES, POLICIES, **kwargs
    )


def forget_exchange(variable: Any, received: Sequence[tuple[Any, Any]]) -> None:
    """Makes reads of a new variable's initial value in a graph no exchange.

    TensorFlow's hooks read the global step, or its initial value where there is none yet. A session
    computes both in each read, also of an instance alone. A variable that is made of an initial
    value still gets the first instance's.

    Args:
        variable: Of all local replicas.
        received: Initial values that were received, each with this instance's own one.
    """
    for component in getattr(variable, "values", (variable,)):
        for value, own in received:
            if getattr(component, "_initial_value", None) is value:
                component._initial_value = own
