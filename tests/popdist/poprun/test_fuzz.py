"""Whatever is typed, set or written to a file: a plan or a clear refusal, and nothing is started.

Each example has a number. Bytes drawn from it decide, by the grammar below, about a command line,
the environment, a host list and a configuration file. All steps that come before a start are run.
"""

import json
import os
import random
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from popdist.errors import CODES, PopdistError
from popdist.poprun.launch import _as_started
from popdist.poprun.machines.find_mpirun import OPEN_MPI_4, OPEN_MPI_5, Mpirun
from popdist.poprun.options.help import answer
from popdist.poprun.options.parser import parse
from popdist.poprun.options.serialize import config_text
from popdist.poprun.options.table import OPTIONS
from popdist.poprun.output.dry_run import dry_run_text
from popdist.poprun.output.result_json import write_result
from popdist.poprun.output.topology_table import topology_table
from popdist.poprun.partitions.fitting import read_request, stand_in
from popdist.poprun.plan import rendezvous as meeting
from popdist.poprun.plan.command import Run
from popdist.poprun.plan.job import make_job, remarks
from popdist.poprun.plan.kubernetes import manifest
from popdist.poprun.plan.mpirun import build_command
from popdist.poprun.plan.placement import place
from popdist.poprun.supervisor.outcome import Outcome

WHOLE = bool(os.environ.get("POPDIST_EXHAUSTIVE"))
EXAMPLES = int(os.environ.get("POPDIST_EXAMPLES", "20000" if WHOLE else "3000"))
"""How many jobs are asked for: the same few on every run, and others with ``make test-all``."""
FIRST = int(os.environ.get("POPDIST_FUZZ", random.randrange(10**9) if WHOLE else 0))  # noqa: S311 - no secret
"""The number of the first one."""
NASTY = [
    "", " ", "-", "--", "=", ":", ",", "[", "]", "a[", "[]", "a]b", "0", "-1", "1e9", "99999999",
    "1" * 5000, "٣", "é", "漢", "\udcff", "\x00", "\n", "\t\r", "a\nb", "'", '"', "'\"", "\\", "#",
    "$HOME", "$(touch pwned)", "`touch pwned`", "; touch pwned", "| touch pwned", "&& touch pwned",
    "> pwned", "*", "~", "%s", "{}", "{0}", "\x1b[31m", "x" * 3000, "--help", "-vv", "NaN", "inf",
    "\udc80", "\udcff\udcfe/x", "a\udc80b", "--json", "--num-instances=2", "-np", "-m", "--module",
    "yes", "no", "A=B", "A=$(touch pwned)", "PATH=", "1A=2", "-x A=B", "-x", "--mca", "0:-x A=B",
    "-x A='b", "0:", ":0", "a,b", "h[1-3]", "h[3-1]", "h[1-99999999]", "h[01-03]:2", "h:0",
    "h:999999", "h,h,h", "localhost", "127.0.0.1", "-oProxyCommand=touch pwned", "h\nb",
    "h;touch pwned",
    "AUTO", "auto", "spreadnuma", "mpijob", "10m", "1h", "0s", "5 s", ".5", "1.", "1..2", "USR1",
    "http://me:secret@host/", "TOKEN=s3cret", "/", "/dev/null", "../..", "true", "python3",
]  # fmt: skip
GOOD = {
    "n": ["1", "2", "4"], "port": ["8080"], "seconds": ["10", "1.5", "2m"], "name": ["p1", "A_b.c"],
    "hosts": ["a,b", "h[1-4]", "localhost"], "yes|no": ["yes", "off"], "file": ["f"], "dir": ["d"],
    "arg": ["-x A=1 --mca b c", "0:-x A=1", "A=1", "PATH", "--tag-output"], "": [""],
}  # fmt: skip
VARIABLES = [option.variable for option in OPTIONS if option.variable] + [
    "POPRUN_LOG_LEVEL", "POPRUN_NONSENSE", "POPRUN_NUM_REPLICA", "POPRUN_", "MASTER_PORT", "RANK",
    "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_NTASKS", "OMPI_MCA_orte_default_hostfile", "POPLAR_TARGET_OPTIONS", "PATH", "A",
    "POPDIST_NUM_TOTAL_REPLICAS", "POPRUN_SET_", "POPRUN_SET_0_A",
]  # fmt: skip
NAMES = [f"--{option.name}" for option in OPTIONS]
NAMES += [alias for option in OPTIONS for alias in option.aliases]


class Dice:
    """Decides by the bytes of an example; says 0 when they are used up, so that it ends."""

    def __init__(self, data):
        self._data = iter(data)

    def below(self, number):
        return next(self._data, 0) % number

    def one_of(self, choices):
        return choices[(self.below(256) * 256 + self.below(256)) % len(choices)]

    def text(self):
        kind = self.below(8)
        if kind == 0:
            return "".join(chr(32 + self.below(95)) for _ in range(self.below(12)))
        if kind == 1:
            return self.one_of(NASTY) + self.one_of(NASTY)
        return self.one_of(NASTY)

    def value(self, option):
        """A text that has a chance to be accepted."""
        if option is not None and option.kind.choices and self.below(4):
            return self.one_of(option.kind.choices)
        if option is not None and self.below(4):
            return self.one_of(GOOD[option.kind.metavar])
        return str(1 + self.below(9)) if self.below(2) else self.text()

    def word(self):
        kind = self.below(8)
        if kind == 0:
            return [self.text()]
        option = self.one_of(OPTIONS)
        name = self.one_of(NAMES) if kind == 1 else f"--{option.name}"
        if kind == 2:
            name = name[: 2 + self.below(len(name) - 1)]
        value = self.value(option)
        return [[name, value], [f"{name}={value}"], [name], [f"{name}{value}"]][self.below(4)]

    def words(self):
        words = [word for _ in range(self.below(7)) for word in self.word()]
        words += ["true", *(self.text() for _ in range(self.below(4)))]
        return [word.replace("\0", "") for word in words]  # which the kernel does not pass on

    def environ(self):
        found = {"PATH": "/usr/bin:/bin"}
        for _ in range(self.below(4)):
            found[self.one_of(VARIABLES)] = self.value(None).replace("\0", "")
        return found

    def toml(self):
        if self.below(4) == 0:
            return "\n".join(self.text() for _ in range(self.below(5)))
        lines = []
        for _ in range(self.below(5)):
            key = self.one_of(OPTIONS).name if self.below(8) else self.text()
            raw = self.value(None).replace("\\", "\\\\").replace('"', '\\"')
            forms = [f'"{raw}"', raw, f'["{raw}"]', "true", "1", "[1, [2]]", "1979-05-27", "{a=1}"]
            lines.append(f"{key} = {self.one_of(forms)}")
        return "\n".join(lines)


def plan(words, environ, dialect):
    """Everything that happens before a start, for every form in which a job can be asked for."""
    line = parse(words, environ)
    text = answer(line)
    if text is not None:
        assert text
        return
    config_text(line)
    job = make_job(line, environ)
    instances = place(job)
    assert len(instances) == job.num_instances
    assert topology_table(instances, job.num_ilds)
    if job.offline or job.is_local:
        stand_in(job)
        read_request(job, environ)
    meet = meeting.rendezvous(job, instances, environ)
    command = build_command(
        job, instances, Mpirun("/opt/mpirun", dialect), environ,
        run=Run("pipe=/f/pipe", "/f/mpi"), meeting=meet, as_root=bool(len(words) % 2),
    )  # fmt: skip
    assert len(command.contexts) == job.num_instances
    _as_started(command, "/f/contexts", 1 << 21)
    shown = dry_run_text(line, command, environ, room=1 << 17)
    shown.encode()  # every byte that was no text is escaped
    result = Path("result")
    write_result("result", job, instances, [Outcome()], mpirun="/m", logs=None, timeline=None)
    assert json.loads(result.read_text(encoding="utf-8"))["job"]["program"]
    result.unlink()
    assert not re.search(r"\bTOKEN=s3cret", shown)  # a letter before it makes another name
    assert "me:secret@" not in shown
    for remark in remarks(job, 0):
        assert "\n" not in remark
    if line.values["emit-image"] is not None:
        manifest(line, job, instances).encode()


@contextmanager
def repeatable(number):
    """Tells which example it was that failed."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"POPDIST_FUZZ={number} POPDIST_EXAMPLES=1 repeats this example")
        raise


@pytest.fixture
def nothing_is_started(monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise AssertionError("a plan has started a process")

    for name in ("system", "popen", "fork", "posix_spawn", "posix_spawnp", "execv", "execve",
                 "execvp", "execvpe"):  # fmt: skip
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    # Ports are looked for by binding them, which is true, and slow.
    monkeypatch.setattr(meeting, "find_ports", lambda _: 20000)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_any_input_is_planned_or_refused(nothing_is_started):
    folder = nothing_is_started
    config, hosts = folder / "c", folder / "h"
    seen = {"planned": 0, "refused": 0}
    codes = set()

    def one(dice):
        words, environ = dice.words(), dice.environ()
        if dice.below(4) == 1:
            config.write_text(dice.toml(), errors="surrogateescape")
            words.insert(0, f"--config={config}")
        if dice.below(6) == 1:
            hosts.write_text("\n".join(dice.text() for _ in range(3)), errors="surrogateescape")
            words.insert(0, f"--hostfile={hosts}")
        try:
            plan(words, environ, (OPEN_MPI_4, OPEN_MPI_5)[dice.below(2)])
            seen["planned"] += 1
        except PopdistError as error:
            seen["refused"] += 1
            codes.add(error.code)

    for number in range(FIRST, FIRST + EXAMPLES):
        with repeatable(number):
            one(Dice(random.Random(number).randbytes(96)))  # noqa: S311 - no secret
    assert sorted(path.name for path in folder.iterdir()) in (["c", "h"], ["c"], ["h"], [])
    assert codes <= set(CODES), codes
    assert sum(seen.values()) == EXAMPLES
    if EXAMPLES == 1:
        return
    assert codes >= {"PD100", "PD101", "PD102", "PD103", "PD106"}
    # Neither outcome may crowd out the other.
    assert seen["planned"] > EXAMPLES // 50
    assert seen["refused"] > EXAMPLES // 50


CLOSED = """
import os, random, sys
from popdist.poprun import cli

def end_of(words, closed):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        for fd in closed:
            os.close(fd)
        for fd, name in enumerate(("stdin", "stdout", "stderr")):
            if fd in closed:
                setattr(sys, name, None)  # as Python itself has it
        try:
            code = cli.main(words)
            for fd in closed:
                os.fstat(fd)
        except BaseException:
            import traceback
            os.write(9, traceback.format_exc().encode())
            code = 99
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

dice = random.Random(1)
os.dup2(2, 9)
for case in range(int(sys.argv[1])):
    words = dice.choice(COMMANDS)
    closed = [fd for fd in range(3) if dice.random() < 0.6]
    code = end_of(words, closed)
    wanted = 2 if "--nonsense" in words else 0
    if code != wanted:
        raise SystemExit(f"{code} instead of {wanted}: {words} with {closed} closed")
"""
COMMANDS = [
    ["--help"], ["--version"], ["--completion=bash"], ["--nonsense"], ["partitions"],
    ["--dry-run=yes", "true"], ["--dry-run", "yes", "-np", "3", "-vv", "echo", "\udc80"],
    ["--emit=mpijob", "--emit-image=a/b:c", "true"], ["-np", "2", "true"],
]  # fmt: skip


def test_closed_streams_lead_to_no_traceback(tmp_path):
    program = f"COMMANDS = {COMMANDS!r}\n{CLOSED}"
    done = subprocess.run(
        [sys.executable, "-c", program, str(EXAMPLES // 60)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
        cwd=tmp_path, env={**os.environ, "POPDIST_STATE_DIR": str(tmp_path / "state")}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
