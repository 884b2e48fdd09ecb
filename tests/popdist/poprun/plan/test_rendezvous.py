"""What instances agree on, and what each of them gets of it."""

import json

import pytest

from popdist.contract import write
from popdist.errors import UsageError
from popdist.poprun.guard.program import complete_environment
from popdist.poprun.machines.hosts import Host
from popdist.poprun.plan.placement import place
from popdist.poprun.plan.rendezvous import rendezvous
from popdist.poprun.protocol.guard_argv import CLUSTER, PRIVATE
from tests.popdist.poprun.plan.test_placement import job


def test_on_one_machine_instances_meet_at_the_loopback():
    made = job(2, 2)
    found = rendezvous(made, place(made), {})
    assert found["MASTER_ADDR"] == "127.0.0.1"
    assert 15000 <= int(found["MASTER_PORT"]) < 65536
    assert CLUSTER not in found


def test_elsewhere_they_meet_at_the_first_host():
    made = job(2, 2, (Host("node7"), Host("node8")))
    assert rendezvous(made, place(made), {})["MASTER_ADDR"] == "node7"


def test_the_users_choice_is_kept_but_not_that_of_a_job_around_this_one():
    made = job(2, 2)
    chosen = {"MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    assert rendezvous(made, place(made), chosen) == chosen
    around = {**chosen, "POPDIST_NUM_TOTAL_REPLICAS": "2"}
    assert rendezvous(made, place(made), around)["MASTER_PORT"] != "29500"


def test_the_names_of_torchrun():
    made = job(3, 6, (Host("a", 2), Host("b", 1)))
    expected = [("0", "0", "2", "0"), ("1", "1", "2", "0"), ("2", "0", "1", "1")]
    for one, (rank, local, size, node) in zip(place(made), expected, strict=True):
        environ = {**write(one.fields), "RANK": "stale", "WORLD_SIZE": "stale"}
        settings = {"index": str(one.index), "world": "3", "local": local}
        complete_environment(environ, {**settings, "neighbours": size, "node": node})
        assert (environ["RANK"], environ["LOCAL_RANK"]) == (rank, local)
        assert (environ["WORLD_SIZE"], environ["LOCAL_WORLD_SIZE"]) == ("3", size)
        assert environ["NODE_RANK"] == node


def test_what_the_user_set_is_kept():
    environ = {"RANK": "mine"}
    complete_environment(environ, {"index": "1", "world": "2", "keep": "RANK,OTHER"})
    assert (environ["RANK"], environ["WORLD_SIZE"]) == ("mine", "2")


def test_tf_config():
    made = job(3, 3, (Host("a", 2), Host("b", 1)), tf_config=True)
    found = rendezvous(made, place(made), {})
    configs = []
    for index in range(3):
        environ = dict(found)
        complete_environment(environ, {"index": str(index)})
        assert CLUSTER not in environ
        configs.append(json.loads(environ["TF_CONFIG"]))
    workers = configs[0]["cluster"]["worker"]
    assert [name.split(":")[0] for name in workers] == ["a", "a", "b"]
    assert len(set(workers)) == 3
    assert [one["task"] for one in configs] == [{"type": "worker", "index": i} for i in range(3)]
    assert all(one["cluster"] == configs[0]["cluster"] for one in configs)


def test_a_list_of_workers_that_no_variable_can_hold():
    hosts = tuple(Host(f"a-host-with-a-long-name-{i}", 8) for i in range(600))
    made = job(4800, 4800, hosts, tf_config=True)
    with pytest.raises(UsageError, match="longer than a variable"):
        rendezvous(made, place(made), {})


def test_the_users_variables_get_their_names_back_and_win():
    environ = {
        f"{PRIVATE}{name}": name
        for name in ("A", "B", "0_A", "1_A", "1_C_D", "10_A", "WORLD_SIZE", "LD_PRELOAD")
    }
    complete_environment(environ, {"index": "1", "keep": "WORLD_SIZE", "neighbours": "2"})
    assert environ == {
        "A": "1_A", "B": "B", "C_D": "1_C_D", "RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "WORLD_SIZE": "WORLD_SIZE", "LD_PRELOAD": "LD_PRELOAD",
    }  # fmt: skip
