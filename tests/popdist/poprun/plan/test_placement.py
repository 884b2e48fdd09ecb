"""Placement: every replica once, instances in order, hosts filled as announced."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popdist import contract
from popdist.errors import LaunchError
from popdist.popdist_core import Topology
from popdist.poprun.machines.hosts import Host
from popdist.poprun.plan.job import Job
from popdist.poprun.plan.placement import place


def job(instances, replicas, hosts=(), **more):
    return Job(
        program=("true",),
        num_instances=instances,
        num_replicas=replicas,
        hosts=hosts,
        **more,
    )


@st.composite
def jobs(draw):
    instances = draw(st.integers(1, 40))
    number = draw(st.integers(1, 8))
    return job(
        instances,
        instances + draw(st.integers(0, 60)),
        tuple(Host(f"h{i}") for i in range(number)),
        ipus_per_replica=draw(st.sampled_from([1, 2, 4])),
    )


@given(jobs())
def test_what_is_placed_is_what_instances_read(job):
    topologies = [Topology.from_environ(contract.write(one.fields)) for one in place(job)]
    assert [t.instance_index for t in topologies] == list(range(job.num_instances))
    replicas = [t.replica_index_offset + i for t in topologies for i in range(t.num_local_replicas)]
    assert replicas == list(range(job.num_replicas))
    counts = {t.num_local_replicas for t in topologies}
    assert max(counts) - min(counts) <= 1
    assert all(t.uniform is (len(counts) == 1) for t in topologies)


@given(jobs())
def test_hosts_get_even_consecutive_runs_and_own_devices(job):
    placed = place(job)
    order = [one.host.name for one in placed]
    assert order == sorted(order, key=lambda name: int(name[1:]))
    sizes = [order.count(name) for name in set(order)]
    assert max(sizes) - min(sizes) <= 1
    for name in set(order):
        here = [one.fields for one in placed if one.host.name == name]
        assert [f["local_instance_index"] for f in here] == list(range(len(here)))
        devices = [
            f["device_id"] + i
            for f in here
            for i in range(f["num_local_replicas"] * job.ipus_per_replica)
        ]
        assert devices == list(range(len(devices)))


def test_slots_are_filled_in_order():
    hosts = (Host("a", 3), Host("b"), Host("c", 2))
    assert [one.host.name for one in place(job(5, 5, hosts))] == ["a", "a", "a", "b", "c"]
    with pytest.raises(LaunchError, match="6 slots, 7 instances"):
        place(job(7, 7, hosts))


def test_uneven_replicas_go_to_the_first_instances():
    placed = place(job(2, 3))
    assert [one.num_local_replicas for one in placed] == [2, 1]
    assert not placed[0].fields["uniform"]
