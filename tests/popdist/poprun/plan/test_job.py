"""Command line to job: defaults that depend on each other, and contradictions."""

import sys

import pytest

from popdist.errors import LaunchError, UsageError
from popdist.poprun.machines.hosts import Host
from popdist.poprun.options.parser import parse
from popdist.poprun.plan.job import make_job

ENVIRON = {"PATH": "/usr/bin:/bin", "SET": "1"}


def job(*words, program=("true",)):
    return make_job(parse([*words, *program]), ENVIRON)


def test_without_options_there_is_one_instance_with_one_replica():
    assert (job().num_instances, job().num_replicas) == (1, 1)


def test_without_replicas_there_is_one_per_instance():
    assert job("--num-instances=3").num_replicas == 3


def test_replicas_alone_belong_to_one_instance():
    assert (job("--num-replicas=4").num_instances, job("--num-replicas=4").num_replicas) == (1, 4)


def test_without_instances_there_is_one_per_host():
    made = job("--host=a,b,c")
    assert (made.num_instances, made.num_replicas) == (3, 3)
    assert made.hosts == (Host("a"), Host("b"), Host("c"))
    assert not made.is_local


def test_fewer_replicas_than_instances_is_refused_with_the_fix():
    with pytest.raises(UsageError, match="--num-replicas 4"):
        job("--num-replicas=2", "--num-instances=4")


def test_host_and_hostfile_exclude_each_other(tmp_path):
    with pytest.raises(UsageError, match="exclude each other"):
        job("--host=a", f"--hostfile={tmp_path}")


def test_hosts_from_a_file(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("a:2\nb:2\n")
    assert job(f"--hostfile={path}").hosts == (Host("a", 2), Host("b", 2))
    with pytest.raises(UsageError, match="cannot be read"):
        job(f"--hostfile={tmp_path / 'missing'}")
    with pytest.raises(UsageError, match="cannot be read"):
        job(f"--hostfile={tmp_path}")


def test_arguments_for_mpirun_are_split_and_merged():
    made = job("--mpi-global-args=--mca a  b\n --mca c d", "--mpi-global-args", "--report-bindings")
    assert made.global_args == ("--mca", "a", "b", "--mca", "c", "d", "--report-bindings")
    made = job("--mpi-local-args=-x B --mca x y", "--mpi-local-args=-x A='b c' -x SET")
    assert made.local_args == ("-x", "B", "--mca", "x", "y", "-x", "SET")
    assert made.variables.common == {"A": "b c"}


def test_quotes_that_programs_leave_inside_are_taken_off():
    made = job("--num-instances=2", '--instance-mpi-local-args=1:"-x A=B -x C=D"')
    assert made.variables.single == {1: {"A": "B", "C": "D"}}


def test_output_options_of_mpirun_are_ours():
    made = job("--mpi-global-args=--tag-output --output-filename out --mca a b")
    assert made.tag_output
    assert made.output_folder == "out"
    assert made.global_args == ("--mca", "a", "b")
    assert job("--mpi-global-args=-output-filename=out").output_folder == "out"
    with pytest.raises(UsageError, match="needs a directory"):
        job("--mpi-global-args=--output-filename")


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--mpi-local-args", "A=B"),
        ("--mpi-local-args", "python3"),
        ("--mpi-local-args", "-x 'A=B"),
        ("--mpi-global-args", "--mca a b : x"),
        ("--instance-mpi-local-args", "-x A=B"),
        ("--instance-mpi-local-args", "one:-x A=B"),
        ("--instance-mpi-local-args", "1:-x A=B"),
        ("--instance-mpi-local-args", "1" * 5000 + ":-x A=B"),
        ("--only-output-from-instance", "1"),
        ("-x", "1A=2"),
        ("-x", "A B"),
        ("-x", "UNSET"),
        ("-x", "A;B=1"),
        ("-x", "A=\0"),
        ("--mpi-local-args", "-x 'A B=1'"),
    ],
)
def test_what_would_mislead_mpirun_is_refused(option, text):
    with pytest.raises(UsageError, match="PD10"):
        job(option, text)


def test_forwarded_variables():
    variables = job("-x", "SET", "-x", "NEW=a=b", "-x", "NEW=c").variables
    assert (variables.forwarded, variables.common) == (("SET",), {"NEW": "c"})


def test_variables_of_all_options_come_together():
    variables = job(
        "-np", "2", "-x", "A=1", "-x", "B=1", "--mpi-local-args=-x B=2 -x C=2",
        "--instance-mpi-local-args=1:-x C=3", "--instance-mpi-local-args=1:-x D",
    ).variables  # fmt: skip
    assert variables.common == {"A": "1", "B": "2", "C": "2"}
    assert variables.single == {1: {"C": "3"}}
    assert variables.names(0) == ["POPRUN_SET_A", "POPRUN_SET_B", "POPRUN_SET_C"]
    assert variables.names(1) == [*variables.names(0), "POPRUN_SET_1_C"]
    assert variables.environment["POPRUN_SET_1_C"] == "3"
    assert variables.sets(1) == {"A", "B", "C"}


@pytest.mark.parametrize(("ilds", "instances"), [(2, 3), (4, 2), (2, 1)])
def test_instances_that_link_domains_cannot_share(ilds, instances):
    with pytest.raises(UsageError, match="--num-instances") as caught:
        job(f"--num-ilds={ilds}", f"--num-instances={instances}")
    assert caught.value.code == "PD101"


def test_the_program_is_found_on_path_or_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(LaunchError, match="chmod"):
        job(program=("train.sh",))
    script.chmod(0o755)
    assert job(program=("train.sh", "--x")).program == ("./train.sh", "--x")
    assert job(program=("true",)).program == ("/usr/bin/true",)
    assert job(program=(sys.executable,)).program == (sys.executable,)


def test_a_python_file_gets_the_right_hint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    with pytest.raises(LaunchError, match=r"python3 train.py"):
        job(program=("train.py",))


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"print(1)\n", r"names its interpreter(.|\n)*python3 \./train\.py"),
        (b"#!/no/python\nprint(1)\n", r"does not exist(.|\n)*#!/no/python"),
        (b"#!/usr/bin/env python3\r\nprint(1)\r\n", r"Windows(.|\n)*sed -i"),
    ],
)
def test_a_python_file_that_the_kernel_cannot_start_is_refused(
    tmp_path, monkeypatch, content, hint
):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_bytes(content)
    script.chmod(0o755)
    with pytest.raises(LaunchError, match=hint):
        job(program=("./train.py",))
    script.write_bytes(b"#!/usr/bin/env python3\nprint(1)\n")
    assert job(program=("./train.py",)).program == ("./train.py",)


def test_a_python_file_that_is_not_there_gets_the_right_order_of_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LaunchError, match=r"path of train.py, .* poprun -np 2 python3 train.py"):
        job(program=("train.py", "-np", "2"))


@pytest.mark.parametrize("program", [(), ("",), ("no-such-program",), ("/",)])
def test_a_missing_program_is_refused(program):
    with pytest.raises((LaunchError, UsageError), match="PD102"):
        job(program=program)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("OMP_NUM_THREADS=1", "python3"), "-x OMP_NUM_THREADS=1"),
        (("cd", "/tmp"), "bash -c 'cd ...'"),
        (("source", "activate"), "bash -c 'source ...'"),
        (("help",), "poprun --help"),
        (("python3 train.py",), "without quotes: python3 train.py"),
        (("1=2",), "options of poprun before the program"),
    ],
)
def test_the_hint_about_a_missing_program_has_the_fix(words, hint):
    with pytest.raises(LaunchError) as raised:
        job(program=words)
    assert hint in raised.value.hint


def test_programs_of_other_hosts_are_theirs_to_find():
    assert job("--host=a", program=("only-there",)).program == ("only-there",)
