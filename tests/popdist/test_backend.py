"""Host communication in a job of one instance; `tests/distributed` has the real ones."""

import sys
from types import SimpleNamespace

import pytest

import popdist
from popdist import backend
from popdist.backend import launch
from popdist.errors import ArgumentError, BackendError, ContractError


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


def here(**fields):
    return popdist.Topology(launched=True, **fields).to_environ()


MPIRUN = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "PMIX_RANK": "1"}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
STEP = {**BATCH, "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}
INSTANCE = {"num_total_replicas": 4, "num_local_replicas": 2, "replica_index_offset": 2}

# What each launcher sets, as its documentation says or as it was seen in its processes.
PLACES = {
    "nobody": ({}, ("", 0, 1)),
    "the shell of a batch script": (BATCH, ("", 0, 1)),
    "poprun": ({**here(**INSTANCE, num_instances=2, instance_index=1), **MPIRUN}, ("poprun", 1, 2)),
    "poprun of one": (here(num_total_replicas=4, num_local_replicas=4), ("poprun", 0, 1)),
    "another poprun, unequal": (
        {**here(**{**INSTANCE, "num_total_replicas": 5}, uniform=False, num_instances=None,
                instance_index=None), **MPIRUN},
        ("poprun", 1, 2),
    ),
    "another poprun, unequal, no mpirun": (
        here(**{**INSTANCE, "num_total_replicas": 5}, uniform=False, num_instances=None,
             instance_index=None),
        ("poprun", None, None),
    ),
    "mpirun": (MPIRUN, ("mpirun", 1, 2)),
    "mpirun of one": ({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, ("mpirun", 0, 1)),
    "mpirun within Slurm": ({**STEP, **MPIRUN}, ("mpirun", 1, 2)),
    "horovodrun over gloo": ({"HOROVOD_RANK": "2", "HOROVOD_SIZE": "3"}, ("horovodrun", 2, 3)),
    "mpiexec of MPICH": ({"PMI_RANK": "1", "PMI_SIZE": "2"}, ("mpiexec", 1, 2)),
    "a PMIx launcher": ({"PMIX_RANK": "1", "PMIX_NAMESPACE": "a"}, ("mpiexec", 1, None)),
    "srun": (STEP, ("srun", 3, 4)),
    "srun with PMIx": ({**STEP, "PMIX_RANK": "3"}, ("srun", 3, 4)),
    "srun with PMI2": ({**STEP, "PMI_RANK": "3", "PMI_SIZE": "4"}, ("mpiexec", 3, 4)),
    "srun of one": ({**BATCH, "SLURM_STEP_NUM_TASKS": "1"}, ("srun", 0, 1)),
    "torchrun": (
        {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "2"}, ("torchrun", 1, 2)
    ),
    "variables of torch by hand": ({"RANK": "1", "WORLD_SIZE": "2"}, ("", 0, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_every_launcher_is_known_by_its_variables(name):
    environ, place = PLACES[name]
    assert launch(environ) == place
    assert launch(environ).alone is (place[2] == 1)


@pytest.mark.parametrize(
    "environ",
    [
        {"OMPI_COMM_WORLD_SIZE": "two", "OMPI_COMM_WORLD_RANK": "0"},
        {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "2"},
        {"HOROVOD_SIZE": "0"},
        {"PMIX_RANK": "-1"},
    ],
)
def test_a_place_that_does_not_exist_is_refused(environ):
    with pytest.raises(ContractError, match="PD006"):
        launch(environ)


def horovod(size, rank=0):
    """Stands in the place of a binding that MPI has connected with so many processes."""
    return SimpleNamespace(
        init=lambda: None,
        is_initialized=lambda: True,
        gloo_built=lambda: False,
        size=lambda: size,
        rank=lambda: rank,
    )


@pytest.mark.parametrize("launcher", ["mpirun", "srun", "torchrun", "horovodrun over gloo"])
@pytest.mark.parametrize("call", [backend.start, backend.connect])
def test_processes_that_horovod_leaves_alone_are_not_trained_alone(call, launcher, monkeypatch):
    """A Horovod of another MPI makes every process rank 0 of 1: each would train by itself."""
    environ, _ = PLACES[launcher]
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setitem(sys.modules, "horovod.torch", horovod(1))
    with pytest.raises(BackendError, match="PD011"):
        call("torch")


def test_a_horovod_that_the_program_has_started_counts(monkeypatch):
    own = horovod(3, 2)
    monkeypatch.setitem(sys.modules, "horovod.torch", own)
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)
    assert backend.started() is backend.started("torch") is own
    assert backend.started("tensorflow") is None
    assert backend.connect("torch") is own


def test_a_process_alone_is_connected_with_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod.torch", None)
    assert backend.connect("torch") is None
    with pytest.raises(BackendError, match="PD010"):
        backend.connect("torch", processes=2)
