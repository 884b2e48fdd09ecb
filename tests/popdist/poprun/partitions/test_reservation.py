"""Partitions: made, found, checked, changed, reset, removed, evicted, and never shared."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from popdist.errors import LaunchError, UsageError
from popdist.poprun.log import Log
from popdist.poprun.machines.hosts import Host
from popdist.poprun.options.requests import Partition
from popdist.poprun.partitions import listing
from popdist.poprun.partitions.devices import Device
from popdist.poprun.partitions.fitting import (
    PartitionRequest,
    read_request,
    stand_in,
    verify_partition,
)
from popdist.poprun.partitions.pool import Pool
from popdist.poprun.partitions.reservation import assign, preview, reserve
from popdist.poprun.plan.placement import place
from popdist.poprun.protocol.device_locks import keep
from tests.distributed.jobs import ROOT
from tests.popdist.poprun.plan.test_placement import job as make_job


@pytest.fixture(autouse=True)
def environ(tmp_path, monkeypatch):
    monkeypatch.setenv("POPDIST_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr("popdist.poprun.partitions.devices._GPUS", "none")
    return os.environ


def request(devices=1, name="P", cluster="cores-4", timeout=0.0, **more):
    return PartitionRequest(name=name, cluster=cluster, devices=devices, timeout=timeout, **more)


def take(*positional, **named):
    return reserve(request(*positional, **named), os.environ, Log())


def names(reservation):
    return [device.name for device in reservation.devices]


def partitions():
    with Pool(os.environ, 1.0) as pool:
        return {name: len(one.devices) for name, one in pool.partitions().items()}


def code_of(*positional, **named):
    with pytest.raises(LaunchError) as caught:
        take(*positional, **named)
    return caught.value.code


def run(code):
    """Runs code in a process of its own, with the same pool."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)


def elsewhere(then, **more):
    """Another process that makes partition P and takes a device of it, then does something."""
    return run(
        "import os, sys, time\n"
        "from popdist.poprun.log import Log\n"
        "from popdist.poprun.partitions.fitting import PartitionRequest\n"
        "from popdist.poprun.partitions.reservation import reserve\n"
        f"request = PartitionRequest(name='P', cluster='cores-4', devices=1, **{more!r})\n"
        "held = reserve(request, os.environ, Log())\n"
        f"print(held.devices[0].name, flush=True)\n{then}"
    )


def test_a_partition_is_made_as_large_as_the_job_and_ends_with_it():
    held = take(3)
    assert names(held) == ["core0", "core1", "core2"]
    assert partitions() == {"P": 3}
    held.release()
    assert partitions() == {}


def test_a_partition_may_stay_and_is_used_again():
    take(2, removes=False).release()
    assert partitions() == {"P": 2}
    first, second = take(1), take(1)
    assert names(first) + names(second) == ["core0", "core1"]
    assert code_of(1) == "PD131"
    first.release()
    assert names(take(1)) == ["core0"]


def test_neighbours_are_preferred():
    take(4, removes=False).release()
    first, second = take(1), take(1)
    first.release()
    assert names(take(2)) == ["core2", "core3"]
    second.release()
    assert names(take(2)) == ["core0", "core1"]


def test_two_partitions_never_share_a_device():
    first, second = take(2, "P"), take(2, "Q")
    assert not set(names(first)) & set(names(second))
    assert code_of(1, "R") == "PD131"


def test_the_only_partition_needs_no_name():
    take(2, removes=False).release()
    assert names(take(1, name=None, cluster=None)) == ["core0"]
    take(2, "Q", removes=False).release()
    assert code_of(1, name=None) == "PD130"


def test_too_many_devices_are_refused_at_once():
    assert code_of(5, timeout=60.0) == "PD130"
    assert partitions() == {}


def test_cores_cannot_be_divided_in_two_ways_at_once():
    held = take(1)
    assert code_of(1, "Q", cluster="cores-2") == "PD130"
    held.release()
    take(1, "Q", cluster="cores-2").release()


@pytest.mark.parametrize(
    ("now", "needed", "text"),
    [
        ({}, {"devices": 3}, "2 devices, the job needs 3"),
        ({"sync-type": "A"}, {"attributes": {"sync-type": "B"}}, "its sync-type is A, not B"),
        ({}, {"attributes": {"num-ilds": "2"}}, "its num-ilds is not set, not 2"),
    ],
)
def test_an_existing_partition_is_checked_and_updated_only_if_allowed(now, needed, text):
    take(2, attributes=now, removes=False).release()
    with pytest.raises(LaunchError) as caught:
        take(**needed)
    assert caught.value.code == "PD133"
    assert text in str(caught.value)
    assert "--update-partition=yes" in str(caught.value)
    held = take(updates=True, **needed)
    assert len(held.devices) == needed.get("devices", 1)
    held.release()
    take(**needed).release()


def test_an_update_that_does_not_help_is_taken_back():
    held = take(2)
    assert code_of(3, updates=True) == "PD131"
    assert partitions() == {"P": 2}
    held.release()


def test_who_names_no_cluster_gets_the_one_that_is_in_use():
    take(1, removes=False).release()
    held = take(1, "Q", cluster=None)
    assert names(held) == ["core1"]


def test_secrets_on_a_command_line_are_not_noted(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["poprun", "-x", "API_TOKEN=hunter2", "train.py"])
    held = take(1)
    text = (Path(held.folder) / "core0").read_text()
    assert "train.py" in text
    assert "hunter2" not in text


def test_a_partition_in_use_keeps_its_attributes():
    held = take(2, removes=False)
    assert code_of(1, attributes={"sync-type": "B"}, updates=True) == "PD131"
    held.release()
    take(1, attributes={"sync-type": "B"}, updates=True)


def test_another_cluster_is_refused():
    take(1, removes=False).release()
    assert code_of(1, cluster="cores-2") == "PD133"


def test_a_reset_needs_the_whole_partition():
    take(2, removes=False).release()
    held = take(1)
    assert code_of(1, resets=True) == "PD131"
    held.release()
    take(1, resets=True).release()


def test_waiting_ends_when_a_device_comes_free():
    other = elsewhere("time.sleep(0.5)\nheld.release()", removes=False)
    assert other.stdout.readline() == b"core0\n"
    assert names(take(1, timeout=30.0)) == ["core0"]
    other.communicate()


def test_a_partition_that_is_not_ready_is_tried_again(monkeypatch):
    tries = []

    def verify(stored, cluster, wanted):
        tries.append(stored.name)
        if len(tries) < 3:
            raise LaunchError("PD133", "not yet")
        return verify_partition(stored, cluster, wanted)

    monkeypatch.setattr("popdist.poprun.partitions.reservation.verify_partition", verify)
    assert code_of(1, attempts=2) == "PD133"
    assert partitions() == {}
    assert names(take(1, attempts=2)) == ["core0"]


def test_the_message_names_who_has_the_devices():
    other = elsewhere("time.sleep(60)")
    other.stdout.readline()
    try:
        with pytest.raises(LaunchError) as caught:
            take(1)
    finally:
        other.kill()
        other.communicate()
    assert f"PID {other.pid}" in str(caught.value)


def test_what_a_killed_launcher_leaves_is_evicted():
    other = elsewhere("time.sleep(60)")
    other.stdout.readline()
    assert partitions() == {"P": 1}
    other.kill()
    other.communicate()
    assert names(take(4, "Q")) == ["core0", "core1", "core2", "core3"]
    assert partitions() == {"Q": 4}


def test_programs_keep_devices_when_their_launcher_is_killed():
    program = "import time; print('running', flush=True); time.sleep(60)"
    other = elsewhere(
        "from popdist.poprun.protocol.device_locks import keep\n"
        "settings = {'pool': held.folder, 'devices': 'core0', 'hold': held.token}\n"
        "problem, held = keep(settings)\n"
        "assert problem == ''\n"
        "for fd in held: os.set_inheritable(fd, True)\n"
        f"pid = os.posix_spawn(sys.executable, [sys.executable, '-c', {program!r}], os.environ)\n"
        "print(pid, flush=True)\ntime.sleep(60)"
    )
    lines = [other.stdout.readline() for _ in range(3)]
    pid = int(next(line for line in lines if line.strip().isdigit()))
    other.kill()
    other.wait()
    try:
        assert code_of(1) == "PD131"
    finally:
        os.kill(pid, 9)
        other.communicate()
    take(1, timeout=30.0).release()


def test_a_guard_refuses_devices_that_are_another_jobs_now():
    held = take(1)
    settings = {"pool": held.folder, "devices": "core0", "hold": held.token}
    held.release()
    assert take(1).token != settings["hold"]
    assert "not this job's any more" in keep(settings)[0]
    assert "No such file" in keep({**settings, "devices": "core9"})[0]


def test_devices_that_are_gone_are_noticed():
    take(1, removes=False).release()
    file = next(Path(os.environ["POPDIST_STATE_DIR"]).rglob("P.partition"))
    file.write_text(file.read_text().replace("core0", "core77"))
    with pytest.raises(LaunchError, match="core77 are not there any more"):
        take(1, cluster=None)


def test_a_damaged_file_is_named():
    take(1, removes=False).release()
    file = next(Path(os.environ["POPDIST_STATE_DIR"]).rglob("P.partition"))
    file.write_text("{")
    with pytest.raises(LaunchError, match=r"rm .*P\.partition"):
        take(1)


def test_a_folder_that_others_may_write_is_refused():
    take(1).release()
    folder = next(Path(os.environ["POPDIST_STATE_DIR"]).rglob("lock")).parent
    folder.chmod(0o777)
    with pytest.raises(LaunchError, match="others may write there"):
        take(1)


def test_a_folder_that_cannot_be_is_explained(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POPDIST_STATE_DIR", str(tmp_path / "file" / "state"))
    with pytest.raises(LaunchError, match="Not a directory"):
        take(1)


def test_partitions_are_listed_and_removed(capsys):
    take(2, removes=False).release()
    held = take(1, attributes={"num-ilds": "1"}, updates=True)
    listing.main([])
    shown = capsys.readouterr().out
    assert shown.startswith("P: 2 devices of cores-4, stays\n  num-ilds: 1\n  core0: PID ")
    assert shown.endswith("  core1: free\n")
    with pytest.raises(LaunchError, match="in use"):
        listing.main(["remove", "P"])
    held.release()
    listing.main(["remove", "P"])
    listing.main([])
    assert capsys.readouterr().out == "there are no partitions\n"
    with pytest.raises(LaunchError, match="no such partition"):
        listing.main(["remove", "P"])
    with pytest.raises(UsageError):
        listing.main(["create"])


def asked(given, hosts=(), **partition):
    return make_job(
        2, 4, hosts, ipus_per_replica=2, given=frozenset(given), partition=Partition(**partition)
    )


def test_jobs_without_partition_or_devices_wish_for_nothing():
    assert read_request(asked([]), {}) is None
    assert read_request(asked(["vipu-server-timeout"], vipu_server_timeout=60.0), {}) is None
    offline = make_job(1, 1, offline=True, partition=Partition(vipu_server_host="10.1.2.3"))
    assert read_request(offline, {}) is None


def test_a_wish_is_what_the_options_say():
    found = read_request(
        asked(
            ["vipu-partition", "sync-type", "vipu-allocation"],
            vipu_partition="P",
            vipu_allocation="cores-8",
            sync_type="X",
            vipu_server_timeout=60.0,
            reset_partition=True,
            remove_partition=False,
        ),
        {"CUDA_VISIBLE_DEVICES": "1"},
    )
    assert found == PartitionRequest(
        name="P", cluster="cores-8", devices=8, attributes={"sync-type": "X"}, timeout=60.0,
        resets=True, removes=False, visible="1",
    )  # fmt: skip


def test_devices_of_this_machine_stand_in_for_a_server_on_the_network():
    given = ["vipu-server-host", "vipu-partition", "vipu-cluster"]
    for host in ("10.3.7.150", "vipu.example.org"):
        job = asked(given, vipu_server_host=host, vipu_partition="P8", vipu_cluster="A8")
        found = read_request(job, {})
        assert (found.name, found.cluster, found.stands_in) == ("P8", None, True)
        assert f"{host} is not asked" in stand_in(job)
        assert "P8 is made of this machine's own devices" in stand_in(job)
        kept = asked(given, vipu_server_host=host, vipu_cluster="cores-3")
        assert read_request(kept, {}).cluster == "cores-3"
    for host in ("localhost", "127.0.0.1", os.uname().nodename):
        job = asked(given, vipu_server_host=host, vipu_cluster="A8")
        assert stand_in(job) is None
        assert read_request(job, {}).cluster == "A8"  # which is refused, as there is none


def test_a_preview_says_what_would_be_and_changes_nothing():
    def look(*positional, **named):
        shown = preview(request(*positional, **named), os.environ, Log())
        shown.release()
        return names(shown)

    assert look(2, removes=False) == ["core0", "core1"]
    assert partitions() == {}
    with pytest.raises(LaunchError) as caught:
        look(2, cluster="A8")
    assert caught.value.code == "PD130"
    take(2, removes=False).release()
    assert look(3, updates=True) == ["core0", "core1", "core2"]
    assert partitions() == {"P": 2}
    with pytest.raises(LaunchError) as caught:
        look(3)
    assert caught.value.code == "PD133"


def test_cores_are_divided_into_what_a_job_with_a_server_needs():
    held = take(16, "P8", cluster=None, stands_in=True)
    assert len(names(held)) == 16
    with Pool(os.environ, 1.0) as pool:
        assert pool.partitions()["P8"].cluster == "cores-16"
    held.release()


def test_partitions_have_devices_of_this_machine_only():
    with pytest.raises(UsageError, match="this machine only"):
        read_request(asked(["vipu-partition"], hosts=(Host("elsewhere"),), vipu_partition="P"), {})


@pytest.mark.parametrize(
    ("cores", "ids", "visible"),
    [(False, [0, 0], ["GPU-2,GPU-3", "GPU-4,GPU-5"]), (True, [2, 4], [None, None])],
)
def test_an_instance_numbers_the_gpus_that_it_sees_from_0(cores, ids, visible):
    devices = tuple(
        Device(f"core{n}", n, cpus=str(n)) if cores else Device(f"gpu{n}", n, uuid=f"GPU-{n}")
        for n in range(2, 6)
    )
    reservation = SimpleNamespace(partition="P", devices=devices, folder="pool", token="")
    found = assign(place(make_job(2, 4)), reservation, 10.0)
    assert [one.fields["device_id"] for one in found] == ids
    assert [one.variables.get("CUDA_VISIBLE_DEVICES") for one in found] == visible
    assert [one.devices for one in found] == ["2-3", "4-5"]
