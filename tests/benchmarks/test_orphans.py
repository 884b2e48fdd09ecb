import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.orphans import adopted

BUSY = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
LEAVE = (
    "import subprocess, sys; quiet = subprocess.DEVNULL; "
    f"print(subprocess.Popen([sys.executable, '-c', {BUSY!r}], stdout=quiet).pid)"
)


def leave_an_orphan():
    done = subprocess.run([sys.executable, "-c", LEAVE], check=True, capture_output=True)
    return int(done.stdout)


def childrens_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[1])


def test_an_orphans_time_is_ours():
    before = childrens_seconds()
    with adopted():
        pid = leave_an_orphan()
        assert parent(pid) == os.getpid()
    assert childrens_seconds() - before >= 0.25
    assert not Path(f"/proc/{pid}").exists()


def test_orphans_after_the_block_are_not_ours():
    with adopted():
        pass
    pid = leave_an_orphan()
    time.sleep(0.05)
    assert parent(pid) != os.getpid()
