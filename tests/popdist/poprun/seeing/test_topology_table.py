"""The published table form."""

import pytest

from popdist.poprun.machines.hosts import Host
from popdist.poprun.plan.placement import place
from popdist.poprun.seeing.topology_table import topology_table
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
