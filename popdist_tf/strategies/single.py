"""The strategy for one instance: no communication at all."""

from __future__ import annotations

import warnings

import popdist
from popdist_tf.collectives.host import HostCollectives
from popdist_tf.devices.local import replica_devices
from popdist_tf.strategies.base import HostStrategy
from popdist_tf.strategies.extended import HorovodExtended


class IPUStrategy(HostStrategy):
    """Runs on this process's device alone.

    Args:
        ipu_device: Accepted as published.
        enable_dataset_iterators: Accepted as published, without effect on a host.
        enable_keras_extensions: Accepted as published, without effect on a host.
    """

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ) -> None:
        del enable_dataset_iterators, enable_keras_extensions
        if popdist.getNumInstances() > 1:
            warnings.warn(
                f"IPUStrategy keeps its variables to itself, and this job has "
                f"{popdist.getNumInstances()} instances: each trains a model of its own. "
                "PopDistStrategy keeps them equal.",
                stacklevel=2,
            )
        self.ipu_device = ipu_device
        super().__init__(HorovodExtended(self, HostCollectives(None, 1, 0), replica_devices(1)))

    @property
    def supports_loss_scaling(self) -> bool:
        """Whether optimizers may scale losses under this strategy: yes."""
        return True
