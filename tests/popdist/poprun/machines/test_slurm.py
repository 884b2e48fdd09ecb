"""What is taken from a Slurm allocation, with environments as Slurm 22.05 writes them."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popdist.errors import LaunchError, PopdistError
from popdist.poprun.machines.hosts import Host
from popdist.poprun.machines.slurm import read_allocation, take_hosts, unused_tasks
from popdist.poprun.options.parser import parse
from popdist.poprun.plan.job import make_job
from popdist.poprun.plan.placement import place

# sbatch -N3 --ntasks=5 with two, two and one tasks
TASKS = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-2],gpu-a",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
    "SLURM_JOB_CPUS_PER_NODE": "4(x2),2",
    "SLURM_NTASKS": "5",
}
# salloc -N2 -c2: no tasks were asked for
PROCESSORS = {
    "SLURM_JOB_ID": "8",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_TASKS_PER_NODE": "1(x2)",
    "SLURM_JOB_CPUS_PER_NODE": "4(x2)",
    "SLURM_CPUS_PER_TASK": "2",
}
BATCH = {**PROCESSORS, "SLURM_PROCID": "0"}
STEP = {**TASKS, "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}


def job(environ, *options):
    return make_job(parse([*options, "/bin/true"]), {"PATH": "/bin", **environ})


def counts(environ, *options):
    """How many instances each host gets."""
    found = {}
    for one in place(job(environ, *options)):
        found[one.host.name] = found.get(one.host.name, 0) + 1
    return found


def test_nothing_outside_of_an_allocation():
    assert read_allocation({"PATH": "/bin"}) is None
    assert read_allocation({"SLURM_CONF": "/etc/slurm.conf", "SLURM_JOB_ID": "1"}) is None


def test_hosts_slots_and_processors():
    allocation = read_allocation(TASKS)
    assert allocation.hosts == (Host("n1", 2, 4), Host("n2", 2, 4), Host("gpu-a", 1, 2))
    assert (allocation.job, allocation.tasks, allocation.slots) == ("7", 5, 5)


def test_without_tasks_processors_make_the_slots():
    assert read_allocation(PROCESSORS).hosts == (Host("n1", 2, 4), Host("n2", 2, 4))


@pytest.mark.parametrize(
    ("environ", "options", "expected"),
    [
        (TASKS, [], {"n1": 2, "n2": 2, "gpu-a": 1}),
        (TASKS, ["-np", "3"], {"n1": 1, "n2": 1, "gpu-a": 1}),
        (TASKS, ["-np", "4"], {"n1": 2, "n2": 1, "gpu-a": 1}),
        (TASKS, ["-np", "1"], {"n1": 1}),
        (TASKS, ["--num-replicas", "3"], {"n1": 1, "n2": 1, "gpu-a": 1}),
        (TASKS, ["--num-replicas", "10"], {"n1": 2, "n2": 2, "gpu-a": 1}),
        (TASKS, ["-H", "n[1-2],gpu-a", "-np", "4"], {"n1": 2, "n2": 1, "gpu-a": 1}),
        (TASKS, ["-H", "n2", "-np", "2"], {"n2": 2}),
        (TASKS, ["-H", "n2.cluster.example", "-np", "1"], {"n2": 1}),
        (TASKS, ["-H", "n1:2,n2:2", "-np", "3"], {"n1": 2, "n2": 1}),
        (PROCESSORS, [], {"n1": 1, "n2": 1}),
        (PROCESSORS, ["-np", "4"], {"n1": 2, "n2": 2}),
        (PROCESSORS, ["--num-replicas", "4"], {"n1": 1}),
        (BATCH, ["-np", "2"], {"n1": 1, "n2": 1}),
        ({**TASKS, "SLURM_OVERCOMMIT": "1"}, ["-np", "9"], {"n1": 3, "n2": 3, "gpu-a": 3}),
        # srun --ntasks=1 poprun: the step's one task is the launcher, the processors are the job's
        (STEP, ["-np", "10"], {"n1": 4, "n2": 4, "gpu-a": 2}),
    ],
)  # fmt: skip
def test_instances_are_placed_in_the_allocation(environ, options, expected):
    assert counts(environ, *options) == expected


@pytest.mark.parametrize(
    ("environ", "options", "texts"),
    [
        (TASKS, ["-np", "6"], ["6 instances, room for 5 by its tasks", "sbatch --ntasks=6"]),
        (PROCESSORS, ["-np", "5"], ["5 instances, room for 4 by its processors"]),
        (TASKS, ["-H", "n1", "-np", "3"], ["room for 2"]),
        (TASKS, ["-H", "n1:8,n2:8", "-np", "5"], ["room for 4"]),
        (TASKS, ["-H", "n1,other"], ["'other'", "n1, n2, gpu-a", "leave --host out"]),
        (TASKS, ["-H", "localhost"], ["'localhost'", "job 7"]),
        (
            {**STEP, "SLURM_STEP_NUM_TASKS": "4"},
            [],
            ["srun starts poprun 4 times", "without srun"],
        ),
        ({**TASKS, "SLURM_HET_SIZE": "2"}, [], ["heterogeneous", "SLURM_HET_SIZE=2"]),
        ({**TASKS, "SLURM_TASKS_PER_NODE": "2(x9)"}, [], ["SLURM_TASKS_PER_NODE", "2(x9)"]),
        ({**TASKS, "SLURM_TASKS_PER_NODE": "2"}, [], ["3 nodes"]),
        ({**TASKS, "SLURM_NTASKS": "many"}, [], ["SLURM_NTASKS", "many"]),
    ],
)
def test_contradictions_are_explained(environ, options, texts):
    with pytest.raises(LaunchError) as caught:
        job(environ, *options)
    assert caught.value.code == "PD121"
    for text in texts:
        assert text in str(caught.value)


def test_idle_tasks_are_mentioned():
    assert unused_tasks(read_allocation(TASKS), 5) == ""
    assert "2 of the 5 tasks of Slurm job 7 stay idle" in unused_tasks(read_allocation(TASKS), 3)
    assert unused_tasks(read_allocation(PROCESSORS), 1) == ""


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.data())
def test_no_host_gets_more_than_its_slots(slots, data):
    instances = data.draw(st.integers(1, sum(slots)))
    environ = {
        "SLURM_JOB_ID": "1",
        "SLURM_JOB_NODELIST": f"n[1-{len(slots)}]",
        "SLURM_TASKS_PER_NODE": ",".join(str(count) for count in slots),
        "SLURM_NTASKS": str(sum(slots)),
    }
    taken = {host.name: host.slots for host in take_hosts(read_allocation(environ), (), instances)}
    assert sum(taken.values()) == instances
    assert all(count <= slots[int(name[1:]) - 1] for name, count in taken.items())


NAMES = [
    "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SLURM_STEP_ID",
    "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_OVERCOMMIT",
]  # fmt: skip
VALUES = st.one_of(
    st.text(max_size=8),
    st.from_regex(r"[0-9]{1,7}(\(x[0-9]{1,7}\))?(,[0-9]{1,3})?", fullmatch=True),
    st.from_regex(r"[a-z]{1,2}(\[[0-9]-[0-9]\])?(,[a-z])?", fullmatch=True),
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), VALUES), st.integers(1, 99))
def test_whatever_stands_in_the_variables_ends_in_a_job_or_in_an_explanation(environ, instances):
    with suppress(PopdistError):
        allocation = read_allocation(environ)
        if allocation is not None:
            taken = take_hosts(allocation, (), instances)
            assert sum(host.slots for host in taken) == instances
