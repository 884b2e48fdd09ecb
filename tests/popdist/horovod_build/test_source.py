import subprocess

import pytest

from popdist.errors import BuildError
from popdist.horovod_build import source
from popdist.horovod_build.cache import Cache
from popdist.horovod_build.patches import Edit, Patch


def patch(*edits):
    return Patch("test", "A test.", edits)


def test_apply_replaces_in_the_named_file(tmp_path):
    (tmp_path / "a.txt").write_text("one two three")
    source.apply((patch(Edit("a.txt", "two", "2")),), tmp_path)
    assert (tmp_path / "a.txt").read_text() == "one 2 three"


@pytest.mark.parametrize("text", ["no match", "two two", None])
def test_a_text_that_does_not_occur_once_is_an_error(tmp_path, text):
    if text is not None:
        (tmp_path / "a.txt").write_text(text)
    with pytest.raises(BuildError, match="'test' does not fit") as raised:
        source.apply((patch(Edit("a.txt", "two", "2")),), tmp_path)
    assert raised.value.code == "PD201"


def test_another_file_under_the_right_name_is_refused(tmp_path):
    archive = tmp_path / "horovod-0.28.1.tar.gz"
    archive.write_bytes(b"something else")
    with pytest.raises(BuildError, match="not the file that was published"):
        source.verify(archive)


def test_a_file_put_there_by_hand_is_verified_too(tmp_path):
    cache = Cache(tmp_path)
    (cache.sources / "horovod-0.28.1.tar.gz").write_bytes(b"something else")
    with pytest.raises(BuildError) as raised:
        source.fetch(cache)
    assert raised.value.code == "PD201"


def test_no_network_names_the_fix_and_leaves_nothing(tmp_path, monkeypatch):
    said = "WARNING: Retrying ... NewConnectionError: Failed to establish a new connection\n"
    done = subprocess.CompletedProcess([], 1, stdout="", stderr=said)
    monkeypatch.setattr(source.subprocess, "run", lambda *_, **__: done)
    cache = Cache(tmp_path)
    with pytest.raises(BuildError, match="could not be downloaded") as raised:
        source.fetch(cache)
    assert "PIP_INDEX_URL" in raised.value.hint
    assert str(cache.sources) in raised.value.hint
    assert not list((cache.home / "scratch").iterdir())


def test_nccl_is_laid_out_for_horovod(tmp_path):
    (tmp_path / "wheel/include").mkdir(parents=True)
    (tmp_path / "wheel/lib").mkdir()
    (tmp_path / "wheel/lib/libnccl.so.2").write_text("library")
    source.link_nccl(tmp_path / "wheel", tmp_path / "links")
    assert (tmp_path / "links/lib/libnccl.so").read_text() == "library"
    assert (tmp_path / "links/include").is_dir()
