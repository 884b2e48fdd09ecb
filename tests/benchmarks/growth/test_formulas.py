"""What the paper has to say whatever the constants, and that a simulation agrees."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.growth import formulas
from benchmarks.growth.formulas import Cluster, Link, fitted, flat, hierarchical, ring, step
from benchmarks.growth.simulation import simulate_flat, simulate_hierarchical

BYTES = st.integers(1, 2**30)


def fast_links():
    return st.builds(Link, st.floats(0, 1e-4), st.floats(1e-12, 1e-8))


@st.composite
def clusters(draw):
    """Clusters whose network is no faster than the inside of a host, with cores for all."""
    local = draw(fast_links())
    network = Link(
        local.latency + draw(st.floats(0, 1e-3)), local.per_byte + draw(st.floats(0, 1e-8))
    )
    per_host = draw(st.sampled_from([1, 2, 4, 8]))
    return Cluster(local, network, per_host=per_host, cores=per_host)


@given(clusters(), BYTES, st.floats(0, 10))
def test_one_instance_only_computes(cluster, size, compute):
    for exchange in (flat, hierarchical):
        assert exchange(size, 1, cluster) == 0
        assert step(compute, exchange(size, 1, cluster), cluster.crowding(1)) == compute


@given(clusters(), BYTES, st.integers(0, 12))
def test_more_instances_or_bytes_never_take_less_time(cluster, size, power):
    for exchange in (flat, hierarchical):
        here = exchange(size, 2**power, cluster)
        assert exchange(size, 2 ** (power + 1), cluster) >= here * (1 - 1e-12)
        assert exchange(2 * size, 2**power, cluster) >= here


@given(fast_links(), st.integers(2, 8192))
def test_many_bytes_take_a_ring_twice_the_time_to_send_them_once(link, instances):
    size = 2.0**60
    ideal = 2 * (instances - 1) / instances * size * link.per_byte
    latency = Link(0.0, link.per_byte)
    assert ring(size, instances, latency) == pytest.approx(ideal)
    assert 1 <= ideal / (size * link.per_byte) < 2


@given(clusters(), BYTES)
def test_with_one_instance_a_host_both_ways_are_the_same(cluster, size):
    alone = Cluster(cluster.local, cluster.network, per_host=1, cores=1)
    for instances in (2, 64):
        assert hierarchical(size, instances, alone) == pytest.approx(flat(size, instances, alone))


def test_hosts_help_where_latency_counts():
    cluster = Cluster(Link(1e-6, 1e-10), Link(1e-5, 1e-9), per_host=8, cores=8)
    assert hierarchical(2**20, 8192, cluster) < flat(2**20, 8192, cluster) / 1.5


@given(clusters(), st.integers(1, 64))
def test_instances_that_share_cores_take_turns(cluster, instances):
    crowded = Cluster(cluster.local, cluster.network, per_host=64, cores=2)
    assert crowded.crowding(instances) == max(1, instances / 2)
    assert step(1.0, 0.0, crowded.crowding(instances)) == max(1, instances / 2)


@given(fast_links(), st.floats(0, 1e-2), st.integers(2**20, 2**28))
def test_measured_exchanges_give_back_the_constants_that_made_them(link, overhead, size):
    host = Cluster(link, link, per_host=2, cores=2, overhead=overhead)
    message = 2 * link.latency
    found, fit = fitted(message, message + overhead, flat(size, 2, host), size)
    again = Cluster(fit, fit, per_host=2, cores=2, overhead=found)
    assert flat(size, 2, again) == pytest.approx(flat(size, 2, host), rel=1e-6)
    assert (found, fit.latency) == pytest.approx((overhead, link.latency))


def test_times_that_fit_no_link_give_none_below_0():
    assert fitted(2.0, 1.0, 0.5, 100) == (0.0, Link(1.0, 0.0))


@settings(deadline=None)
@given(clusters(), st.integers(1, 2**24), st.integers(1, 40), st.floats(0, 1))
def test_the_simulated_ring_takes_what_the_formula_says(cluster, size, instances, start):
    simulated = simulate_flat(size, [start] * instances, cluster) - start
    paper = flat(size, instances, cluster)
    if cluster.hosts(instances) == 1:
        assert simulated == pytest.approx(paper, rel=1e-9, abs=1e-9)
    else:  # the paper leaves out how queues build up, in at most one round of the ring
        loop = paper * instances / (2 * (instances - 1))
        assert paper * (1 - 1e-9) - 1e-9 <= simulated <= paper + loop + 1e-9


@settings(deadline=None)
@given(clusters(), st.integers(2**12, 2**22), st.sampled_from([1, 2, 4, 8]))
def test_the_simulated_hierarchy_shares_a_hosts_wire_as_the_formula_says(cluster, size, hosts):
    instances = hosts * cluster.per_host
    simulated = simulate_hierarchical(size, [0.0] * instances, cluster)
    paper = hierarchical(size, instances, cluster)
    # The latency of one ring's message passes while another's bytes have the wire.
    hidden = 2 * (hosts - 1) * formulas.slices(size) * cluster.network.latency
    assert paper - hidden - 1e-9 <= simulated <= paper * (1 + 1e-9) + 1e-9
    if cluster.per_host == 1:
        assert simulated == pytest.approx(paper, rel=1e-9, abs=1e-9)


@given(clusters(), st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_all_wait_for_the_slowest(cluster, starts):
    together = simulate_flat(2**20, [max(starts)] * len(starts), cluster)
    late = simulate_flat(2**20, starts, cluster)
    assert max(starts) <= late <= together + 1e-9
