"""Wheels of other machines: found by pip in a folder, and checked by auditwheel when exported."""

import json
import os
import zipfile

import pytest

from popdist.errors import BuildError
from popdist.horovod_build import session, wheels
from popdist.horovod_build.cache import Cache
from popdist.horovod_build.plan import make_plan
from tests.popdist.horovod_build.samples import facts, mpi, options

PLAN = make_plan(facts(), options())
FOR_ALL = "py3-none-any"


def write(folder, tag, plan=PLAN):
    """A wheel of nothing, with what it was built for."""
    folder.mkdir(exist_ok=True)
    path = folder / f"horovod-{plan.version}-{tag}.whl"
    info = f"horovod-{plan.version}.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        head = f"Metadata-Version: 2.1\nName: horovod\nVersion: {plan.version}\n"
        file.writestr(f"{info}/METADATA", head)
        file.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        file.writestr(f"{info}/RECORD", "")
    (folder / f"{plan.key}.json").write_text(json.dumps(dict(plan.components)))
    return path


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_wheel_of_a_folder_goes_into_the_cache(tmp_path, prefix):
    written = write(tmp_path / "wheels", FOR_ALL)
    cache = Cache(tmp_path / "cache")
    taken = wheels.take(PLAN, f"{prefix}{tmp_path / 'wheels'}", cache, os.environ)
    assert taken == cache.wheel(PLAN)
    assert taken.read_bytes() == written.read_bytes()
    assert not list((cache.home / "scratch").iterdir())


@pytest.mark.parametrize("tag", ["cp311-cp311-manylinux_2_99_x86_64", "cp37-cp37m-linux_ppc64"])
def test_a_wheel_for_another_machine_is_passed_over(tmp_path, tag):
    write(tmp_path / "wheels", tag)
    assert wheels.take(PLAN, str(tmp_path / "wheels"), Cache(tmp_path), os.environ) is None
    assert "this machine's C library" in str(wheels.nothing_found(PLAN, str(tmp_path / "wheels")))


def test_the_nearest_wheel_is_named(tmp_path):
    for version in ("4.1.9", "5.0.11"):
        other = make_plan(facts(mpi=mpi(version=version), torch=None), options())
        write(tmp_path, FOR_ALL, other)
    write(tmp_path, FOR_ALL, near := make_plan(facts(mpi=mpi(version="5.0.8")), options()))
    assert wheels.take(PLAN, str(tmp_path), Cache(tmp_path / "cache"), os.environ) is None
    said = str(wheels.nothing_found(PLAN, str(tmp_path)))
    assert "nearest one is for mpi Open MPI 5.0.8, not Open MPI 4.1.8" in said
    assert near.key != PLAN.key


def test_a_wheel_that_is_linked_to_this_machine_is_not_exported():
    linked = make_plan(facts(mpi=mpi(prefix="/opt/openmpi")), options())
    with pytest.raises(BuildError, match="/opt/openmpi/lib"):
        wheels.require_exportable(linked)


def test_auditwheel_refuses_what_is_no_wheel_of_libraries(tmp_path):
    built = write(tmp_path / "built", FOR_ALL)
    with pytest.raises(BuildError, match="PD206"):
        wheels.export(PLAN, built, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """The program up to the step that would compile or install; its code and what it said."""

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "gather", lambda *_: facts())
    monkeypatch.setattr(session.source, "fetch", stop)
    monkeypatch.setattr(session.compilation, "install", stop)
    monkeypatch.setattr(session.compilation, "installed", lambda: None)
    monkeypatch.setattr(session.openmpi_prefix, "write", lambda **_: None)

    def ran(*arguments):
        code = session.main(["--cache-dir", str(tmp_path / "cache"), *map(str, arguments)])
        return code, capsys.readouterr().err

    return ran


def test_from_installs_or_says_what_is_missing(run, tmp_path):
    code, said = run("--from", tmp_path)
    assert code == 1
    assert "[PD207]" in said
    write(tmp_path, FOR_ALL)
    code, said = run("--from", tmp_path)
    assert f"taken from {tmp_path}" in said
    assert code == 130


def test_the_variable_is_tried_before_a_build(run, tmp_path, monkeypatch):
    monkeypatch.setenv(wheels.VARIABLE, str(tmp_path))
    code, said = run()
    assert f"note: {tmp_path} has no wheel for this environment" in said
    assert code == 130  # where the source would be downloaded
    write(tmp_path, FOR_ALL)
    assert f"taken from {tmp_path}" in run()[1]
