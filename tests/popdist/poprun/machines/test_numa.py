"""Which NUMA nodes, processors and threads instances get, on machines of many kinds."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popdist.poprun.machines.cpus import Node, count_cores, cpu_quota, usable_nodes
from popdist.poprun.machines.numa import divide, place_of
from tests.popdist.poprun.machines.fake_sys import make_tree


def machine(nodes, cores):
    """Processors of each node, numbered through."""
    return [list(range(node * cores, (node + 1) * cores)) for node in range(nodes)]


def facts(nodes):
    return [Node(index, frozenset(cpus)) for index, cpus in enumerate(nodes)]


@pytest.fixture
def allow(monkeypatch):
    """Sets the affinity that this process seems to have."""

    def allow(cpus):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(cpus))

    return allow


@pytest.mark.parametrize("nodes", [1, 2, 4, 8])
def test_instances_take_the_nodes_in_turn(nodes):
    shares = [divide(facts(machine(nodes, 4)), index, 2 * nodes) for index in range(2 * nodes)]
    assert [share.nodes for share in shares] == [(index % nodes,) for index in range(2 * nodes)]
    assert {share.sharers for share in shares} == {2}


def test_fewer_instances_than_nodes_divide_them():
    shares = [divide(facts(machine(8, 4)), index, 3) for index in range(3)]
    assert [share.nodes for share in shares] == [(0, 1), (2, 3, 4), (5, 6, 7)]
    assert shares[1].cpus == frozenset(range(8, 20))


@given(st.integers(1, 8), st.integers(1, 40))
def test_every_node_is_used_and_sharers_are_counted(nodes, instances):
    shares = [divide(facts(machine(nodes, 2)), index, instances) for index in range(instances)]
    if instances >= nodes:
        assert {share.nodes for share in shares} == {(node,) for node in range(nodes)}
        assert all(sum(s.nodes == one.nodes for s in shares) == one.sharers for one in shares)
    else:
        assert [node for share in shares for node in share.nodes] == list(range(nodes))


def test_only_nodes_of_the_cpuset_count(tmp_path, allow):
    root = make_tree(tmp_path, machine(4, 4))
    allow([4, 5, 12, 13])
    places = [place_of({"neighbours": "2", "local": str(i), "numa": "1"}, root) for i in range(2)]
    assert [place.share.nodes for place in places] == [(1,), (3,)]
    assert [sorted(place.share.cpus) for place in places] == [[4, 5], [12, 13]]
    assert [place.threads for place in places] == [2, 2]


def test_offline_nodes_and_processors_are_left_out(tmp_path, allow):
    online = [cpu for cpu in range(16) if cpu not in {1, 8, 9, 10, 11}]
    root = make_tree(tmp_path, machine(4, 4), online=online, online_nodes=[0, 1, 3])
    allow(range(16))
    places = [place_of({"neighbours": "3", "local": str(i), "numa": "1"}, root) for i in range(3)]
    assert [place.share.nodes for place in places] == [(0,), (1,), (3,)]
    assert sorted(places[0].share.cpus) == [0, 2, 3]


def test_hyper_threads_of_one_core_get_one_thread(tmp_path, allow):
    # Two nodes, two cores each, numbered as Linux does: siblings are 4 apart.
    siblings = [[0, 4], [1, 5], [2, 6], [3, 7]]
    root = make_tree(tmp_path, [[0, 1, 4, 5], [2, 3, 6, 7]], siblings=siblings)
    allow(range(8))
    assert count_cores(range(8), root) == 4
    assert count_cores([0, 4, 1], root) == 2
    place = place_of({"neighbours": "2", "local": "1", "numa": "1"}, root)
    assert (sorted(place.share.cpus), place.threads) == ([2, 3, 6, 7], 2)


def test_memory_is_bound_only_to_nodes_that_have_some(tmp_path, allow):
    root = make_tree(tmp_path, machine(2, 2), memory=[0])
    allow(range(4))
    place = place_of({"neighbours": "2", "local": "1", "numa": "1"}, root)
    assert (place.share.nodes, place.share.memory) == ((1,), ())


def test_a_machine_that_tells_of_no_nodes_is_one(tmp_path, allow):
    allow(range(4))
    assert usable_nodes(frozenset(range(4)), str(tmp_path)) == (Node(0, frozenset(range(4))),)
    place = place_of({"neighbours": "2", "local": "1", "numa": "1"}, str(tmp_path))
    assert (place.binds, place.threads) == (False, 2)


def test_one_instance_is_left_alone(tmp_path, allow):
    root = make_tree(tmp_path, machine(4, 4))
    allow(range(16))
    place = place_of({"numa": "1"}, root)
    assert (place.binds, place.threads) == (False, None)


def test_without_binding_threads_still_fit(tmp_path, allow):
    root = make_tree(tmp_path, machine(2, 8))
    allow(range(16))
    place = place_of({"neighbours": "3", "local": "0", "numa": "0"}, root)
    assert (place.binds, place.threads) == (False, 5)


@pytest.mark.parametrize(
    ("settings", "files", "threads"),
    [
        ({"neighbours": "2", "granted": "4"}, [], 2),
        (
            {"neighbours": "2"},
            [("proc/self/cgroup", "0::/job"), ("sys/fs/cgroup/job/cpu.max", "600000 100000")],
            3,
        ),
        (
            {},
            [("proc/self/cgroup", "0::/a/b"), ("sys/fs/cgroup/a/cpu.max", "250000 100000")],
            2,
        ),
        (
            {"neighbours": "16"},
            [("proc/self/cgroup", "0::/"), ("sys/fs/cgroup/cpu.max", "max 100000")],
            1,
        ),
    ],
    ids=["batch system", "group", "one instance in a group", "never none"],
)
def test_grants_limit_threads(tmp_path, allow, settings, files, threads):
    root = make_tree(tmp_path, machine(2, 8), files=files)
    allow(range(16))
    assert place_of(settings, root).threads == threads


def test_a_quota_of_the_first_kind_of_control_groups(tmp_path):
    cpu = "sys/fs/cgroup/cpu"
    root = make_tree(
        tmp_path,
        machine(1, 2),
        files=[
            ("proc/self/cgroup", "4:memory:/m\n3:cpu,cpuacct:/job\n0::/"),
            (f"{cpu}/cpu.cfs_quota_us", "-1"),
            (f"{cpu}/job/cpu.cfs_quota_us", "300000"),
            (f"{cpu}/job/cpu.cfs_period_us", "100000"),
        ],
    )
    assert cpu_quota(root) == 3


def test_reserved_processors_win(tmp_path, allow):
    root = make_tree(tmp_path, machine(2, 4))
    allow(range(8))
    place = place_of({"neighbours": "4", "local": "3", "numa": "1", "cpus": "2-3"}, root)
    assert (sorted(place.share.cpus), place.share.nodes, place.threads) == ([2, 3], (0,), 2)


def test_a_part_of_the_processors_is_not_bound_as_nobody_says_which(tmp_path, allow):
    root = make_tree(tmp_path, machine(2, 8))
    allow(range(16))
    settings = {"neighbours": "2", "local": "1", "numa": "1"}
    assert place_of({**settings, "granted": "8"}, root).binds is False
    assert place_of({**settings, "granted": "16"}, root).binds is True


def test_a_thread_count_of_the_user_stays():
    environ = {"OMP_NUM_THREADS": "7"}
    place_of({"neighbours": "2", "numa": "0"}).enter(environ)
    assert environ == {"OMP_NUM_THREADS": "7"}


def test_binding_is_real():
    cpu = min(os.sched_getaffinity(0))
    code = (
        "import os\n"
        "from popdist.poprun.machines.numa import bind_cpus, bind_memory\n"
        f"print(repr(bind_cpus(frozenset({{{cpu}}}))), sorted(os.sched_getaffinity(0)))\n"
        "print(bind_memory([0]), ' bind:0 ' in open('/proc/self/numa_maps').read())\n"
        "print(bind_cpus(frozenset({1023})))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    affinity, policy, refused = done.stdout.splitlines()
    assert affinity == f"'' [{cpu}]"
    assert policy in {"True True", "False False"}  # containers may forbid memory policies
    assert refused == "not bound to CPUs 1023: Invalid argument"
