"""Fuzzed command lines that are run for real: ``python -m tests.distributed.fuzz``.

Each line is drawn by the grammar of `tests.popdist.poprun.test_fuzz` from its number, and run by
poprun's own `main` in a process of its own: refused, answered, or started as a job of up to four
instances on this machine, whose program ends with a drawn exit code. Lines that would go to other
hosts, or start very many instances, are planned only. ``--record`` writes the counts to `RECORD`,
from which ``docs/generate.py`` makes a sentence of the page about how a job ends.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from popdist.errors import PopdistError
from popdist.poprun.cli import main as poprun
from popdist.poprun.options.help import answer
from popdist.poprun.options.parser import parse
from popdist.poprun.plan.job import make_job
from popdist.poprun.plan.placement import place
from tests.popdist.poprun.test_fuzz import Dice

RECORD = Path(__file__).with_name("fuzz.json")
CODES = (0, 0, 0, 1, 3, 42, 255)
"""Exit codes of programs; 2, 126 and 127 are poprun's and the shell's own."""
ELSEWHERE = ("nnodes", "distribute-ssh-key", "synchronise-python-venv", "synchronise-poplar-sdk")
"""Options of several hosts."""
LONGER = ("max-restarts", "compare-alone", "timeout", "vipu-server-timeout", "min-instances")
"""Options by which a job may rightly take long, or end with another code than its program's."""
RAW = ("mpi-global-args", "mpi-local-args", "instance-mpi-local-args")
"""Options whose words mpirun takes, and may refuse."""
_INSTANCES = 4
_SHORT = 4
_SECONDS = 60


class Line:
    """A command line, and what should become of it.

    Attributes:
        words: Its words.
        environ: Its environment.
        fate: "refused", "answered", "started", or "planned" where nothing is run.
        codes: The exit codes that are right; None for any other than a crash.
    """

    def __init__(self, number):
        dice = Dice(random.Random(number).randbytes(96))  # noqa: S311 - no secret
        words = dice.words()
        words = words[: words.index("true")] if "true" in words else words
        if number % _SHORT == 0:  # else most lines are refused
            words = words[: dice.below(3)]
        code = dice.one_of(CODES)
        rest = [dice.text().replace("\0", "") for _ in range(dice.below(3))]
        self.words = [*words, "/bin/sh", "-c", f"exit {code}", "sh", *rest]
        self.environ = {**dice.environ(), "PATH": os.environ["PATH"]}
        self.fate, self.codes = self._expect(code)

    def _expect(self, code):
        try:
            line = parse(self.words, self.environ)
            if answer(line) is not None:
                return "answered", {0}
            job = make_job(line, self.environ)
            place(job)
        except PopdistError:
            return "refused", {2}
        if line.values["emit"] is not None or line.values["export-config"] is not None:
            return "planned", set()
        if not job.is_local or job.num_instances > _INSTANCES or job.given & {*ELSEWHERE, *LONGER}:
            return "planned", set()
        if job.dry_run:
            return "answered", {0, 2}
        runs_it = job.program[:3] == ("/bin/sh", "-c", f"exit {code}")
        return "started", {code} if runs_it and not job.given & {*RAW} else None


def run(line, folder):
    """What is wrong with poprun's answer to a line, empty where nothing is; whether it refused."""
    said = folder / "said"
    pid = os.fork()
    if pid == 0:
        _become(line, folder, said)
    ended = _wait(pid)
    output = said.read_bytes().decode(errors="replace")
    if ended is None:
        return f"no end within {_SECONDS} s\n{output}", False
    problems = []
    if "Traceback (most recent call last)" in output:
        problems.append("a traceback")
    refused = ended == 2 and "[PD" in output
    starts = line.fate == "started"  # what only a start finds out, such as a place for results
    if line.codes is None:
        problems += [] if 0 <= ended <= 255 else [f"code {ended}"]
    elif ended not in line.codes and not (starts and refused):
        problems.append(f"code {ended} instead of {sorted(line.codes)}")
    if left := [path.name for path in (folder / "tmp").iterdir()]:
        problems.append(f"left: {left}")
    return (f"{', '.join(problems)}\n{output}" if problems else "", refused)


def _become(line, folder, said):
    """Runs poprun in this process, a child."""
    code = 99
    try:
        os.setsid()
        os.chdir(folder / "a" / "b" / "c")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        fd = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        # pytest has others, which write elsewhere.
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        os.environ.clear()
        os.environ.update(
            line.environ, TMPDIR=str(folder / "tmp"), POPDIST_STATE_DIR=str(folder / "state")
        )
        sys.argv = ["poprun"]
        code = poprun(line.words)
    except BaseException:  # noqa: BLE001 - a finding
        import traceback

        os.write(2, traceback.format_exc().encode())
    finally:
        sys.stdout.flush()
        os._exit(code)


def _wait(pid):
    """The exit code of a child, negative for a signal; None where it had to be killed."""
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def session(lines, jobs, *, first=0, every=1, report=print):
    """Runs command lines.

    Args:
        lines: The number of lines that are drawn.
        jobs: The number of them that start a job; further ones are planned only.
        first: The number of the first.
        every: Of the lines that are refused or answered, each of so many is run.
        report: Called with each problem.

    Returns:
        How many lines had each fate, how many were run, and how many of these started a job; and
        the numbers of those that ended wrong.
    """
    counts, wrong = Counter(), []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        folder = Path(place)
        for name in ("tmp", "state", "a/b/c"):
            (folder / name).mkdir(parents=True)
        before = Path.cwd()
        os.chdir(folder / "a" / "b" / "c")  # where a plan writes a result to try it
        try:
            for number in range(first, first + lines):
                line = Line(number)
                counts[line.fate] += 1
                starts = line.fate == "started"
                wanted = counts["jobs"] < jobs if starts else number % every == 0
                if line.fate == "planned" or not wanted:
                    continue
                problem, refused = run(line, folder)
                counts["run"] += 1
                counts["jobs"] += starts and not refused
                if problem:
                    wrong.append(number)
                    report(f"line {number}: {line.words} {line.environ}\n{problem}")
        finally:
            os.chdir(before)
    return dict(counts), wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--jobs", type=int, default=2_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--record", action="store_true")
    chosen = parser.parse_args()
    counts, wrong = session(chosen.lines, chosen.jobs, first=chosen.first)
    result = {"lines": chosen.lines, **counts, "wrong": wrong}
    sys.stdout.write(f"{json.dumps(result)}\n")
    if chosen.record:
        RECORD.write_text(json.dumps(result, indent=1) + "\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
