import os
import sys

import pytest

from popdist.errors import BuildError
from popdist.horovod_build import compilation


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder of installed distributions that holds nothing else."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def put(packages, version):
    folder = packages / f"horovod-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: horovod\nVersion: {version}\n")
    (folder / "RECORD").write_text("")
    return folder


@pytest.mark.usefixtures("packages")
def test_nothing_installed():
    assert compilation.installed() is None
    assert compilation.identity() == ""


def test_the_local_part_of_the_version_tells_the_build(packages):
    put(packages, "0.28.1+popdist.0123")
    assert compilation.installed() == "0.28.1+popdist.0123"


def test_the_identity_changes_with_a_reinstallation(packages):
    folder = put(packages, "0.28.1+popdist.0123")
    first = compilation.identity()
    assert str(packages) in first
    assert compilation.identity() == first
    os.utime(folder / "RECORD", (1, 1))
    assert compilation.identity() != first


def test_what_pip_refuses_is_shown(tmp_path):
    wheel = tmp_path / "horovod-0.28.1-py3-none-any.whl"
    wheel.write_text("not a zip file")
    with pytest.raises(BuildError) as raised:
        compilation.install(wheel)
    assert raised.value.code == "PD205"
    assert str(wheel) in raised.value.hint
