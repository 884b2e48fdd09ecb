"""Tests of what only a GPU shows; elsewhere they are skipped."""

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def gpus():
    """The GPUs of this machine; this process must not start CUDA, as its forks could not use it."""
    return sorted(Path("/proc/driver/nvidia/gpus").glob("*"))


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents and not gpus():
            item.add_marker(pytest.mark.skip(reason="this machine has no NVIDIA GPU"))


@pytest.fixture(scope="module", autouse=True)
def _visible():
    """Undoes what ``tests/conftest.py`` has done."""
    visible = os.environ.get("POPDIST_TESTS_VISIBLE")
    with pytest.MonkeyPatch.context() as patch:
        if visible == "all":
            patch.delenv("CUDA_VISIBLE_DEVICES")
        elif visible is not None:
            patch.setenv("CUDA_VISIBLE_DEVICES", visible)
        yield
