"""What is kept and shown of real jobs: results, logs, timelines, colours and the status line."""

import json
import os
import pty
import re
import sys

import pytest

from popdist.poprun.output.result_json import FIELDS
from tests.distributed.jobs import LAUNCHER, run_command
from tests.distributed.warm import python

PYTHON = [sys.executable, "-c"]
KINDS = {
    "number": (int, float),
    "text": str,
    "boolean": bool,
    "list": list,
    "text or null": (str, type(None)),
    "number or null": (int, float, type(None)),
}


def poprun(*words, **more):
    return run_command([*LAUNCHER, *words], **more)


def leaves(value, path=""):
    """Every field of a result with its value; lists of records are looked into."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from leaves(part, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for part in value:
            yield from leaves(part, f"{path}[]")
    else:
        yield path, value


def check_form(result):
    """Every field is declared and of its kind, and every declared one is there."""
    declared = {field.path: KINDS[field.kind] for field in FIELDS}
    found = dict(leaves(result))
    if result["error"] is None:
        assert found.pop("error") is None
        declared = {path: kind for path, kind in declared.items() if not path.startswith("error.")}
    assert found.keys() == declared.keys()
    for path, value in leaves(result):
        if path != "error":
            assert isinstance(value, declared[path]), (path, value)
            assert isinstance(value, bool) == (declared[path] is bool), path


def test_the_result_of_a_good_job(tmp_path):
    path = tmp_path / "result.json"
    code = "kept = bytearray(b'x' * (100 << 20))"
    status, output = poprun("-np", "2", "--num-replicas=4", f"--json={path}", *PYTHON, code)
    assert (status, output) == (0, "")
    result = json.loads(path.read_text())
    check_form(result)
    assert result["success"] is True
    assert result["job"]["num_replicas"] == 4
    assert [one["replica_offset"] for one in result["instances"]] == [0, 2]
    assert all(one["exit_code"] == 0 and one["signal"] is None for one in result["instances"])
    assert all(100 << 20 < one["peak_memory_bytes"] < 400 << 20 for one in result["instances"])
    assert result["hosts"] == [{"name": "localhost", "instances": [0, 1]}]
    assert list(tmp_path.iterdir()) == [path]


def test_the_result_and_the_logs_of_a_job_that_was_started_again(tmp_path):
    path, logs = tmp_path / "result.json", tmp_path / "logs"
    code = (
        "import os, signal, sys, popdist\n"
        "print('count', popdist.topology().restart_count)\n"
        "print('trouble', file=sys.stderr)\n"
        "if popdist.getInstanceIndex(): os.kill(os.getpid(), signal.SIGSEGV)"
    )
    status, output = poprun(
        "-np", "2", f"--json={path}", f"--log-dir={logs}", "--max-restarts=1",
        *PYTHON, code, "--api-key=hunter2",
    )  # fmt: skip
    assert status == 139
    result = json.loads(path.read_text())
    check_form(result)
    assert result["restarts"] == 1
    assert [one["exit_code"] for one in result["attempts"]] == [139, 139]
    assert result["error"]["kind"] == "instance"
    assert result["error"]["instances"] == [1]
    assert result["error"]["details"] == ["trouble"]
    assert result["instances"][1]["signal"] == "SIGSEGV"
    assert result["instances"][1]["exit_code"] is None
    assert "hunter2" not in path.read_text()
    folder = logs / "latest"
    assert folder.is_symlink()
    assert str(folder.resolve()) == result["logs"]
    assert re.fullmatch(r"\d{8}-\d{6}-python.*", folder.resolve().name)
    assert json.loads((folder / "job.json").read_text()) == result
    for place, count in ((folder, 0), (folder / "restart.1", 1)):
        for index in (0, 1):
            assert (place / f"instance.{index}.out").read_text() == f"count {count}\n"
            assert (place / f"instance.{index}.err").read_text() == "trouble\n"
    assert f"its log: {result['logs']}/restart.1/instance.1.err" in output


@pytest.mark.parametrize("option", ["--json", "--timeline", "--log-dir"])
def test_a_place_that_cannot_be_written_is_found_out_before_the_job(tmp_path, option):
    (tmp_path / "file").touch()
    status, output = poprun(f"{option}={tmp_path}/file/x", "echo", "started")
    assert status == 2
    assert "[PD110]" in output
    assert option in output
    assert "started" not in output.splitlines()


def test_the_timelines_become_one_trace_with_a_process_for_each_instance(tmp_path):
    path = tmp_path / "trace.json"
    code = (
        "import time, torch, horovod.torch as hvd\nhvd.init()\n"
        "for step in range(5):\n"
        "    if hvd.rank() == 0: time.sleep(0.05)\n"
        "    hvd.allreduce(torch.ones(10), name='gradient')"
    )
    status, output = poprun("-np", "2", f"--timeline={path}", *python("torch"), "-c", code)
    assert status == 0, output
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    assert names == {0: "instance 0 on localhost", 1: "instance 1 on localhost"}
    assert {e["pid"] for e in events if e.get("name") == "program"} == {0, 1}
    # Horovod may end before it has written its last records, two of them on a busy machine.
    assert sum(e.get("name") == "MPI_ALLREDUCE" for e in events) in range(1, 6)
    # Rank 0 comes late to each exchange, so the other one waits for it; on a busy machine that one
    # may be late itself now and then.
    waits = [e for e in events if e.get("name", "").endswith("others") and e["pid"] == 1]
    assert len(waits) in {4, 5}
    assert max(wait["dur"] for wait in waits) > 20_000
    moments = [e["ts"] for e in events if "ts" in e]
    assert max(moments) - min(moments) < 300e6  # all on one clock
    assert list(tmp_path.iterdir()) == [path]


def test_a_timeline_survives_a_killed_job(tmp_path):
    path = tmp_path / "trace.json"
    code = (
        "import os, signal, torch, horovod.torch as hvd\nhvd.init()\n"
        "for step in range(1000):\n"
        "    hvd.allreduce(torch.ones(10), name='gradient')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    status, output = poprun(f"--timeline={path}", *python("torch"), "-c", code)
    assert status == 137
    events = json.loads(path.read_text())["traceEvents"]
    assert any(e.get("name") == "ALLREDUCE" for e in events), output


def on_a_terminal(*words, environ=None):
    """What poprun writes to a terminal."""
    shown = []
    pid, fd = pty.fork()
    if pid == 0:
        environment = {**os.environ, "TERM": "xterm", **(environ or {})}
        os.execve(LAUNCHER[0], [*LAUNCHER, *words], environment)  # noqa: S606 - after a fork
    while True:
        try:
            data = os.read(fd, 1 << 16)
        except OSError:
            break
        if not data:
            break
        shown.append(data)
    os.waitpid(pid, 0)
    os.close(fd)
    return b"".join(shown).decode()


def test_tags_are_coloured_by_instance_on_a_terminal():
    shown = on_a_terminal("-np", "2", "--tag-output=yes", "echo", "hello")
    assert sorted(re.findall(r"\x1b\[(\d+)m\[1,(\d)\]<stdout>:\x1b\[0mhello", shown)) == [
        ("33", "1"),
        ("36", "0"),
    ]


@pytest.mark.parametrize(
    ("words", "environ"), [((), {"NO_COLOR": "1"}), (("--color=never",), {})], ids=["env", "option"]
)
def test_nobody_is_forced_to_see_colours(words, environ):
    shown = on_a_terminal(*words, "--tag-output=yes", "false", environ=environ)
    assert "\x1b[3" not in shown
    assert "ended with exit code 1" in shown


def test_colours_can_be_had_without_a_terminal():
    assert poprun("--color=always", "--tag-output=yes", "echo", "x") == (
        0,
        "\x1b[36m[1,0]<stdout>:\x1b[0mx\n",
    )


def test_the_status_line_stands_alone_and_goes():
    code = "import time\nprint('before', flush=True)\ntime.sleep(2.5)\nprint('after')"
    shown = on_a_terminal("-np", "2", *PYTHON, code)
    # What a terminal shows in the end: every line from its last return to its beginning.
    lines = [line.rpartition("\r\x1b[K")[2].rstrip("\r") for line in shown.split("\n")]
    assert [line for line in lines if line] == ["before", "before", "after", "after"]
    assert "2 of 2 instances run, quiet for 0:0" in shown


def test_there_is_no_status_line_without_a_terminal():
    assert poprun(*PYTHON, "import time; time.sleep(2.5)") == (0, "")


def test_the_bars_of_one_instance_are_shown():
    code = (
        "import os, sys, time\n"
        "from tqdm import tqdm\n"
        "for _ in tqdm(range(20), desc=f'of {os.environ[\"RANK\"]}'): time.sleep(0.05)\n"
        "print('the end of', os.environ['RANK'])"
    )

    def lines(*options):
        status, output = run_command([*LAUNCHER, "-np", "2", *options, sys.executable, "-c", code])
        assert status == 0, output
        assert "the end of 0" in output
        assert "the end of 1" in output
        return output.replace("\r", "\n").splitlines()

    one = lines()
    assert len([line for line in one if "of 0:" in line]) > 5
    assert any("of 0: 100%" in line for line in one)
    assert not any("of 1: 100%" in line for line in one)
    assert any("of 1: 100%" in line for line in lines("--repeated-output=all"))
