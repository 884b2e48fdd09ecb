"""The mpirun command."""

import pytest

from popdist.environment import Topology
from popdist.poprun.machines.hosts import Host
from popdist.poprun.plan.locate import OPEN_MPI_4, OPEN_MPI_5, Mpirun
from popdist.poprun.plan.mpirun import ONE_HOST, build_command
from popdist.poprun.plan.placement import place
from tests.popdist.poprun.plan.test_placement import job as make_job

ENVIRON = {"PATH": "/bin", "PYTHONPATH": "/p", "HOME": "/h", "SECRET_TOKEN": "s3cret"}


def build(job, dialect=OPEN_MPI_4, *, as_root=False):
    mpirun = Mpirun("/opt/bin/mpirun", dialect)
    return build_command(
        job, place(job), mpirun, ENVIRON, channel="pipe=/t/p", session="/t/mpi", as_root=as_root
    )


def contexts(command):
    """The application contexts, each a list of words."""
    words = list(command.arguments)
    words = words[words.index("-np") :]
    split = [[]]
    for word in words:
        if word == ":":
            split.append([])
        else:
            split[-1].append(word)
    return split


def forwarded(context):
    return [context[i + 1] for i, word in enumerate(context) if word == "-x"]


def test_one_context_per_instance_carries_its_contract():
    job = make_job(3, 6, ipus_per_replica=2)
    command = build(job)
    parts = contexts(command)
    assert len(parts) == 3
    for index, part in enumerate(parts):
        assert part[:2] == ["-np", "1"]
        environ = dict(x.split("=", 1) for x in forwarded(part) if "=" in x)
        topology = Topology.from_environ(environ)
        assert (topology.instance_index, topology.num_instances) == (index, 3)
        assert topology.num_ipus_per_replica == 2
        assert part[-2:] == ["--", "true"]


def test_variables_are_forwarded_by_name_and_values_stay_off_the_command_line():
    job = make_job(1, 1)
    job = type(job)(**{**vars(job), "variables": {"HOME": None, "SECRET_TOKEN": "n3w"}})
    command = build(job)
    names = [x for x in forwarded(contexts(command)[0]) if not x.startswith("POPDIST_")]
    assert names == ["PATH", "PYTHONPATH", "HOME", "SECRET_TOKEN"]
    assert command.environment["SECRET_TOKEN"] == "n3w"
    assert not any("n3w" in word or "s3cret" in word for word in command.arguments)


def test_horovod_is_tuned_for_one_host_unless_the_user_decides():
    job = make_job(2, 2)
    assert ONE_HOST.items() <= build(job).environment.items()
    decided = type(job)(**{**vars(job), "variables": {"HOROVOD_CYCLE_TIME": "5"}})
    assert build(decided).environment["HOROVOD_CYCLE_TIME"] == "5"
    assert not ONE_HOST.keys() & build(make_job(2, 2, (Host("a"),))).environment.keys()


def test_users_arguments_come_first_globally_and_last_locally():
    job = make_job(2, 2, global_args=("--mca", "a", "b"), local_args=("-x", "ALL=1"))
    job = type(job)(**{**vars(job), "instance_args": {1: ("-x", "ONE=2")}})
    command = build(job)
    assert command.arguments[:6] == ("/opt/bin/mpirun", "--mca", "a", "b", "--bind-to", "none")
    first, second = (forwarded(part) for part in contexts(command))
    assert first[-1] == "ALL=1"
    assert second[-2:] == ["ALL=1", "ONE=2"]


@pytest.mark.parametrize(
    ("dialect", "words"),
    [(OPEN_MPI_4, ["--oversubscribe"]), (OPEN_MPI_5, ["--map-by", ":OVERSUBSCRIBE"])],
)
def test_dialects(dialect, words):
    command = build(make_job(1, 1), dialect, as_root=True)
    head = list(command.arguments[: command.arguments.index("-np")])
    assert head == ["/opt/bin/mpirun", "--bind-to", "none", *words, "--allow-run-as-root"]
    assert command.environment[dialect.session_variable] == "/t/mpi"


def test_hosts_are_named_only_where_they_are_not_this_one():
    here = build(make_job(2, 2, (Host("localhost"),)))
    assert "--host" not in here.arguments
    there = contexts(build(make_job(2, 2, (Host("a"), Host("b")))))
    assert [part[part.index("--host") + 1] for part in there] == ["a", "b"]


def test_a_lone_colon_of_the_program_is_not_a_context():
    job = make_job(1, 1)
    job = type(job)(**{**vars(job), "program": ("echo", ":", "<colon>")})
    command = build(job)
    assert ":" not in command.arguments
    assert "colon=<<colon>>" in command.arguments
    assert command.arguments[-3:] == ("echo", "<<colon>>", "<colon>")


def test_only_one_instance_is_shown():
    parts = contexts(build(make_job(3, 3, only_output_from=1, tag_output=True, output_folder="o")))
    assert [f"show={int(i == 1)}" in part for i, part in enumerate(parts)] == [True] * 3
    assert all("tag=1" in part for part in parts)
    assert all(any(word.startswith("files=/") for word in part) for part in parts)
