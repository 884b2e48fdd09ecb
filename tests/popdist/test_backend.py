"""Host communication in a job of one instance; `tests/distributed` has the real ones."""

import sys

import pytest

import popdist
from popdist.errors import ArgumentError, BackendError


@pytest.fixture(autouse=True)
def _fresh_backend():
    popdist.finalizeBackend()
    yield
    popdist.finalizeBackend()


def test_a_single_instance_needs_no_horovod():
    before = "horovod" in sys.modules
    assert popdist.isBackendInitialized() is False
    popdist.init()
    popdist.init()
    assert popdist.isBackendInitialized() is True
    popdist.synchronize()
    assert ("horovod" in sys.modules) is before


def test_finalize_allows_another_start():
    popdist.initializeBackend()
    popdist.finalizeBackend()
    assert popdist.isBackendInitialized() is False
    popdist.init()
    assert popdist.isBackendInitialized() is True


def test_using_it_before_init_says_what_to_call():
    for call in (popdist.synchronize, lambda: popdist.execute_on_instances({0}, print)):
        with pytest.raises(BackendError, match=r"popdist.init\(\)"):
            call()


def test_execute_on_instances_passes_arguments_and_result():
    popdist.init()
    assert popdist.execute_on_instances({0}, lambda a, b: a - b, 5, b=2) == 3


@pytest.mark.parametrize("instances", [set(), {1}, {-1}, {0, 1}])
def test_execute_on_instances_refuses_instances_that_do_not_exist(instances):
    popdist.init()
    with pytest.raises(ArgumentError, match="indices from 0 to 0"):
        popdist.execute_on_instances(instances, print)
