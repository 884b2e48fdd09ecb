import os

import pytest

from popdist.errors import BuildError
from popdist.horovod_build import source
from popdist.horovod_build.cache import Cache
from popdist.horovod_build.options import default_folder
from popdist.horovod_build.patches import (
    PATCHES,
    Edit,
    Patch,
    Target,
    VersionRange,
    digest,
    read,
    select,
)

DEFAULT = Target("3.11.7", torch="2.13.0+cpu", tensorflow="2.15.1", nccl=False, open_mpi="4.1.8")
TARGETS = {
    "default": DEFAULT,
    "older PyTorch": Target("3.11.7", "2.4.1", None, nccl=False, open_mpi="4.1.8"),
    "PyTorch before C++17": Target("3.10.1", "2.0.1", None, nccl=False, open_mpi="4.1.8"),
    "latest": Target("3.12.1", "2.13.0", "2.21.0", nccl=False, open_mpi="5.0.11"),
    "TensorFlow alone": Target("3.12.1", None, "2.21.0", nccl=False, open_mpi="5.0.11"),
    "NCCL": Target("3.11.7", "2.13.0", None, nccl=True, open_mpi="4.1.8"),
    "another MPI": Target("3.12.1", "2.13.0", "2.21.0", nccl=False, open_mpi=None),
}


def names(target):
    return {patch.name for patch in select(target)}


def test_names_are_unique_and_reasons_are_sentences():
    assert len({patch.name for patch in PATCHES}) == len(PATCHES)
    assert len(PATCHES) == 19
    assert all(patch.why.endswith(".") for patch in PATCHES)


def test_patches_follow_the_versions():
    assert "torch-cxx20" in names(DEFAULT)
    assert "torch-cxx17" not in names(DEFAULT)
    assert "torch-cxx17" in names(TARGETS["older PyTorch"])
    assert not {"torch-cxx17", "torch-cxx20"} & names(TARGETS["PyTorch before C++17"])
    assert "no-distutils-in-cmake" not in names(DEFAULT)
    assert {"no-distutils-in-cmake", "no-distutils-in-horovodrun"} <= names(TARGETS["latest"])
    assert "no-distutils-in-cmake" not in names(TARGETS["TensorFlow alone"])
    assert "two-dashes-in-horovodrun" not in names(DEFAULT) | names(TARGETS["another MPI"])
    assert "two-dashes-in-horovodrun" in names(TARGETS["latest"])


def test_host_builds_and_gpu_builds_are_patched_differently():
    assert {"host-only", "no-xla-source"} <= names(DEFAULT)
    assert "no-xla-source" not in names(TARGETS["older PyTorch"])
    assert "cuda-cxx17" in names(TARGETS["NCCL"])
    assert not {"host-only", "no-xla-source"} & names(TARGETS["NCCL"])


def test_the_condition_reads_as_words():
    by_name = {patch.name: patch.condition for patch in PATCHES}
    assert by_name["torch-cxx17"] == "PyTorch >= 2.1, < 2.13"
    assert by_name["rpath"] == "every build"
    assert by_name["no-xla-source"] == "TensorFlow any version; without NCCL"


def test_a_patch_file_is_read_as_it_is_written():
    text = (
        "Why: It is new,\n  and long.\nPyTorch: >= 2.1, < 2.13\nPython: any version\n"
        "NCCL: without\nUpstream: https://example.org/1\n\n"
        "--- a/one.txt\n+++ b/one.txt\n@@ -1,2 +1,2 @@\n kept\n-old\n+new\n"
        "@@ -9 +9,2 @@ heading\n last\n+more\n"
        "--- a/in/two.txt\n+++ b/in/two.txt\n@@ -3 +2,0 @@\n-gone\n"
    )
    found = read(text, "name")
    assert found == Patch(
        "name",
        "It is new, and long.",
        (
            Edit("one.txt", "kept\nold\n", "kept\nnew\n"),
            Edit("one.txt", "last\n", "last\nmore\n"),
            Edit("in/two.txt", "gone\n", ""),
        ),
        torch=VersionRange("2.1", "2.13"),
        nccl=False,
        upstream="https://example.org/1",
    )
    assert found.condition == "PyTorch >= 2.1, < 2.13; without NCCL"


def test_the_digest_follows_what_changes_and_not_what_is_said():
    edit = Edit("a", "b", "c")
    assert digest((Patch("x", "One.", (edit,)),)) == digest((Patch("y", "Two.", (edit,)),))
    assert digest((Patch("x", "One.", (edit,)),)) != digest(
        (Patch("x", "One.", (Edit("a", "b", "d"),)),)
    )
    assert len({digest(select(target)) for target in TARGETS.values()}) == len(TARGETS)


@pytest.fixture(scope="session")
def archive():
    return source.fetch(Cache(default_folder(os.environ)))


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
def test_every_selection_applies_to_the_published_source(archive, target, tmp_path):
    root = source.unpack(archive, tmp_path)
    patches = select(target)
    edits = [edit for patch in patches for edit in patch.edits]
    before = {edit.path: (root / edit.path).read_text() for edit in edits}
    source.apply(patches, root)
    for path, text in before.items():
        assert (root / path).read_text() != text
    for edit in edits:
        assert edit.new in (root / edit.path).read_text()


def test_a_source_that_is_already_patched_is_refused(archive, tmp_path):
    root = source.unpack(archive, tmp_path)
    source.apply(select(DEFAULT), root)
    with pytest.raises(BuildError, match="does not fit this source") as raised:
        source.apply(select(DEFAULT), root)
    assert raised.value.code == "PD201"
