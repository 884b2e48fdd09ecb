"""How Horovod is told to start in a process that no launcher started."""

import os
from types import SimpleNamespace

import pytest

from popdist.backend import connected_by_gloo

SETTINGS = ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS")


def during(monkeypatch, *, gloo=True, **environ):
    monkeypatch.setattr(os, "environ", dict(environ))
    with connected_by_gloo(SimpleNamespace(gloo_built=lambda: gloo)):
        inside = [os.environ.get(name) for name in SETTINGS]
    assert os.environ == environ
    return inside


def test_a_process_that_nobody_launched_needs_no_mpi(monkeypatch):
    assert during(monkeypatch) == ["gloo", "gloo"]


@pytest.mark.parametrize(
    "environ",
    [
        {"OMPI_COMM_WORLD_SIZE": "2"},
        {"HOROVOD_RANK": "1"},
        {"PMIX_RANK": "0"},
        {"HOROVOD_CONTROLLER": "mpi"},
    ],
)
def test_launchers_and_users_are_not_overruled(monkeypatch, environ):
    assert during(monkeypatch, **environ) == [environ.get(name) for name in SETTINGS]


def test_a_horovod_without_gloo_starts_as_before(monkeypatch):
    assert during(monkeypatch, gloo=False) == [None, None]
