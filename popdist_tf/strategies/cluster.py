"""The base class of the strategies, and the check for clusters that ``TF_CONFIG`` describes."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.distribute.values import DistributedValues

from popdist_tf.checks.parts import probe_parts
from popdist_tf.errors import StrategyError
from popdist_tf.hooks import add_callbacks, compile_where
from popdist_tf.keras.averages import overwrite_by_averages_where
from popdist_tf.keras.spectral import support_spectral_normalization
from popdist_tf.strategies.masked_losses import share_masks
from popdist_tf.strategies.random_numbers import separate_random_numbers
from popdist_tf.versions import (
    clip_sums_where,
    strategy_of,
    support_backups,
    support_loss_scaling,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


def refuse_tf_config(strategy: str) -> None:
    """Refuses to create a Horovod strategy where ``TF_CONFIG`` describes several tasks.

    TensorFlow's estimators would read the cluster from ``TF_CONFIG`` and wait for its servers,
    whatever the strategy says.

    Raises:
        StrategyError: ``TF_CONFIG`` names more than one task.
    """
    try:
        cluster: dict[str, Any] = (
            tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec().as_dict()
        )
    except (ValueError, json.JSONDecodeError) as error:
        raise StrategyError("PD411", f"TF_CONFIG cannot be read: {error}") from None
    if sum(len(tasks) for tasks in cluster.values()) > 1:
        raise StrategyError(
            "PD411",
            f"TF_CONFIG describes a cluster, and {strategy} takes its workers from Horovod",
            value=cluster,
            accepted="a Horovod job without TF_CONFIG",
            hint="unset TF_CONFIG (poprun --tf-config no), or use IPUMultiWorkerStrategy",
        )


class HostStrategy(distribute_lib.StrategyV1):  # type: ignore[misc]
    """A strategy whose workers communicate over the host network.

    The class offers the methods of TensorFlow 1 programs (`experimental_run_v2`) and of current
    programs (`gather`).
    """

    _collective_key_base = 0  # published; TensorFlow's mirrored strategies read it

    _separates_random_numbers = True

    def __init__(self, extended: Any) -> None:
        support_loss_scaling()
        support_spectral_normalization()
        clip_sums_where(_is_current)
        compile_where(lambda: not _is_current())
        overwrite_by_averages_where(lambda: _is_current() and _several_replicas())
        separate_random_numbers()
        share_masks()
        probe_parts()
        add_callbacks("backups", _support_backups)
        super().__init__(extended)
        self.has_been_asked = False  # by the program

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas of all instances, over which gradients are summed."""
        # A program that asks outside of replicas may divide its losses by this number, which the
        # measurement of `checks.parts` cannot see.
        if tf.distribute.in_cross_replica_context() or not tf.distribute.has_strategy():
            self.has_been_asked = True
        return int(super().num_replicas_in_sync)

    @property
    def supports_loss_scaling(self) -> bool:
        """Whether optimizers may scale losses under this strategy: always true."""
        return True

    def run(self, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        """Runs a function on every replica.

        Args:
            fn: The function.
            args: Its arguments; of a value for each replica, each replica gets its own.
            kwargs: Its keyword arguments, likewise.
            options: TensorFlow's `tf.distribute.RunOptions`.

        Returns:
            What the replicas return, merged.
        """
        # Not `super`, which AutoGraph cannot convert.
        build = functools.partial(distribute_lib.StrategyV1.run, self, fn, args, kwargs, options)
        if tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function:
            return build()
        return tf.nest.map_structure(_as_one_operation, self.extended.guard.in_session(build))

    def experimental_run_v2(self, fn: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs a function on every replica, as `run` does; the name is TensorFlow 1's."""
        return self.run(fn, args=args, kwargs=kwargs)

    def gather(self, value: Any, axis: int) -> Any:
        """Concatenates the replicas' values along an axis, in the order of replica ids.

        Args:
            value: One value for each replica, with at least one dimension.
            axis: The dimension to concatenate along.

        Returns:
            The concatenation, the same on every instance.
        """
        return tf.distribute.Strategy.gather(self, value, axis)


def _support_backups(model: Any, fit: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    strategy = strategy_of(model)
    if hasattr(getattr(strategy, "extended", None), "guard"):
        support_backups(fit["callbacks"], strategy)
    return [], []


def _is_current() -> bool:
    return isinstance(tf.distribute.get_strategy(), HostStrategy)


def _several_replicas() -> bool:
    return bool(tf.distribute.get_strategy().extended._num_replicas_in_sync > 1)


def _as_one_operation(result: Any) -> Any:
    """One operation in place of the local replicas' operations, which a session could not run."""
    parts = result.values if isinstance(result, DistributedValues) else ()
    if parts and all(isinstance(one, tf.Operation) for one in parts):
        return tf.group(*parts)
    return result
