"""The strategy for PopDist jobs: every replica of every instance in sync."""

from __future__ import annotations

from typing import Any

import popdist
from popdist_tf.collectives.instances import job_collectives
from popdist_tf.devices.local import replica_devices
from popdist_tf.strategies.base import HostStrategy
from popdist_tf.strategies.cluster import refuse_tf_config
from popdist_tf.strategies.epochs import count_replica_steps
from popdist_tf.strategies.extended import HorovodExtended


class PopDistStrategy(HostStrategy):
    """Data-parallel training over all replicas of a PopDist job.

    Creating it starts host communication, as `popdist.init` does. Initial values of variables come
    from the first instance; gradients are summed over all replicas of all instances, locally first
    and then by Horovod.

    Args:
        ipu_device: Accepted as published; the replicas run on this instance's own devices.
        add_ipu_cross_replica_reductions: Whether reductions in device code are carried out.
        enable_dataset_iterators: Accepted as published, without effect on a host.
        enable_keras_extensions: Whether Keras counts the steps of an epoch per instance where an
            instance runs several replicas.

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
        devices = replica_devices(popdist.getNumLocalReplicas())
        if popdist.getNumInstances() > 1:
            refuse_tf_config(type(self).__name__)
        if enable_keras_extensions and len(devices) > 1:
            count_replica_steps()
        self.ipu_device = ipu_device
        super().__init__(
            HorovodExtended(
                self, job_collectives(), devices, reduce_on_device=add_ipu_cross_replica_reductions
            )
        )

    def update_ipu_config(self, config: Any) -> Any:
        """Writes this instance's place in the job into a configuration.

        Args:
            config: An `IPUConfig`.

        Returns:
            The configuration. (The original returns nothing although its documentation promises
            this, and programs rely on it.)
        """
        distribution = config.experimental.multi_replica_distribution
        distribution.process_count = popdist.getNumInstances()
        distribution.process_index = popdist.getInstanceIndex()
        return config

    @property
    def supports_loss_scaling(self) -> bool:
        """Whether optimizers may scale losses under this strategy: yes."""
        return True
