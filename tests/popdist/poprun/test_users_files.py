"""Nothing of a user's is removed or overwritten by a launch, whatever its name and place are."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from popdist.poprun.output.run_folder import make_run_folder
from popdist.poprun.protocol.own_folder import has_our_form, mark, new_name, open_own, remove_own
from popdist.poprun.supervisor.job_folder import JobFolder, Parts
from popdist.whole_files import write_whole

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user")


def launch(parent):
    """What each launch does to the folder for temporary files."""
    JobFolder(str(parent), is_local=True, has_one_guard=False).remove()


def listing(folder):
    """All paths below a folder, with the content of files and the targets of links."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = stat.S_IFMT(path.lstat().st_mode)
        content = (
            str(path.readlink()) if path.is_symlink() else path.is_file() and path.read_bytes()
        )
        found[str(path.relative_to(folder))] = kind, content
    return found


def killed_launcher(parent):
    """The folder that a killed launcher leaves behind."""
    start = (
        "import os, sys; from popdist.poprun.supervisor.job_folder import JobFolder;"
        "folder = JobFolder(sys.argv[1], is_local=True, has_one_guard=True);"
        "os.makedirs(folder.session + '/pid.1/0'); open(folder.session + '/pid.1/0/x', 'w');"
        "os.open_fronts = folder.open_fronts(2); print(folder.path, flush=True); os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", start, parent], capture_output=True, text=True, check=True
    )
    return Path(done.stdout.strip())


@pytest.mark.parametrize(
    "name",
    [
        "poprun-results",
        "poprun-logs",
        "poprun-",
        "poprun-0123456789abcde",
        "poprun-0123456789abcdef0",
        "poprun-0123456789ABCDEF",
        "poprun-0123456789abcdef",  # the exact form, which alone does not make it poprun's
        "poprun-0123456789abcdef.bak",
        "x-poprun-0123456789abcdef",
    ],
)
def test_folders_and_files_of_similar_names_stay(tmp_path, name):
    for place, content in (("as folder", "weights.pt"), ("as file", None)):
        parent = tmp_path / place
        parent.mkdir()
        if content:
            (parent / name).mkdir()
            (parent / name / content).write_text("three days of training")
        else:
            (parent / name).write_text("three days of training")
        os.utime(parent / name, (0, 0))
        before = listing(parent)
        launch(parent)
        assert listing(parent) == before


def test_links_are_not_followed(tmp_path):
    parent = tmp_path / "tmp"
    data = tmp_path / "data"
    parent.mkdir()
    data.mkdir()
    (data / "weights.pt").write_text("three days of training")
    (parent / "poprun-0123456789abcdef").symlink_to(data)
    abandoned = killed_launcher(parent)
    # Links inside of poprun's own folder go, what they lead to stays.
    (abandoned / "mpi" / "link").symlink_to(data)
    (abandoned / "timeline.0.json").symlink_to(data / "weights.pt")
    # A link of the right name to a folder that poprun has made.
    (parent / "poprun-aaaaaaaaaaaaaaaa").symlink_to(abandoned)
    before = listing(data)
    launch(parent)
    assert listing(data) == before
    assert not abandoned.exists()
    assert (parent / "poprun-0123456789abcdef").is_symlink()


def test_the_folder_of_a_killed_launcher_is_removed_at_once(tmp_path):
    abandoned = killed_launcher(tmp_path)
    assert has_our_form(abandoned.name)
    launch(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_living_launcher_stays(tmp_path):
    living = JobFolder(str(tmp_path), is_local=True, has_one_guard=True)
    before = listing(tmp_path)
    launch(tmp_path)
    assert listing(tmp_path) == before
    living.remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("how", ["renamed", "copied", "swapped", "remade"])
def test_a_folder_that_became_the_users_stays(tmp_path, how):
    abandoned = killed_launcher(tmp_path)
    if how == "renamed":
        abandoned.rename(tmp_path / "poprun-bbbbbbbbbbbbbbbb")
    elif how == "copied":
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        for path in abandoned.iterdir():
            if path.is_fifo():
                path.unlink()
        shutil.copytree(abandoned, elsewhere / abandoned.name)
        shutil.rmtree(abandoned)
        tmp_path = elsewhere
    else:
        marker = (abandoned / ".poprun").read_bytes()
        abandoned.rename(tmp_path / "aside")  # so that its inode is not used again
        abandoned.mkdir()
        if how == "swapped":
            (abandoned / ".poprun").write_bytes(marker)
    before = listing(tmp_path)
    launch(tmp_path)
    remove_own(str(abandoned))
    assert listing(tmp_path) == before


def test_a_living_job_does_not_remove_what_took_its_place(tmp_path):
    folder = JobFolder(str(tmp_path), is_local=True, has_one_guard=True)
    Path(folder.path).rename(tmp_path / "aside")
    Path(folder.path).mkdir()
    before = listing(tmp_path)
    folder.remove()
    assert listing(tmp_path) == before


@needs_root
def test_another_users_folder_stays(tmp_path):
    name = new_name()
    theirs = tmp_path / name
    theirs.mkdir()
    fd = os.open(theirs, os.O_RDONLY)
    mark(fd, name)
    os.close(fd)
    assert open_own(str(theirs)) is not None
    os.chown(theirs, 65534, 65534)
    before = listing(tmp_path)
    launch(tmp_path)
    assert listing(tmp_path) == before


@needs_root
def test_another_file_system_in_a_folder_of_a_job_keeps_its_files(tmp_path):
    script = """
        set -e
        folder=$("$1" -c 'import sys; from popdist.poprun.supervisor.job_folder import JobFolder
import os; f = JobFolder(sys.argv[1], is_local=True, has_one_guard=True); os.mkdir(f.session)
print(f.path); sys.stdout.flush(); os._exit(0)' "$2")
        mount -t tmpfs none "$folder/mpi"
        echo precious > "$folder/mpi/weights.pt"
        "$1" -c 'import sys; from popdist.poprun.protocol.own_folder import remove_own
remove_own(sys.argv[1])' "$folder"
        cat "$folder/mpi/weights.pt"
    """
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, tmp_path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "unshare failed" in done.stderr or "mount:" in done.stderr:
        pytest.skip("no mounts here")
    assert (done.stdout, done.stderr) == ("precious\n", "")


def test_parts_of_a_timeline_get_a_folder_of_their_own(tmp_path):
    users = tmp_path / "t.json.parts"
    users.mkdir()
    (users / "mine").write_text("precious")
    parts = Parts(str(users))
    Path(parts.path, "timeline.0.json").write_text("[]")
    parts.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["t.json.parts"]
    assert (users / "mine").read_text() == "precious"


def test_the_latest_link_of_a_program_stays(tmp_path):
    best = tmp_path / "checkpoint-500"
    best.mkdir()
    (tmp_path / "latest").symlink_to("checkpoint-500")
    first = make_run_folder(str(tmp_path), "train.py")
    assert str((tmp_path / "latest").readlink()) == "checkpoint-500"
    (tmp_path / "latest").unlink()
    make_run_folder(str(tmp_path), "train.py")
    second = make_run_folder(str(tmp_path), "train.py")
    assert first != second
    assert str((tmp_path / "latest").readlink()) == Path(second).name


def test_a_result_goes_where_a_link_of_the_user_leads(tmp_path):
    (tmp_path / "there.json").write_text("old")
    (tmp_path / "here.json").symlink_to("there.json")
    write_whole(str(tmp_path / "here.json"), "new")
    assert (tmp_path / "here.json").is_symlink()
    assert (tmp_path / "there.json").read_text() == "new"
    assert len(list(tmp_path.iterdir())) == 2


@needs_root
def test_a_result_does_not_follow_another_users_link(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "r.json").symlink_to("victim")
    os.chown(tmp_path / "r.json", 65534, 65534, follow_symlinks=False)
    write_whole(str(tmp_path / "r.json"), "new")
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "r.json").is_symlink()
    assert (tmp_path / "r.json").read_text() == "new"


def test_a_result_for_a_device_or_a_pipe_does_not_replace_it(tmp_path):
    write_whole("/dev/null", "new")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(str(tmp_path / "pipe"), "new")
    assert os.read(reader, 99) == b"new"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
