"""The result of a job as JSON: every field is declared once, with its meaning."""

from __future__ import annotations

import json
import signal
import time

from popdist._version import __version__
from popdist.poprun.output.failure_report import headline, out_of_memory
from popdist.poprun.record import Record
from popdist.poprun.secrets import hide, hide_words
from popdist.poprun.supervisor.outcome import Progress, root_cause
from popdist.whole_files import write_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from popdist.poprun.plan.job import Job
    from popdist.poprun.plan.placement import Instance
    from popdist.poprun.supervisor.outcome import InstanceRecord, Outcome

VERSION = 1
"""The version of the form; it increases when a field changes its meaning or is removed."""


class Field(Record):
    """A field of the result.

    Attributes:
        path: The field's place, with dots between names and ``[]`` after the name of a list.
        kind: The JSON type.
        meaning: The meaning, one line.
    """

    path: str
    kind: str
    meaning: str


FIELDS: tuple[Field, ...] = (
    Field("version", "number", "version of this form"),
    Field("poprun", "text", "version of the launcher"),
    Field("success", "boolean", "whether the exit code is 0"),
    Field("exit_code", "number", "poprun's exit code"),
    Field("started", "text", "when the job was started, in UTC (ISO 8601)"),
    Field("seconds", "number", "duration of the job, with restarts"),
    Field("restarts", "number", "how often it was started again"),
    Field("logs", "text or null", "folder of --log-dir for this run"),
    Field("timeline", "text or null", "file of --timeline"),
    Field("job.program", "list", "the program with arguments; values that look secret are hidden"),
    Field("job.num_instances", "number", "instances"),
    Field("job.num_replicas", "number", "replicas"),
    Field("job.ipus_per_replica", "number", "devices per replica"),
    Field("job.mpirun", "text", "path of mpirun"),
    Field("hosts[].name", "text", "name of a host"),
    Field("hosts[].instances", "list", "indices of the instances on it"),
    Field("instances[].index", "number", "index of an instance, which is its rank"),
    Field("instances[].host", "text", "its host"),
    Field("instances[].replicas", "number", "its replicas"),
    Field("instances[].replica_offset", "number", "global index of its first replica"),
    Field("instances[].pid", "number or null", "its process; null if it did not start"),
    Field("instances[].started", "text or null", "when it started, in UTC (ISO 8601)"),
    Field("instances[].seconds", "number or null", "how long it ran; null if unknown"),
    Field("instances[].exit_code", "number or null", "its exit code; null after a signal"),
    Field("instances[].signal", "text or null", "name of the signal that ended it"),
    Field(
        "instances[].peak_memory_bytes",
        "number or null",
        "the peak memory of its process, or of the largest of its child processes",
    ),
    Field("instances[].phase", "text or null", "the last phase that it reported"),
    Field("instances[].step", "number or null", "the last step of popdist.report_progress"),
    Field("instances[].total_steps", "number or null", "the planned number of steps"),
    Field("instances[].loss", "number or null", "its last loss; null if NaN or infinite"),
    Field("instances[].samples_per_second", "number or null", "since its first step"),
    Field("attempts[].exit_code", "number", "exit code of one start of the job"),
    Field("attempts[].started", "text", "when it was started"),
    Field("attempts[].seconds", "number", "its duration"),
    Field("attempts[].error", "text or null", "the first line of its failure summary"),
    Field("error.kind", "text", "instance, interrupt, timeout, stall, host, weights or mpirun"),
    Field("error.message", "text", "the first line of the failure summary"),
    Field("error.instances", "list", "the instances that failed; for a stall the missing ones"),
    Field("error.out_of_memory", "boolean", "whether there is evidence of a lack of memory"),
    Field(
        "error.details", "list", "more lines: the end of standard error, or the waiting instances"
    ),
)
"""Every field; ``error`` as a whole is null if the job succeeded."""


def write_result(
    path: str,
    job: Job,
    instances: Sequence[Instance],
    attempts: Sequence[Outcome],
    *,
    mpirun: str,
    logs: str | None,
    timeline: str | None,
    placed: Sequence[Sequence[Instance]] = (),
) -> None:
    """Writes the result atomically; ``placed`` has the instances of each start if hosts were lost.

    Raises:
        OSError: The file cannot be written.
    """
    last = attempts[-1]
    hosts: dict[str, list[int]] = {}
    for one in instances:
        hosts.setdefault(one.host.name, []).append(one.index)
    result = {
        "version": VERSION,
        "poprun": __version__,
        "success": last.exit_code == 0,
        "exit_code": last.exit_code,
        "started": _utc(attempts[0].began_at),
        "seconds": round(last.began_at + last.seconds - attempts[0].began_at, 3),
        "restarts": len(attempts) - 1,
        "logs": logs,
        "timeline": timeline,
        "job": {
            "program": list(hide_words(job.program)),
            "num_instances": job.num_instances,
            "num_replicas": job.num_replicas,
            "ipus_per_replica": job.ipus_per_replica,
            "mpirun": mpirun,
        },
        "hosts": [{"name": name, "instances": members} for name, members in hosts.items()],
        "instances": [_instance(one, last.instances.get(one.index)) for one in instances],
        "attempts": [
            {
                "exit_code": one.exit_code,
                "started": _utc(one.began_at),
                "seconds": round(one.seconds, 3),
                "error": headline(one, there) if one.exit_code else None,
            }
            for one, there in zip(attempts, placed or [instances] * len(attempts), strict=True)
        ],
        "error": _error(last, instances) if last.exit_code else None,
    }
    write_whole(path, json.dumps(result, indent=2, ensure_ascii=False) + "\n")


def _instance(one: Instance, record: InstanceRecord | None) -> dict[str, Any]:
    ended = record is not None and record.ended
    return {
        "index": one.index,
        "host": one.host.name,
        "replicas": one.num_local_replicas,
        "replica_offset": one.fields["replica_index_offset"],
        "pid": record.pid if record else None,
        "started": _utc(record.started_at) if record and record.started_at else None,
        "seconds": record.seconds if record and ended else None,
        "exit_code": record.code if record and ended and not record.signal else None,
        "signal": _signal(record.signal) if record and record.signal else None,
        "peak_memory_bytes": record.memory if record and ended else None,
        **_progress(record.progress if record else Progress()),
    }


def _progress(progress: Progress) -> dict[str, Any]:
    return {
        "phase": progress.phase or None,
        "step": progress.step,
        "total_steps": progress.total,
        "loss": progress.loss,
        "samples_per_second": progress.samples_per_second,
    }


def _error(outcome: Outcome, instances: Sequence[Instance]) -> dict[str, Any]:
    cause = root_cause(outcome)
    kind, members, details = "mpirun", [one.index for one in outcome.running()], []
    memory = False
    if outcome.interrupted:
        kind, members = "interrupt", []
    elif outcome.ending is not None:
        kind, members = outcome.ending.kind, list(outcome.ending.instances)
        details = list(outcome.ending.lines)
    elif cause is not None:
        kind, members = "instance", [cause.index]
        memory = bool(out_of_memory(cause))
        details = [hide(line) for line in cause.tail.decode(errors="replace").splitlines()[-12:]]
    elif outcome.diverged:
        kind, details = "weights", outcome.diverged
    return {
        "kind": kind,
        "message": headline(outcome, instances),
        "instances": members,
        "out_of_memory": memory,
        "details": details,
    }


def _utc(moment: float) -> str:
    return (
        time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f".{int(moment % 1 * 1000):03d}Z"
    )


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
