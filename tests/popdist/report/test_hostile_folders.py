"""Folders that somebody else has written: one message or a page, and no script of theirs."""

import base64
import hashlib
import json
import random
import re

import pytest

from popdist.report.__main__ import main

SCRIPT = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
VALUES = (None, True, -1, 0, 1, 2**70, 1e308, float("inf"), float("nan"), "", "x" * 1000, SCRIPT,
          [], {}, [[]], {"a": 1}, "\ud800", "2026", "9" * 5000)  # fmt: skip
INSTANCE = {"index": 0, "replicas": 1, "replica_offset": 0, "host": SCRIPT, "pid": 3,
            "exit_code": 0, "signal": None, "seconds": 1.0, "peak_memory_bytes": 5}  # fmt: skip
JOB = {"job": {"num_instances": 2, "num_replicas": 2}, "hosts": [{"name": "h"}],
       "attempts": [{"exit_code": 0, "seconds": 3}], "error": None, "exit_code": 0,
       "seconds": 3.0, "timeline": None, "started": "2026-01-01T00:00:00.000Z"}  # fmt: skip
STEP = {"kind": "step", "time": 1e9, "count": 1, "seconds": 0.1, "loss": 1.0, "samples": 3,
        "waited": 0.01, "memory": 5}  # fmt: skip
EVENT = {"ph": "X", "name": "NEGOTIATE_x", "ts": 5.0, "pid": 0, "tid": 0, "dur": 1, "args": {}}


def spoiled(dice, record, share):
    return {
        key: dice.choice(VALUES) if dice.random() < share else value
        for key, value in record.items()
    }


def write_run(folder, dice):
    members = [spoiled(dice, INSTANCE, 0.2) | {"index": index} for index in range(2)]
    job = spoiled(dice, JOB | {"instances": members}, 0.15)
    deep = "[" * 100_000
    (folder / "job.json").write_text(deep if dice.random() < 0.1 else json.dumps(job))
    lines = [json.dumps(spoiled(dice, STEP, 0.1)) for _ in range(20)]
    (folder / "metrics.0.jsonl").write_text("\n".join([*lines, deep]))
    if dice.random() < 0.3:
        (folder / "metrics.1.jsonl").mkdir()
    events = [spoiled(dice, EVENT, 0.2) for _ in range(10)]
    (folder / "timeline.json").write_text(json.dumps({"traceEvents": events}))
    (folder / "instance.0.err").write_bytes(dice.randbytes(300) + SCRIPT.encode())


@pytest.mark.parametrize("seed", range(100))
def test_a_folder_gives_a_page_or_one_message(tmp_path, seed, capsys):
    write_run(tmp_path, random.Random(seed))  # noqa: S311 - the same files each time
    code = main([str(tmp_path)])
    said = capsys.readouterr().err
    assert code in (0, 2)
    assert "Traceback" not in said
    if code:
        assert said.startswith("popdist.report: [PD140] ")
        return
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'\"" in page
    assert "<img" not in page
