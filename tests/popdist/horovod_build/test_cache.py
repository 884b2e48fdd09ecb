import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from popdist.horovod_build.cache import Cache
from popdist.horovod_build.options import default_folder
from popdist.horovod_build.plan import make_plan
from tests.popdist.horovod_build.samples import facts, options

PLAN = make_plan(facts(), options())


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def built(cache, text="wheel"):
    folder = cache.scratch("test") / "wheel"
    folder.mkdir()
    (folder / "horovod-0.28.1-cp311.whl").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"POPDIST_CACHE_DIR": "/p", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/p"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/popdist"),
        ({"HOME": "/h"}, "/h/.cache/popdist"),
        ({"POPDIST_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/popdist"),
    ],
)
def test_the_folder_follows_the_environment(environ, folder):
    assert default_folder(environ) == Path(folder)


def test_a_stored_wheel_is_found_with_what_it_depends_on(cache):
    assert cache.wheel(PLAN) is None
    wheel = cache.store(PLAN, built(cache))
    assert cache.wheel(PLAN) == wheel
    record = json.loads((wheel.parent / "components.json").read_text())
    assert record == dict(PLAN.components)


def test_a_forced_build_takes_the_place_of_the_first(cache):
    cache.store(PLAN, built(cache, "old"))
    assert cache.store(PLAN, built(cache, "new")).read_text() == "new"
    assert not list((cache.home / "scratch").glob("replaced-*"))


def test_looking_up_makes_no_folders(cache):
    cache.wheel(PLAN)
    assert not cache.root.exists()


def test_old_logs_go(cache):
    for number in range(40):
        cache.new_log("key").with_name(f"20260101-{number:06d}-key.log").write_text("")
    (cache.home / "logs" / "0.log").write_text("a user's")
    log = cache.new_log("key")
    assert len(list(log.parent.glob("2*.log"))) == 19
    assert (log.parent / "0.log").exists()
    assert not log.exists()


def test_what_a_killed_build_left_goes_after_days(cache):
    old, fresh = cache.scratch("old"), cache.scratch("fresh")
    (old / "file").write_text("")
    os.utime(old, (1, 1))
    users = old.with_name("experiments")
    users.mkdir()
    os.utime(users, (1, 1))
    cache.scratch("new")
    assert not old.exists()
    assert users.exists()
    assert fresh.exists()


def test_marks(cache):
    assert not cache.was_checked("here")
    cache.mark_checked("here")
    assert cache.was_checked("here")
    assert not cache.was_checked("there")


HOLD = """
import sys
from pathlib import Path
from popdist.horovod_build.cache import Cache
with Cache(Path(sys.argv[1])).lock("key", lambda: print("waiting", flush=True)):
    print("held", flush=True)
    sys.stdin.readline()
"""


def hold(cache):
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(cache.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_second_process_waits_and_says_so(cache):
    with hold(cache) as first:
        assert first.stdout.readline() == "held\n"
        with hold(cache) as second:
            assert second.stdout.readline() == "waiting\n"
            first.stdin.write("\n")
            first.stdin.flush()
            assert second.stdout.readline() == "held\n"
            second.stdin.write("\n")


def test_a_killed_holder_leaves_no_lock(cache):
    with hold(cache) as first:
        assert first.stdout.readline() == "held\n"
        first.kill()
    with cache.lock("key", lambda: pytest.fail("nobody holds it")):
        pass
