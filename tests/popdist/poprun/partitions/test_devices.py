"""Which devices a machine has, on machines of several kinds."""

import pytest

from popdist.errors import LaunchError
from popdist.poprun.partitions.devices import allowed_devices, find_cluster
from tests.popdist.poprun.machines.fake_sys import make_tree


def gpu(number, uuid):
    """What NVIDIA's driver says of a GPU, under the address by which it sorts them."""
    folder = f"proc/driver/nvidia/gpus/0000:0{number}:00.0/information"
    text = f"Model: \t\t NVIDIA H200\nGPU UUID:   \t {uuid}\nDevice Minor: \t {number}"
    return [(folder, text), (f"dev/nvidia{number}", "")]


def test_a_device_per_core_and_its_hyper_threads(tmp_path):
    root = make_tree(tmp_path, [[0, 1, 2, 3]], siblings=[[0, 2], [1, 3]])
    cluster = find_cluster(None, root)
    assert (cluster.name, cluster.kind) == ("cores-2", "cores")
    assert [(d.name, d.number, d.cpus) for d in cluster.devices] == [
        ("core0", 0, "0,2"), ("core1", 1, "1,3"),
    ]  # fmt: skip
    assert find_cluster("cores", root) == find_cluster("cores-2", root) == cluster


@pytest.mark.parametrize(
    ("name", "cpus"),
    [
        ("cores-1", ["0-7"]),
        ("cores-2", ["0-3", "4-7"]),
        ("cores-3", ["0-1", "2-4", "5-7"]),
        ("cores-16", [str(index % 8) for index in range(16)]),
    ],
)
def test_cores_are_divided(tmp_path, name, cpus):
    root = make_tree(tmp_path, [list(range(8))])
    assert [device.cpus for device in find_cluster(name, root).devices] == cpus


def test_gpus_are_preferred_and_only_those_that_are_there(tmp_path):
    files = [*gpu(0, "GPU-a"), *gpu(3, "GPU-b"), gpu(5, "GPU-c")[0]]
    root = make_tree(tmp_path, [[0, 1]], files=files)
    cluster = find_cluster(None, root)
    assert cluster == find_cluster("gpus", root)
    assert [(d.name, d.number, d.uuid, d.cpus) for d in cluster.devices] == [
        ("gpu0", 0, "GPU-a", ""), ("gpu3", 1, "GPU-b", ""),
    ]  # fmt: skip
    assert find_cluster("cores", root).kind == "cores"


@pytest.mark.parametrize("name", ["A8", "cores-", "cores-0", "cores-x", "gpus-2", "cores-99999"])
def test_other_names_are_refused(tmp_path, name):
    with pytest.raises(LaunchError) as caught:
        find_cluster(name, make_tree(tmp_path, [[0, 1]]))
    assert caught.value.code == "PD130"


def test_a_machine_without_gpus_says_so(tmp_path):
    with pytest.raises(LaunchError, match="no GPUs"):
        find_cluster("gpus", make_tree(tmp_path, [[0, 1]]))


def test_only_devices_within_the_cpuset_are_allowed(tmp_path, monkeypatch):
    cluster = find_cluster("cores-4", make_tree(tmp_path, [list(range(8))]))
    monkeypatch.setattr(
        "popdist.poprun.partitions.devices.usable_cpus", lambda: frozenset([2, 3, 4, 6, 7])
    )
    assert [device.name for device in allowed_devices(cluster, None)] == ["core1", "core3"]
    assert [device.name for device in allowed_devices(cluster, "0")] == ["core1", "core3"]


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["gpu0", "gpu3"]),
        ("1", ["gpu3"]),
        ("0, 1", ["gpu0", "gpu3"]),
        ("GPU-b", ["gpu3"]),
        ("", []),
    ],
)
def test_only_gpus_that_this_process_sees_are_allowed(tmp_path, visible, names):
    root = make_tree(tmp_path, [[0]], files=[*gpu(0, "GPU-aa"), *gpu(3, "GPU-bb")])
    cluster = find_cluster("gpus", root)
    assert [device.name for device in allowed_devices(cluster, visible)] == names
