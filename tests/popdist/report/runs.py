"""Run folders as poprun and instances leave them, without a run."""

import json
import math


def job(count=2, **changes):
    """A result of a job that ended well."""
    made = {
        "version": 1, "poprun": "0.1.0", "success": True, "exit_code": 0,
        "started": "2026-01-02T03:04:05.000Z", "seconds": 65.0, "restarts": 0, "logs": None,
        "timeline": None,
        "job": {"program": ["python", "train.py", "<b>"], "num_replicas": 2 * count},
        "hosts": [{"name": "node1", "instances": list(range(count))}],
        "instances": [
            {"index": i, "host": "node1", "replicas": 2, "replica_offset": 2 * i, "pid": 100 + i,
             "seconds": 60.0, "exit_code": 0, "signal": None, "peak_memory_bytes": 2**30 + i}
            for i in range(count)
        ],
        "attempts": [{"exit_code": 0, "seconds": 65.0, "error": None}],
        "error": None,
    }  # fmt: skip
    return {**made, **changes}


def metrics(index, steps=20, *, slow=1.0, bad_at=None):
    """Lines of an instance: a loss that falls, and rounds of 30 ms, 10 of them waiting."""
    lines = []
    for step in range(steps):
        common = {"time": 1e9 + step, "count": 1, "memory": 2**28}
        loss = math.nan if step == bad_at else 2.0 / (step + 1)
        work = {"kind": "exchange", "seconds": 0.02 * slow + 0.01, "waited": 0.01}
        lines.append({**common, **work})
        lines.append(
            {**common, "kind": "step", "seconds": 0.5, "loss": loss, "samples": 32 + index}
        )
    return lines


def write(folder, *, result=None, noted=None, errors=None):
    """Writes a run folder.

    Args:
        folder: Where; it is made.
        result: The content of job.json, or None for none.
        noted: Lines of metrics by instance.
        errors: Standard error by instance.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if result is not None:
        (folder / "job.json").write_text(json.dumps(result))
    for index, lines in (noted or {}).items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"metrics.{index}.jsonl").write_text(text)
    for index, text in (errors or {}).items():
        (folder / f"instance.{index}.err").write_text(text)
        (folder / f"instance.{index}.out").write_text("")
    return folder
