"""A job as a Kubeflow MPIJob: the same poprun command, with pods as hosts. Pure.

The operator starts a worker pod with an ssh server for each host, and lists the pods in a host file
that Open MPI's settings name. In the launcher pod, poprun reads its hosts from that file
(`popdist.poprun.plan.job`).

Fields: https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/mpi/ (v2beta1).
"""

from __future__ import annotations

import json
import re
import sys

from popdist.errors import UsageError
from popdist.poprun.options.serialize import respell
from popdist.poprun.secrets import HIDDEN, hide_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from popdist.poprun.options.parser import CommandLine
    from popdist.poprun.plan.job import Job
    from popdist.poprun.plan.placement import Instance

# Options about this machine's hosts and settings, which do not apply to pods.
_LEFT_OUT = {"host", "hostfile", "config", "emit-image", "emit-name", "dry-run", "num-instances"}
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,51}[a-z0-9])?")


def manifest(line: CommandLine, job: Job, instances: tuple[Instance, ...]) -> str:
    """The manifest as YAML; each host of the instances becomes a worker.

    Raises:
        UsageError: The image or a usable name is missing, hosts have different numbers of
            instances, or a secret would be written.
    """
    image = line.values["emit-image"]
    if image is None:
        raise UsageError(
            "PD108",
            "--emit needs the container image that the pods run",
            hint="--emit-image registry.example/team/image:tag, with popdist and sshd in it",
        )
    counts: dict[str, int] = {}
    for one in instances:
        counts[one.host.name] = counts.get(one.host.name, 0) + 1
    if len(set(counts.values())) > 1:
        raise UsageError(
            "PD108",
            "workers of an MPIJob all have the same number of slots, and these hosts have not",
            value=", ".join(f"{name}:{count}" for name, count in counts.items()),
            hint="a multiple of the number of hosts as --num-instances",
        )
    command = ["poprun", f"--num-instances={job.num_instances}", *respell(line, _LEFT_OUT)]
    # -m means this Python; the image has another Python.
    python = ["python3"] if line.program[:1] == (sys.executable,) else [*line.program[:1]]
    command += ["--", *python, *line.program[1:]]
    for word in (*command, str(image)):
        if not _is_unicode(word):
            raise UsageError("PD108", "a word that is not UTF-8 has no place in YAML", value=word)
    if HIDDEN in " ".join(hide_words(command)):
        raise UsageError(
            "PD108",
            "what looks like a secret is not written to a manifest",
            value=" ".join(hide_words(command)),
            hint="make a Kubernetes Secret, set it as a variable of the launcher's container, "
            "and forward that by name: -x NAME",
        )
    policy = {"cleanPodPolicy": "Running", "backoffLimit": 0}
    if job.limits.timeout:
        # poprun itself enforces the timeout; this deadline is for a pod that never starts.
        policy["activeDeadlineSeconds"] = round(2 * job.limits.timeout) + 600
    return "\n".join(
        _yaml(
            {
                "apiVersion": "kubeflow.org/v2beta1",
                "kind": "MPIJob",
                "metadata": {"name": _job_name(line)},
                "spec": {
                    "slotsPerWorker": next(iter(counts.values())),
                    "mpiImplementation": "OpenMPI",
                    "launcherCreationPolicy": "WaitForWorkersReady",
                    "runPolicy": policy,
                    "mpiReplicaSpecs": {
                        "Launcher": _replicas(
                            1, {"name": "launcher", "image": image, "command": command}
                        ),
                        "Worker": _replicas(len(counts), {"name": "worker", "image": image}),
                    },
                },
            },
            "",
        )
    )


def _is_unicode(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:  # bytes of the command line that are not UTF-8
        return False
    return True


def _replicas(number: int, container: dict[str, Any]) -> dict[str, Any]:
    return {
        "replicas": number,
        "restartPolicy": "Never",
        "template": {"spec": {"containers": [container]}},
    }


def _job_name(line: CommandLine) -> str:
    chosen = line.values["emit-name"]
    if chosen is None:
        scripts = [word for word in line.program if word.endswith(".py")] or [*line.program[:1]]
        stem = scripts[0].rpartition("/")[2].removesuffix(".py").lower()
        plain = re.sub(r"[^a-z0-9]+", "-", stem)[:40].strip("-")
        return f"popdist-{plain}".rstrip("-")
    if not _NAME.fullmatch(str(chosen)):
        raise UsageError(
            "PD108",
            "--emit-name cannot name a job in Kubernetes",
            value=chosen,
            accepted="at most 53 small letters, digits and '-', without '-' at either end",
        )
    return str(chosen)


def _yaml(value: dict[str, Any], indent: str) -> Iterator[str]:
    """Writes nested mappings and lists in block form, with every text in JSON quotes."""
    for key, one in value.items():
        if isinstance(one, dict):
            yield f"{indent}{key}:"
            yield from _yaml(one, f"{indent}  ")
        elif isinstance(one, list):
            yield f"{indent}{key}:"
            for item in one:
                if isinstance(item, dict):
                    first, *rest = _yaml(item, f"{indent}  ")
                    yield f"{indent}- {first.lstrip()}"
                    yield from rest
                else:
                    yield f"{indent}- {json.dumps(item)}"
        else:
            yield f"{indent}{key}: {json.dumps(one)}"
