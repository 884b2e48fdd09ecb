"""The mpirun command."""

import json

import pytest

from popdist.popdist_core import Topology
from popdist.poprun.machines.find_mpirun import OPEN_MPI_4, OPEN_MPI_5, Mpirun
from popdist.poprun.machines.hosts import Host
from popdist.poprun.plan.command import Run
from popdist.poprun.plan.mpi_arguments import Variables
from popdist.poprun.plan.mpirun import EVERYWHERE, ONE_HOST, TARGET_OPTIONS, build_command
from popdist.poprun.plan.placement import place
from tests.popdist.poprun.plan.test_placement import job as make_job

ENVIRON = {"PATH": "/bin", "PYTHONPATH": "/p", "HOME": "/h", "SECRET_TOKEN": "s3cret"}


def build(job, dialect=OPEN_MPI_4, *, as_root=False, environ=ENVIRON, **settings):
    mpirun = Mpirun("/opt/bin/mpirun", dialect)
    run = Run("pipe=/t/p", "/t/mpi")
    return build_command(
        job, place(job), mpirun, environ, run=run, meeting={"MASTER_PORT": "1"}, as_root=as_root,
        **settings,
    )  # fmt: skip


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
    variables = Variables(("HOME",), {"SECRET_TOKEN": "n3w"}, {1: {"OTHER": "on3"}})
    command = build(make_job(2, 2, variables=variables))
    first, second = (
        [x for x in forwarded(part) if not x.startswith("POPDIST_")] for part in contexts(command)
    )
    assert first == ["PATH", "PYTHONPATH", "MASTER_PORT", "HOME", "POPRUN_SET_SECRET_TOKEN"]
    assert second == [*first, "POPRUN_SET_1_OTHER"]
    # mpirun itself keeps its own value.
    assert command.environment["SECRET_TOKEN"] == "s3cret"
    assert command.environment["POPRUN_SET_SECRET_TOKEN"] == "n3w"
    shown = " ".join(command.arguments)
    assert not any(value in shown for value in ("n3w", "s3cret", "on3"))


def test_horovod_is_tuned_for_one_host_unless_the_user_decides():
    job = make_job(2, 2)
    assert ONE_HOST.items() <= build(job).environment.items()
    decided = build(job, environ={**ENVIRON, "HOROVOD_CYCLE_TIME": "5"})
    assert decided.environment["HOROVOD_CYCLE_TIME"] == "5"
    assert not ONE_HOST.keys() & build(make_job(2, 2, (Host("a"),))).environment.keys()


def test_waiting_leaves_the_processor_to_the_program_unless_the_user_decides():
    for job in (make_job(2, 2), make_job(2, 2, (Host("a"),))):
        assert EVERYWHERE.items() <= build(job).environment.items()
    name = "OMPI_MCA_mpi_yield_when_idle"
    assert build(make_job(2, 2), environ={**ENVIRON, name: "0"}).environment[name] == "0"


def test_users_arguments_come_first_globally_and_last_locally():
    command = build(
        make_job(
            2, 2, global_args=("--mca", "a", "b"), local_args=("-x", "ALL"),
            instance_args={1: ("-x", "ONE")},
        )
    )  # fmt: skip
    assert command.arguments[:6] == ("/opt/bin/mpirun", "--mca", "a", "b", "--bind-to", "none")
    first, second = (forwarded(part) for part in contexts(command))
    assert first[-1] == "ALL"
    assert second[-2:] == ["ALL", "ONE"]


@pytest.mark.parametrize(
    "words", [("--bind-to", "core"), ("-bind-to", "core"), ("--bind-to-core",)]
)
def test_a_binding_of_the_users_own_is_mpiruns_business(words):
    head = build(make_job(1, 1, global_args=words)).head
    assert "none" not in head
    assert head[1 : 1 + len(words)] == words


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


def test_what_the_user_sets_is_kept_from_being_set_again():
    variables = Variables((), {"MASTER_PORT": "2", "RANK": "x"}, {1: {"WORLD_SIZE": "y"}})
    first, second = contexts(build(make_job(2, 2, variables=variables)))
    assert "keep=RANK" in first
    assert "keep=RANK,WORLD_SIZE" in second


def test_hosts_are_numbered():
    parts = contexts(build(make_job(4, 4, (Host("a"), Host("b")))))
    assert [[w for w in part if w.startswith("node=")] for part in parts] == [
        ["node=0"], ["node=0"], ["node=1"], ["node=1"],
    ]  # fmt: skip


def test_programs_are_told_about_links_where_the_user_speaks_of_them():
    quiet = build(make_job(4, 8))
    assert TARGET_OPTIONS not in quiet.environment
    linked = make_job(4, 8, num_ilds=2, ipus_per_replica=2, given=frozenset({"num-ilds"}))
    command = build(linked)
    assert json.loads(command.environment[TARGET_OPTIONS]) == {
        "ipuLinkDomainSize": "8", "gatewayMode": "true", "instanceSize": "4",
    }  # fmt: skip
    assert all(TARGET_OPTIONS in forwarded(part) for part in contexts(command))
    own = build(linked, environ={**ENVIRON, TARGET_OPTIONS: "{}"})
    assert own.environment[TARGET_OPTIONS] == "{}"


@pytest.mark.parametrize("dialect", [OPEN_MPI_4, OPEN_MPI_5])
def test_mpi_has_no_tcp_on_one_machine(dialect):
    command = build(make_job(2, 2), dialect, has_tcp=False)
    assert command.environment["OMPI_MCA_btl"] == "^tcp"
    assert not command.has_tcp
    for other in (
        build(make_job(2, 2), dialect, has_tcp=True),
        build(make_job(2, 2, hosts=(Host("a"), Host("b"))), dialect, has_tcp=False),
    ):
        assert "OMPI_MCA_btl" not in other.environment
        assert other.has_tcp


@pytest.mark.parametrize(
    "chosen",
    [
        {"global_args": ("--mca", "btl", "self,tcp")},
        {"local_args": ("-mca", "btl", "self,tcp")},
        {"instance_args": {1: ("--mca", "btl", "self,tcp")}},
        {"variables": Variables((), {"OMPI_MCA_btl": "self,tcp"})},
        {"variables": Variables((), {}, {1: {"OMPI_MCA_btl": "self,tcp"}})},
    ],
)
def test_transports_that_the_user_chooses_stay(chosen):
    command = build(make_job(2, 2, **chosen), has_tcp=False)
    assert "OMPI_MCA_btl" not in command.environment
    assert command.has_tcp
    mine = build(make_job(2, 2), environ={**ENVIRON, "OMPI_MCA_btl": "self,tcp"}, has_tcp=False)
    assert mine.environment["OMPI_MCA_btl"] == "self,tcp"
    assert mine.has_tcp
