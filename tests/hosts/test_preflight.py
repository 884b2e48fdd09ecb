"""The look at other hosts before a job: a real sshd on each, and another trouble with each."""

import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from popdist import _version
from popdist.errors import LaunchError
from popdist.poprun.log import Log
from popdist.poprun.machines.find_mpirun import locate_mpirun
from popdist.poprun.machines.preflight import ask_hosts, reach_hosts
from popdist.poprun.machines.ssh import ssh_words
from popdist.poprun.options.requests import Reach
from tests.distributed.jobs import LAUNCHER, run_command
from tests.hosts.network import Hosts, Setup, missing

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=f"SEVERAL HOSTS ARE NOT TESTED: {missing()}"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="CLOCKS ARE NOT TESTED: no compiler"),
]

MPIRUN = locate_mpirun({}, None).path
PYTHON = Path(sys.executable)
CODE = Path(_version.__file__)
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *t) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, t);
    if (id == CLOCK_REALTIME) t->tv_sec -= 3600;
    return result;
}
"""
CAUSES = ["unknown key", "denied", "refused", "no python", "version", "no mpirun", "clock"]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("preflight")
    (folder / "clock.c").write_text(CLOCK)
    late = folder / "clock.so"
    compile_clock = ["cc", "-shared", "-fPIC", "-o", late, folder / "clock.c", "-ldl"]
    subprocess.run(compile_clock, check=True)
    (folder / "older.py").write_text('__version__ = "0.0.1"\n')
    (folder / "empty").write_text("")
    # What a host lacks is hidden by a mount that only this host has.
    setups = {
        0: Setup(),
        1: Setup(known=False),
        2: Setup(admits=False),
        3: Setup(runs=False),
        4: Setup(before=f"mount -t tmpfs none {PYTHON.parent}"),
        5: Setup(before=f"mount --bind {folder}/older.py {CODE}"),
        6: Setup(before=f"mount --bind {folder}/empty {MPIRUN}"),
        7: Setup(environment=f"LD_PRELOAD={late}"),
    }
    with Hosts(folder, len(setups), name="poplook", subnet=33, setups=setups) as hosts:
        yield hosts


@pytest.fixture
def ssh(hosts):
    return ssh_words(["--mca", "plm_rsh_args", hosts.ssh_options], {})


def test_every_cause_is_told_apart_in_one_look(hosts, ssh):
    absent = f"{hosts.network}.99"
    nodes, reasons = ask_hosts([*hosts.addresses, absent, "no.such.host.invalid"], ssh, MPIRUN)
    assert [reason.kind for reason in reasons.values()] == [*CAUSES, "unreachable", "unknown name"]
    assert list(reasons) == [*hosts.addresses[1:], absent, "no.such.host.invalid"]
    assert list(nodes) == hosts.addresses[:1]
    assert nodes[hosts.addresses[0]][0].cpus
    assert "Permission denied" in reasons[hosts.addresses[2]].text
    assert "Host key verification failed" in reasons[hosts.addresses[1]].text
    assert str(PYTHON) in reasons[hosts.addresses[4]].text
    assert "0.0.1" in reasons[hosts.addresses[5]].text
    assert re.search(r"its clock is 3[56]\d\d s behind", reasons[hosts.addresses[7]].text)


def test_one_message_has_all_hosts_and_their_remedies(hosts, ssh):
    with pytest.raises(LaunchError) as caught:
        reach_hosts(hosts.addresses[:4], ssh, MPIRUN, Reach(), Log())
    text = str(caught.value)
    assert text.startswith("[PD120] 3 of 4 hosts cannot take part in the job\n")
    for index, remedy in ((1, "known_hosts"), (2, "ssh-copy-id"), (3, "start sshd on")):
        assert f"  {hosts.addresses[index]}: it" in text
        assert remedy in text
    assert "--preflight=no" in text


def test_a_cut_link_does_not_hang(hosts, ssh, monkeypatch):
    monkeypatch.setattr("popdist.poprun.machines.preflight._PATIENCE_S", 2.0)
    hosts.cut(0)
    try:
        _, reasons = ask_hosts(hosts.addresses[:1], ssh, MPIRUN)
    finally:
        hosts.mend(0)
    assert reasons[hosts.addresses[0]].kind in {"timeout", "unreachable"}


def test_a_job_is_refused_before_anything_starts(hosts):
    options = hosts.mpirun_options(MPIRUN)
    code, output = run_command(
        [*LAUNCHER, f"--host={hosts.addresses[0]},{hosts.addresses[2]}",
         f"--mpi-global-args={options}", "echo", "started"],
    )  # fmt: skip
    assert code == 2
    assert "1 of 2 hosts cannot take part" in output
    assert "started" not in output


def test_the_user_may_skip_the_look(hosts):
    # Its clock is late, which mpirun does not mind.
    code, output = run_command(
        [*LAUNCHER, f"--host={hosts.addresses[7]}", "--preflight=no",
         f"--mpi-global-args={hosts.mpirun_options(MPIRUN)}", "echo", "started"],
    )  # fmt: skip
    assert code == 0, output
    assert output.endswith("started\n")  # Open MPI now and then warns about its own ssh


def test_the_network_may_be_chosen_by_its_subnet(hosts):
    options = f"--prefix {Path(MPIRUN).parents[1]} --mca plm_rsh_args '{hosts.ssh_options}'"
    if (Path(MPIRUN).parent / "prterun").exists():
        options = options.replace("--mca plm_rsh_args", "--prtemca plm_ssh_args")
    code = (
        "import torch, horovod.torch as hvd\nhvd.init()\n"
        "print(hvd.allreduce(torch.tensor([1.0 + hvd.rank()]), op=hvd.Sum).item())"
    )
    status, output = run_command(
        [*LAUNCHER, f"--host={hosts.addresses[0]},{hosts.addresses[7]}", "--preflight=no",
         f"--host-subnet={hosts.network}.0/24", f"--mpi-global-args={options}",
         sys.executable, "-c", code],
    )  # fmt: skip
    assert status == 0, output
    assert output.endswith("3.0\n3.0\n")


def test_the_doctor_looks_at_hosts_too(hosts):
    code, output = run_command(
        [*LAUNCHER, "doctor", "--no-job", f"--host={hosts.addresses[0]},{hosts.addresses[2]}"],
        env={"OMPI_MCA_plm_rsh_args": hosts.ssh_options},
    )
    assert code == 1
    assert f"     ok  host {hosts.addresses[0]}: same Python, popdist and Open MPI" in output
    assert f"PROBLEM  host {hosts.addresses[2]}: it denies access" in output
    assert f"  1. host {hosts.addresses[2]}: ssh-copy-id {hosts.addresses[2]}" in output


def test_a_key_is_distributed_by_ssh_copy_id(hosts, ssh, tmp_path, monkeypatch):
    # Entering the password needs a person; what ssh-copy-id then does is done here.
    copy = tmp_path / "ssh-copy-id"
    copy.write_text(
        f"#!/bin/sh\necho $* >{tmp_path}/words\n"
        f"cat {hosts.folder}/authorized >>{hosts.folder}/nobody\n"
    )
    copy.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    denied = hosts.addresses[2]
    nodes = reach_hosts([denied], ssh, MPIRUN, Reach(distribute_ssh_key=True), Log())
    assert list(nodes) == [denied]
    words = (tmp_path / "words").read_text()
    assert words.split()[-1] == denied
    assert f"{hosts.folder}/key" in words
    (hosts.folder / "nobody").write_text("")


def test_the_environment_is_copied_where_it_is_missing(tmp_path):
    home = tmp_path / "shared" / "environment"
    venv.create(home, symlinks=True, with_pip=False)
    setups = {0: Setup(before=f"mount -t tmpfs none {home.parent}")}
    (tmp_path / "hosts").mkdir()
    with Hosts(tmp_path / "hosts", 1, name="popcopy", subnet=34, setups=setups) as hosts:
        options = hosts.mpirun_options(MPIRUN)
        words = [home / "bin" / "python", *LAUNCHER[1:], f"--mpirun={MPIRUN}",
                 f"--host={hosts.addresses[0]}", f"--mpi-global-args={options}"]  # fmt: skip
        program = [home / "bin" / "python", "-c", "import sys; print(sys.prefix)"]
        code, output = run_command([*words, *program])
        assert code == 2
        assert f"there is no Python at {home}/bin/python" in output
        code, output = run_command([*words, "--synchronise-python-venv=yes", *program])
        assert code == 0
        assert output.endswith(f"{home}\n")
