"""The order of the doctor's checks, and the command line of ``poprun doctor``."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from popdist.poprun.doctor import job, machine, software
from popdist.poprun.doctor.findings import as_json, line, verdict
from popdist.poprun.machines.host_list import parse_hosts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from popdist.poprun.doctor.findings import Finding


def main(arguments: Sequence[str]) -> int:
    """Runs the subcommand and returns 0 where jobs can run, 1 where a repair is needed.

    A mistake on the command line ends the program with 2.

    Raises:
        UsageError: The host list is malformed.
    """
    given = _parser().parse_args(arguments)
    hosts = [host.name for host in parse_hosts(given.host)] if given.host else []
    findings: list[Finding] = []
    for finding in look(hosts, os.environ, runs_jobs=given.job):
        findings.append(finding)
        if not given.json:
            _say(line(finding))
    _say(as_json(findings) if given.json else f"\n{verdict(findings)}")
    return int(any(one.status == "problem" for one in findings))


def look(hosts: Sequence[str], environ: Mapping[str, str], *, runs_jobs: bool) -> Iterator[Finding]:
    """Runs all checks, the quick checks first; ``runs_jobs`` adds real jobs."""
    yield from software.look_at_versions()
    mpirun, finding = software.look_at_mpirun(environ)
    yield finding
    found = dict(software.look_at_bindings(mpirun, environ))
    yield from found.values()
    yield from machine.look_at_shared_memory(mpirun, environ)
    yield machine.look_at_processors()
    yield machine.look_at_devices()
    yield machine.look_at_memory()
    yield machine.look_at_limits()
    yield from machine.look_at_slurm(environ)
    yield from machine.look_at_ssh(hosts, mpirun, environ)
    yield job.look_at_settings(environ)
    if mpirun is None or not runs_jobs:
        return
    measures = True
    for framework, linked in found.items():
        if linked.status == "ok":
            for finding in job.try_binding(framework, mpirun, environ, measures=measures):
                yield finding
                measures = measures and finding.status != "ok"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="poprun doctor",
        description="Looks at everything a job needs on this machine, and says what to repair. "
        "A program of this name is started with: poprun -- doctor",
    )
    parser.add_argument("--json", action="store_true", help="the findings as a JSON object")
    parser.add_argument("--host", metavar="HOSTS", help="look at these hosts too, over ssh")
    parser.add_argument(
        "--no-job",
        dest="job",
        action="store_false",
        help="start no job of two ranks, which takes most of the time",
    )
    return parser


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
