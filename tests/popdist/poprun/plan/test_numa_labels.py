"""What the topology table says about NUMA nodes."""

import pytest

from popdist.poprun.machines.cpus import Node
from popdist.poprun.machines.hosts import Host
from popdist.poprun.options.requests import Binding
from popdist.poprun.output.topology_table import topology_table
from popdist.poprun.plan.placement import label_numa, place
from tests.popdist.poprun.plan.test_placement import job as make_job

NODES = [Node(index, frozenset([index])) for index in range(4)]


def labels(instances, nodes=NODES, hosts=(), **binding):
    job = make_job(instances, instances, hosts)
    job = type(job)(**{**vars(job), "binding": Binding(**binding)})
    known = {"localhost": nodes, "a": nodes, "b": ()}  # b was not asked
    return [one.numa for one in label_numa(job, place(job), known.__getitem__)]


@pytest.mark.parametrize(
    ("instances", "expected"),
    [(1, [""]), (2, ["0-1", "2-3"]), (4, list("0123")), (6, list("012301"))],
)
def test_several_instances_are_bound(instances, expected):
    assert labels(instances) == expected


def test_the_user_may_decline():
    assert labels(2, numa_aware=False) == ["", ""]
    assert labels(2, process_placement="disabled") == ["", ""]


def test_one_node_is_nothing_to_choose_from():
    assert labels(2, NODES[:1]) == ["", ""]


def test_hosts_that_were_not_asked_have_no_label():
    assert labels(4, hosts=(Host("a"), Host("b"))) == ["0-1", "2-3", "", ""]


def test_the_table_shows_them():
    job = make_job(2, 4)
    table = topology_table(label_numa(job, place(job), lambda _: NODES))
    assert "| NUMA      |  0-1  |  2-3  |" in table
