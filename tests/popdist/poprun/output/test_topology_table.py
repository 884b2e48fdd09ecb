"""The published table form."""

import pytest

from popdist.poprun.machines.hosts import Host
from popdist.poprun.output.topology_table import topology_table
from popdist.poprun.plan.placement import place
from tests.popdist.poprun.plan.test_placement import job

ONE = """\
 ===============
| poprun top... |
|===============|
| hosts     | . |
|-----------|---|
| ILDs      | 0 |
|-----------|---|
| instances | 0 |
|-----------|---|
| replicas  | 0 |
 ---------------
[0]: localhost"""

FOUR_IN_TWO = """\
 ===========================
|      poprun topology      |
|===========================|
| hosts     |   localhost   |
|-----------|---------------|
| ILDs      |       0       |
|-----------|---------------|
| instances |   0   |   1   |
|-----------|---------------|
| replicas  | 0 | 1 | 2 | 3 |
 ---------------------------"""


@pytest.mark.parametrize(("instances", "replicas", "table"), [(1, 1, ONE), (2, 4, FOUR_IN_TWO)])
def test_published_form(instances, replicas, table):
    assert topology_table(place(job(instances, replicas))) == table


def test_two_digits_widen_cells_and_odd_columns_go_to_the_right():
    table = topology_table(place(job(5, 11))).splitlines()
    assert table[-2] == "| replicas  | 0  | 1  | 2  | 3  | 4  | 5  | 6  | 7  | 8  | 9  | 10 |"
    assert table[-4] == "| instances |      0       |    1    |    2    |    3    |    4    |"


def test_long_host_names_stand_below():
    hosts = (Host("a-rather-long-host-name.example"), Host("h1"))
    table = topology_table(place(job(2, 6, hosts)), num_ilds=2).splitlines()
    assert table[3] == "| hosts     |    [0]    |    h1     |"
    assert table[5] == "| ILDs      |     0     |     1     |"
    assert table[-1] == "[0]: a-rather-long-host-name.example"
    assert len({len(line) for line in table[1:-2]}) == 1


def test_numa_nodes_and_devices_have_rows_of_their_own_where_they_are_known():
    placed = [
        one.having(numa=str(one.index), devices=f"{4 * one.index}-{4 * one.index + 3}")
        for one in place(job(2, 2))
    ]
    assert topology_table(placed).splitlines()[7:] == [
        "| instances | 0 | 1 |",
        "|-----------|-------|",
        "| replicas  | 0 | 1 |",
        "|-----------|-------|",
        "| NUMA      | 0 | 1 |",
        "|-----------|-------|",
        "| devices   | . | . |",
        " -------------------",
        "[0]: localhost",
        "devices of instance 0: 0-3",
        "devices of instance 1: 4-7",
    ]


def test_a_job_that_is_too_wide_for_a_table_is_listed_by_host():
    hosts = tuple(Host(f"node{i:04}", 8) for i in range(1, 1025))
    lines = topology_table(place(job(8192, 65536, hosts)), num_ilds=4).splitlines()
    assert lines[0] == "poprun topology: 1024 hosts, 4 ILDs, 8192 instances, 65536 replicas"
    assert lines[1] == "  node0001  ILD 0  instances 0-7  replicas 0-63"
    assert lines[-1] == "  node1024  ILD 3  instances 8184-8191  replicas 65472-65535"
    assert len(lines) == 1025


def test_a_host_in_two_link_domains_has_two_lines():
    placed = [one.having(numa=str(one.index % 2)) for one in place(job(4, 300))]
    assert topology_table(placed, num_ilds=2).splitlines()[1:] == [
        "  localhost  ILD 0  instances 0-1  replicas 0-149  NUMA 0 1",
        "  localhost  ILD 1  instances 2-3  replicas 150-299  NUMA 0 1",
    ]
