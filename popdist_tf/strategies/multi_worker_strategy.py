"""The strategy over TensorFlow's own ring collectives (gRPC), for clusters from ``TF_CONFIG``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.python.distribute import collective_all_reduce_strategy as collective
from tensorflow.python.distribute import collective_util

import popdist
from popdist_tf.checks.strategy_steps import StepGuard
from popdist_tf.errors import StrategyError
from popdist_tf.strategies import variables
from popdist_tf.strategies.cluster import HostStrategy
from popdist_tf.strategies.cross_device import check_reduction
from popdist_tf.strategies.devices import warn_of_idle_replicas
from popdist_tf.strategies.extended import device_code
from popdist_tf.together.outside_scope import refuse_training_outside
from popdist_tf.together.servers import require_server

if TYPE_CHECKING:
    from collections.abc import Callable


class IPUMultiWorkerStrategy(HostStrategy):
    """Data-parallel training with one replica for each worker of a TensorFlow cluster.

    Initial values of variables come from the chief; gradients are summed over the workers by
    TensorFlow's ring collectives.

    Args:
        cluster_resolver: Describes the workers, usually a `TFConfigClusterResolver`.
        ipu_device: Accepted as published; the replica runs on this worker's own device.
        variables_on_host: Whether variables and optimizer slots are in host memory. Without a GPU
            they do in any case.

    Raises:
        StrategyError: The resolver does not describe workers of which this process is one.
    """

    def __init__(
        self,
        cluster_resolver: Any,
        ipu_device: str = "/device:IPU:0",
        variables_on_host: bool = False,
    ) -> None:
        if not hasattr(cluster_resolver, "cluster_spec"):
            raise StrategyError(
                "PD411",
                "IPUMultiWorkerStrategy needs a cluster resolver",
                value=cluster_resolver,
                accepted="tf.distribute.cluster_resolver.TFConfigClusterResolver(), for example",
            )
        _check_cluster(cluster_resolver)
        warn_of_idle_replicas("IPUMultiWorkerStrategy")
        self.ipu_device = ipu_device
        super().__init__(MultiWorkerExtended(self, cluster_resolver, variables_on_host))
        refuse_training_outside(type(self).__name__, self.extended._num_workers)
        if self.extended._num_workers > 1:
            own = cluster_resolver.task_type, cluster_resolver.task_id
            address = cluster_resolver.cluster_spec().task_address(*own)
            require_server(type(self).__name__, address)

    @property
    def cluster_resolver(self) -> Any:
        """The resolver that this strategy was created with."""
        return self.extended._cluster_resolver


def _check_cluster(cluster_resolver: Any) -> None:
    """Refuses a cluster without tasks in a job of several instances."""
    size = popdist.getNumInstances()
    if not cluster_resolver.cluster_spec().jobs and size > 1:
        raise StrategyError(
            "PD415",
            "the cluster resolver names no worker: TF_CONFIG is not set, and each of the "
            f"{size} instances would train alone",
            value=f"TF_CONFIG={os.environ.get('TF_CONFIG')!r}",
            accepted='{"cluster": {"worker": ["host:port", ...]}, '
            '"task": {"type": "worker", "index": 0}}',
            hint="start the job with poprun --tf-config yes, which sets TF_CONFIG for each "
            "instance",
        )


class MultiWorkerExtended(collective.CollectiveAllReduceExtended):  # type: ignore[misc]
    """The extended class of `IPUMultiWorkerStrategy`.

    Args:
        strategy: The strategy it belongs to.
        cluster_resolver: Describes the workers.
        variables_on_host: Whether variables are in host memory.
    """

    def __init__(self, strategy: Any, cluster_resolver: Any, variables_on_host: bool) -> None:
        self._variables_on_host = variables_on_host
        super().__init__(
            strategy,
            cluster_resolver=cluster_resolver,
            communication_options=collective_util.Options(
                implementation=collective_util.CommunicationImplementation.RING
            ),
        )
        self.guard = StepGuard(self if self._num_workers > 1 else None)

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        host = f"{self._worker_device}/device:CPU:0" if self._variables_on_host else None
        created = variables.create_variable(self, host, next_creator, kwargs)
        if kwargs.get("trainable") is not False:
            self.guard.note_weight(created)
        return created

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        # Integers of the program's text, such as the 1 that counts steps, are alike everywhere.
        if not isinstance(tensor, int):
            tensor = tf.convert_to_tensor(tensor, getattr(destinations, "dtype", None))
            tensor = self.from_first_replica(tensor)
        return super()._broadcast_to(tensor, destinations)

    def from_first_replica(self, value: Any) -> Any:
        """The chief's value, from the value of each worker."""
        # A sum with zeros is the value itself, in every dtype that has a sum.
        dtype = value.dtype
        value = tf.cast(value, tf.int32) if dtype == tf.bool else value
        own = value if self._id_in_cluster == 0 else tf.zeros_like(value)
        return tf.cast(self.sum_over_workers(own), dtype)

    @property
    def size(self) -> int:
        """How many workers there are."""
        return int(self._num_workers)

    @property
    def rank(self) -> int:
        """The place of this one among them."""
        return int(self._id_in_cluster)

    def allgather(self, tensor: Any, name: str | None = None) -> Any:
        """The workers' rows, in the order of the workers; ``name`` is not needed to pair them."""
        del name
        place = tf.one_hot([self._id_in_cluster], self._num_workers, axis=0, dtype=tensor.dtype)
        return self.sum_over_workers(place * tensor)

    def sum_over_workers(self, tensor: Any) -> Any:
        """The sum of the workers' tensors."""
        return self._reduce_to(tf.distribute.ReduceOp.SUM, tensor, self._worker_device, None)

    def note_own_update(self, variable: Any) -> None:
        """Takes notice of a variable that each replica updates by a value of its own."""
        self.guard.note(variable, by_each_replica=True)

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        self.guard.note(var)
        return super()._update(var, fn, args, kwargs, group)

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        with self.guard.step(fn, (args, kwargs)), device_code():
            return super()._call_for_each_replica(fn, args, kwargs)

    def _batch_reduce_to(
        self, reduce_op: Any, value_destination_pairs: Any, options: Any
    ) -> list[Any]:
        values = self.guard.before_reduction([value for value, _ in value_destination_pairs])
        destinations = [where for _, where in value_destination_pairs]
        pairs = list(zip(values, destinations, strict=True))
        return list(super()._batch_reduce_to(reduce_op, pairs, options))

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        if not tf.executing_eagerly():  # otherwise TensorFlow goes by `_batch_reduce_to`
            flat = self.guard.before_reduction(tf.nest.flatten(value))
            value = tf.nest.pack_sequence_as(value, flat)
        return super()._replica_ctx_all_reduce(reduce_op, value, options)

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        check_reduction(reduce_op)
        reduce_one = super()._reduce_to
        # Keras 3 reduces whole structures of inputs while it builds a model.
        return tf.nest.map_structure(
            lambda one: reduce_one(reduce_op, one, destinations, options), value
        )
