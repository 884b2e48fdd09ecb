"""Host lists and host files."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popdist.errors import UsageError
from popdist.poprun.machines.host_list import parse_hostfile, parse_hosts
from popdist.poprun.machines.hosts import Host


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("localhost", ["localhost"]),
        ("10.3.7.153,10.3.8.153", ["10.3.7.153", "10.3.8.153"]),
        ("10.1.3.10[1-4]", ["10.1.3.101", "10.1.3.102", "10.1.3.103", "10.1.3.104"]),
        ("host[0-2,4]", ["host0", "host1", "host2", "host4"]),
        ("node[0009-0011]", ["node0009", "node0010", "node0011"]),
        ("r[1-2]n[3,5]", ["r1n3", "r1n5", "r2n3", "r2n5"]),
        ("a[1-2]-ib,b", ["a1-ib", "a2-ib", "b"]),
        ("a, b", ["a", "b"]),
    ],
)
def test_names_and_ranges(text, names):
    assert [host.name for host in parse_hosts(text)] == names


def test_slots():
    assert parse_hosts("a:4,b[0-1]:2,c") == (Host("a", 4), Host("b0", 2), Host("b1", 2), Host("c"))


def test_a_repeated_name_sums_its_slots_as_mpirun_does():
    assert parse_hosts("a,b,a") == (Host("a", 2), Host("b"))
    assert parse_hosts("a:3,a:2") == (Host("a", 5),)


@given(st.integers(0, 9999), st.integers(0, 60), st.integers(0, 6))
def test_a_range_has_as_many_hosts_as_it_says(first, more, width):
    low = str(first).zfill(width)
    names = [host.name for host in parse_hosts(f"n[{low}-{first + more}]x")]
    assert len(names) == more + 1
    assert [int(name[1:-1]) for name in names] == list(range(first, first + more + 1))


@pytest.mark.parametrize(
    "text",
    ["", ",", "a,,b", "a;b", "a b", "$(touch x)", "-oProxyCommand=x", "a:0", "a:x", "a[1-", "a[]",
     "a[3-1]", "a[1-9999][1-9999]", "a[x-y]", "a[0-99999999]", "ä", "a/b", "a:", "a:" + "1" * 5000],
)  # fmt: skip
def test_what_cannot_be_a_host_is_refused(text):
    with pytest.raises(UsageError, match="PD103"):
        parse_hosts(text)


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text):
    try:
        hosts = parse_hosts(text)
    except UsageError:
        return
    assert all(not host.name.startswith("-") and host.name.isascii() for host in hosts)


def test_a_host_file():
    text = "# two hosts\na slots=2\n\nb:3 # fast\nc[0-1]\n"
    assert parse_hostfile(text, "f") == (Host("a", 2), Host("b", 3), Host("c0"), Host("c1"))


@pytest.mark.parametrize("text", ["", "# nothing\n", "a b\n", "a slots=x\n", "a slots=2 max=3\n"])
def test_a_malformed_host_file(text):
    with pytest.raises(UsageError, match="PD103"):
        parse_hostfile(text, "hosts.txt")


def test_local_names():
    assert Host("localhost").is_local
    assert Host(os.uname().nodename).is_local
    assert not Host("10.77.0.11").is_local


@pytest.mark.parametrize(
    ("line", "slots"),
    [
        ("a slots=2", 2),
        ("a slots=2 max-slots=4", 2),
        ("a max_slots=4 slots=3", 3),
        ("a max-slots=4", 4),
        ("a count=5", 5),
        ("a", None),
        ("a:6  # six", 6),
    ],
)
def test_host_files_in_the_forms_of_open_mpi(line, slots):
    assert parse_hostfile(line, "f") == (Host("a", slots),)
