"""The launcher's part of the PopDist and PopRun guide for SDK 2.2, line by line.

The rows say in our words what the guide says, and what happens here. Rows that need devices, ssh or
Slurm name the test that has them.
"""

from pathlib import Path

import pytest

from popdist.poprun.cli import main
from popdist.poprun.options.table import BY_ALIAS, BY_NAME

ROOT = Path(__file__).resolve().parents[3]
PARTITION = [
    "--numa-aware=yes", "--vipu-server-host=10.3.7.150", "--vipu-partition=P8",
    "--vipu-cluster=A8", "--mpi-global-args=--tag-output",
]  # fmt: skip
HOSTS = ["--host", "10.3.7.153,10.3.8.153", *PARTITION, "--mpi-local-args=-x PYTHONPATH"]
EIGHT = ["--num-replicas=8", "--num-instances=2", "python3", "train.py"]

# Section: the words of the command line, and what its dry run must say.
COMMANDS = {
    "2.3.1 one instance": (
        [*PARTITION, "--num-replicas=4", "--num-instances=1", "python3", "train.py"],
        ["| replicas  | 0 | 1 | 2 | 3 |", "P8 is made of this machine's own devices"],
    ),
    "2.3.2 two instances on one host": (
        [*PARTITION, *EIGHT],
        ["POPDIST_NUM_TOTAL_REPLICAS=8", "POPDIST_NUM_LOCAL_REPLICAS=4", "| instances |"],
    ),
    "2.3.3 two hosts": (
        [*HOSTS, "--num-ilds=1", *EIGHT],
        ["| hosts     |  10.3.7.153   |  10.3.8.153   |", "-x PYTHONPATH", "P8 is left out"],
    ),
    "2.3.4 two link domains": (
        [*HOSTS, "--num-ilds=2", *EIGHT],
        ["| ILDs      |       0       |       1       |", '"ipuLinkDomainSize": "4"'],
    ),
}

# Option of the table of section 3: its short form, and the default that the guide states.
OPTIONS = {
    "help": (None, None), "host": ("-H", None), "num-replicas": (None, None),
    "ipus-per-replica": (None, 1), "num-instances": (None, None), "num-ilds": (None, 1),
    "vipu-server-host": (None, "localhost"), "vipu-server-port": (None, 8090),
    "vipu-server-timeout": (None, 10), "vipu-partition": (None, None),
    "update-partition": (None, False), "reset-partition": (None, None),
    "remove-partition": (None, True), "vipu-cluster": (None, None),
    "executable-cache-path": (None, None), "mpi-global-args": (None, None),
    "mpi-local-args": (None, None), "print-topology": (None, False),
    "only-output-from-instance": (None, None), "offline-mode": (None, False),
    "verbose": ("-v", None), "vv": (None, None),
}  # fmt: skip

# What the changelog says in our words: a command line, its exit code, and what it says.
CHANGES = {
    "2.2 an instance that SIGKILL ended is explained": (
        ["sh", "-c", "kill -9 $$"], 137,
        ["was killed by signal 9 (SIGKILL)", "the kernel does when memory is short"],
    ),
    "2.1 long names of hosts stand below the table": (
        ["--dry-run=yes", f"--host={'long' * 12}.example.org,b", "true"], 0,
        [f"[0]: {'long' * 12}.example.org"],
    ),
    "2.1 links and synchronisation of a partition have options": (
        ["--dry-run=yes", "--vipu-partition=P", "--ipu-link-routing-type=RING",
         "--gw-link-routing-type=DEFAULT", "--sync-type=C2_COMPATIBLE", "true"], 0,
        ['"ipuLinkTopology": "RING"'],
    ),
    "2.1 a missing program is said to be missing": (
        ["--num-instances=2"], 2, ["no program was named"],
    ),
    "2.1 a variable for one instance": (
        ["-np", "2", "--instance-mpi-local-args=1:-x VAR=VALUE", "sh", "-c", "echo is $VAR"], 0,
        ["is VALUE\n", "is\n"],
    ),
    "2.1 a timeout of the server is accepted": (
        ["--dry-run=yes", "--vipu-partition=P", "--vipu-server-timeout=30", "true"], 0,
        ["--vipu-server-timeout=30"],
    ),
    "2.1 a program of the working directory needs no ./": (["here"], 0, ["it is here"]),
    "2.1 arguments of mpirun add up": (
        ["--mpi-local-args=-x A=1", "--mpi-local-args=-x B=2", "sh", "-c", "echo $A$B"], 0, ["12"],
    ),
    "2.1 several instances on a host are NUMA-aware by default": (
        ["--dry-run=yes", "-np", "2", "true"], 0, ["numa=1"],
    ),
    "2.1 one instance is not": (["--dry-run=yes", "true"], 0, ["numa=0"]),
    "2.0 values are checked": (
        ["--num-replicas=3", "--num-instances=none", "true"], 2, ["--num-instances"],
    ),
    "2.0 offline, with several hosts and link domains": (
        ["--dry-run=yes", "--offline-mode=yes", "--host=a,b", "--num-ilds=2", "-np", "2",
         "--num-replicas=2", "true"], 0, ["| ILDs      | 0 | 1 |"],
    ),
    "1.2 the installation says hello twice": (
        ["--num-instances", "2", "--num-replicas", "2", "--offline-mode=1", "echo", "Hello world!"],
        0, ["Hello world!\nHello world!\n"],
    ),
}  # fmt: skip

# Sentences whose test needs more than a command line.
ELSEWHERE = {
    "2.2 an existing partition that does not match is updated or refused":
        "tests/popdist/poprun/partitions/test_reservation.py",
    "2.1 resources of Slurm": "tests/hosts/test_slurm.py",
    "2.1 any locale": "tests/distributed/test_command_line.py",
    "2.1 the NUMA nodes of a cpuset": "tests/hosts/test_numa.py",
    "2.1 trouble with ssh is said and does not hang": "tests/hosts/test_preflight.py",
    "2.1 the final state of a partition is checked": "tests/distributed/test_partitions.py",
    "2.0 partitions that poprun made are removed": "tests/distributed/test_partitions.py",
    "2.0 progress while a job runs": "tests/popdist/poprun/output/test_progress.py",
    "2.0 all NUMA nodes, in turn": "tests/popdist/poprun/machines/test_numa.py",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POPDIST_STATE_DIR", str(tmp_path / "state"))
    Path("train.py").touch()
    Path("here").write_text("#!/bin/sh\necho it is here\n")
    Path("here").chmod(0o755)


def said(words, capfd):
    code = main(words)
    out, errors = capfd.readouterr()
    return code, out + errors


@pytest.mark.parametrize("section", COMMANDS)
def test_the_command_lines_of_section_2_3_are_planned(section, capfd):
    words, expected = COMMANDS[section]
    code, output = said(["--dry-run=yes", *words], capfd)
    assert code == 0, output
    for text in expected:
        assert text in output


def test_each_option_of_section_3_has_its_default():
    for name, (short, default) in OPTIONS.items():
        option = BY_NAME[name]
        assert short is None or BY_ALIAS[short] is option
        assert default is None or option.default == default, name


@pytest.mark.parametrize("sentence", CHANGES)
def test_the_changelog(sentence, capfd):
    words, expected, texts = CHANGES[sentence]
    code, output = said(words, capfd)
    assert code == expected, output
    for text in texts:
        assert text in output


def test_the_rest_of_the_changelog_has_tests():
    for path in ELSEWHERE.values():
        assert "def test_" in (ROOT / path).read_text()
