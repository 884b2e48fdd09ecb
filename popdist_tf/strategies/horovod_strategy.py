"""The strategy for any Horovod job: one replica for each rank."""

from __future__ import annotations

from popdist_tf.collectives.binding import initialised_collectives
from popdist_tf.devices.local import replica_devices
from popdist_tf.strategies.base import HostStrategy
from popdist_tf.strategies.cluster import refuse_tf_config
from popdist_tf.strategies.extended import HorovodExtended


class IPUHorovodStrategy(HostStrategy):
    """Data-parallel training with one replica for each Horovod rank.

    There is no cluster to describe and no server to start: Horovod knows its ranks. Initial values
    of variables come from rank 0; gradients are summed over the ranks by Horovod.

    Args:
        ipu_device: Accepted as published; the replica runs on this rank's own device.
        variables_on_host: Whether variables and optimizer slots live in host memory. Without a GPU
            they do in any case.

    Raises:
        StrategyError: Horovod is not initialised, or ``TF_CONFIG`` describes another cluster.
    """

    def __init__(self, ipu_device: str = "/device:IPU:0", variables_on_host: bool = False) -> None:
        self.ipu_device = ipu_device
        refuse_tf_config(type(self).__name__)
        super().__init__(
            HorovodExtended(
                self,
                initialised_collectives(),
                replica_devices(1),
                variable_device="/device:CPU:0" if variables_on_host else None,
            )
        )
