"""A strategy of two instances whose other one is `Peers`, a stand-in for Horovod."""

import tensorflow as tf

from popdist_tf.collectives.host import HostCollectives
from popdist_tf.strategies.cluster import HostStrategy
from popdist_tf.strategies.extended import HorovodExtended
from tests.popdist_tf.peers import Peers


class Job(HostStrategy):
    """A strategy over Horovod, as the published ones are made, with peers that are not there."""

    def __init__(self, replicas, rank=0, factor=10, **options):
        self.peers = Peers((1, factor) if rank == 0 else (factor, 1), rank)
        devices = [f"/device:CPU:{index}" for index in range(replicas)]
        collectives = HostCollectives(self.peers, 2, rank)
        super().__init__(HorovodExtended(self, collectives, devices, **options))


def replica_number():
    """1 on this instance's first replica, 2 on its second."""
    own = tf.distribute.get_replica_context().replica_id_in_sync_group
    first = tf.distribute.get_strategy().extended._get_replica_id_in_sync_group(0)
    return tf.cast(own - first + 1, tf.float32)


def run(strategy, function, *, eagerly=False):
    """What each local replica returns."""

    def step():
        return strategy.experimental_local_results(strategy.run(function))

    return step() if eagerly else tf.function(step)()
