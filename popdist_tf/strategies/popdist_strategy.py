"""The strategies over Horovod, and the strategy of a single instance.

`PopDistStrategy` runs all replicas of a PopDist job, `IPUHorovodStrategy` one replica for each
Horovod rank, and `IPUStrategy` one process without communication.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

import popdist
from popdist_tf.collectives.host import HostCollectives
from popdist_tf.collectives.instances import initialised_collectives, job_collectives
from popdist_tf.hooks import divide_losses_where
from popdist_tf.keras.pipelining import extend_keras
from popdist_tf.strategies.cluster import HostStrategy, refuse_tf_config
from popdist_tf.strategies.devices import replica_devices, warn_of_idle_replicas
from popdist_tf.strategies.extended import HorovodExtended
from popdist_tf.together.outside_scope import refuse_training_outside
from popdist_tf.versions import correct_epoch_steps

if TYPE_CHECKING:
    from collections.abc import Iterator

# The number of steps in an epoch, where an instance runs several replicas.
#
# A step of an instance with R replicas consumes R batches, one for each replica. Keras counts the
# batches of a data set before the strategy divides them. It would expect R times as many steps as
# there are, and end the training early with a warning. The correction applies under our strategies
# alone, as in the original's Keras extensions.


def count_replica_steps() -> None:
    """Makes Keras count the steps of an epoch per instance; safe to call again."""
    correct_epoch_steps(_per_instance)


def _sums_gradients() -> bool:
    return getattr(tf.distribute.get_strategy().extended, "reduces_on_device", True)


def _per_instance(batches: int) -> int:
    replicas: int = getattr(tf.distribute.get_strategy().extended, "replicas_per_step", 1)
    return batches // replicas


class PopDistStrategy(HostStrategy):
    """Data-parallel training over all replicas of a PopDist job.

    Creating it starts host communication, as `popdist.init` does. Initial values of variables come
    from the first instance; gradients are summed over all replicas of all instances, locally first
    and then by Horovod.

    Args:
        ipu_device: Accepted as published; the replicas run on this instance's own devices.
        add_ipu_cross_replica_reductions: Whether reductions in device code are carried out. Where
            they are not, Keras and Estimators do not divide losses by the number of replicas, so
            that an optimizer that averages by itself updates by the mean over the global batch.
        enable_dataset_iterators: Accepted as published, without effect on a host.
        enable_keras_extensions: Whether models have the published methods (gradient accumulation,
            pipelining), and Keras counts the steps of an epoch per instance where an instance runs
            several replicas.

    Raises:
        StrategyError: ``TF_CONFIG`` describes another cluster.
        TooLateError: TensorFlow has started with fewer devices than this instance has replicas.
    """

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        add_ipu_cross_replica_reductions: bool = True,
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ) -> None:
        del enable_dataset_iterators
        devices = replica_devices(popdist.topology().num_local_replicas)
        if popdist.getNumInstances() > 1:
            refuse_tf_config(type(self).__name__)
        if enable_keras_extensions:
            extend_keras()
            if len(devices) > 1:
                count_replica_steps()
        if not add_ipu_cross_replica_reductions:
            divide_losses_where(_sums_gradients)
        self.ipu_device = ipu_device
        collectives = job_collectives()
        refuse_training_outside(type(self).__name__, collectives.size)
        super().__init__(
            HorovodExtended(
                self, collectives, devices, reduce_on_device=add_ipu_cross_replica_reductions
            )
        )

    @contextmanager
    def _scale_loss_for_estimator_enabled(self) -> Iterator[None]:
        scales = super()._scale_loss_for_estimator_enabled()
        with scales if self.extended.reduces_on_device else nullcontext():
            yield

    def update_ipu_config(self, config: Any) -> Any:
        """Writes this instance's place in the job into a configuration.

        Args:
            config: An `IPUConfig`.

        Returns:
            The configuration. (The original returns nothing although its documentation promises
            this, and programs rely on it.)
        """
        distribution = config.experimental.multi_replica_distribution
        collectives = self.extended.collectives
        distribution.process_count, distribution.process_index = collectives.size, collectives.rank
        return config


class IPUHorovodStrategy(HostStrategy):
    """Data-parallel training with one replica for each Horovod rank.

    There is no cluster to describe and no server to start: Horovod knows its ranks. Initial values
    of variables come from rank 0; gradients are summed over the ranks by Horovod.

    Args:
        ipu_device: Accepted as published; the replica runs on this rank's own device.
        variables_on_host: Whether variables and optimizer slots are in host memory. Without a GPU
            they do in any case.

    Raises:
        StrategyError: Horovod is not initialised, or ``TF_CONFIG`` describes another cluster.
    """

    def __init__(self, ipu_device: str = "/device:IPU:0", variables_on_host: bool = False) -> None:
        self.ipu_device = ipu_device
        refuse_tf_config(type(self).__name__)
        warn_of_idle_replicas("IPUHorovodStrategy")
        collectives = initialised_collectives()
        refuse_training_outside(type(self).__name__, collectives.size)
        super().__init__(
            HorovodExtended(
                self,
                collectives,
                replica_devices(1),
                variable_device="/device:CPU:0" if variables_on_host else None,
            )
        )


class IPUStrategy(HostStrategy):
    """Runs on this process's device alone.

    Args:
        ipu_device: Accepted as published.
        cpu_device: Accepted as published.
        enable_dataset_iterators: Accepted as published, without effect on a host.
        enable_keras_extensions: Whether models have the published methods (gradient accumulation,
            pipelining).
    """

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        cpu_device: str = "/device:CPU:0",
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ) -> None:
        del cpu_device, enable_dataset_iterators
        if enable_keras_extensions:
            extend_keras()
        if popdist.getNumInstances() > 1:
            warnings.warn(
                f"IPUStrategy keeps its variables to itself, and this job has "
                f"{popdist.getNumInstances()} instances: each trains a model of its own. "
                "PopDistStrategy keeps them equal.",
                stacklevel=2,
            )
        self.ipu_device = ipu_device
        super().__init__(HorovodExtended(self, HostCollectives(None, 1, 0), replica_devices(1)))
