"""Host communication among the instances of a job, over whichever real Horovod binding is in play.

The only place that chooses a binding, and the only one with module-level state: the handle of the
initialised backend. A job of one instance needs no Horovod and gets none. MPI cannot be started
twice in a process and may be shared with the program's own Horovod or mpi4py, so finalising here
releases the handle and leaves the shutdown to Horovod's exit handler.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from popdist.errors import ArgumentError, BackendError
from popdist.popdist_core import isPopdistEnvSet, topology
from popdist.program_status import waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from popdist.popdist_core import Topology


Result = TypeVar("Result")

# A binding per framework; where several are installed, one that the program has imported already
# costs nothing more, so it is preferred.
_BINDINGS = {"torch": "horovod.torch", "tensorflow": "horovod.tensorflow"}


class Backend:
    """Communication among all instances of one job.

    Attributes:
        num_instances: Instances that take part.
        instance_index: This process's rank among them.
    """

    def __init__(self, here: Topology, horovod: Any | None) -> None:
        self.num_instances = 1 if horovod is None else int(horovod.size())
        self.instance_index = 0 if horovod is None else int(horovod.rank())
        self.horovod = horovod
        self._here = here
        self._groups: dict[frozenset[int], Any] = {}

    def barrier(self, participants: frozenset[int]) -> None:
        """Waits until every participant has reached this call."""
        if len(participants) > 1 and self.horovod is not None:
            whole = len(participants) == self.num_instances
            _meet(self.horovod, {} if whole else {"process_set": self._groups[participants]})

    def register(self, participants: frozenset[int]) -> None:
        """Makes a group known; every instance of the job must take part in this call."""
        if 1 < len(participants) < self.num_instances and participants not in self._groups:
            assert self.horovod is not None  # noqa: S101 - more than one instance: there is Horovod
            self._groups[participants] = self.horovod.add_process_set(sorted(participants))


_backend: Backend | None = None
_participants: ContextVar[frozenset[int] | None] = ContextVar("participants", default=None)


def init() -> None:
    """Starts host communication among the instances; safe to call again.

    Without a launcher, and for a job of one instance, there is nothing to start. Otherwise the real
    Horovod is initialised with the binding of a framework that is imported already, or else of the
    first that is installed (PyTorch, then TensorFlow).

    Raises:
        BackendError: No usable Horovod is installed, or it sees another job than the launcher's.
    """
    global _backend  # noqa: PLW0603 - the backend's one handle
    if _backend is None:
        here = topology()
        alone = here.num_total_replicas == here.num_local_replicas
        _backend = Backend(here, None if alone else _start_horovod(here))


initializeBackend = init  # noqa: N816 - published name
"""The same as `init`."""


def isBackendInitialized() -> bool:  # noqa: N802 - published name
    """Whether `init` has been called.

    Returns:
        True between `init` and `finalizeBackend`.
    """
    return _backend is not None


def finalizeBackend() -> None:  # noqa: N802 - published name
    """Ends the use of host communication by popdist; a later `init` starts it again.

    MPI itself stays up until the process exits, because it cannot be started twice and the program
    may use Horovod or mpi4py on its own.
    """
    global _backend  # noqa: PLW0603 - the backend's one handle
    _backend = None


def current() -> Backend:
    """The initialised backend.

    Returns:
        The handle.

    Raises:
        BackendError: `init` was not called.
    """
    if _backend is None:
        raise BackendError(
            "PD012",
            "host communication is not initialised",
            hint="call popdist.init() once, before anything that the instances do together",
        )
    return _backend


def synchronize() -> None:
    """Waits until every instance has reached this call.

    Inside `execute_on_instances` only the instances that take part are waited for.

    Raises:
        BackendError: `init` was not called.
    """
    backend = current()
    group = _participants.get()
    backend.barrier(frozenset(range(backend.num_instances)) if group is None else group)


def execute_on_instances(
    instances: Iterable[int], func: Callable[..., Result], *args: Any, **kwargs: Any
) -> Result | None:
    """Runs a function on some of the instances (SDK 3).

    Every instance of the job must reach the call. `synchronize` inside ``func`` waits for the
    listed instances only, and only they take part in what ``func`` does.

    Args:
        instances: Indices of the instances that run ``func``.
        func: What to run.
        *args: Positional arguments of ``func``.
        **kwargs: Keyword arguments of ``func``.

    Returns:
        What ``func`` returned, on the listed instances; None on the others.

    Raises:
        BackendError: `init` was not called.
        ArgumentError: No instance is listed, or one that does not exist.
    """
    backend = current()
    group = frozenset(instances)
    if not group or not group <= set(range(backend.num_instances)):
        raise ArgumentError(
            "PD004",
            "execute_on_instances needs at least one instance, and only instances of the job",
            value=sorted(group),
            accepted=f"indices from 0 to {backend.num_instances - 1}",
        )
    backend.register(group)
    if backend.instance_index not in group:
        return None
    with _only(group):
        return func(*args, **kwargs)


@contextmanager
def _only(group: frozenset[int]) -> Iterator[None]:
    token = _participants.set(group)
    try:
        yield
    finally:
        _participants.reset(token)


def _start_horovod(here: Topology) -> Any:
    # execute_on_instances adds groups later, which Horovod allows only if told before it starts.
    os.environ.setdefault("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    # Horovod's thread waits inside MPI by polling, which would keep a processor from the training.
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    horovod = _load_binding()
    with waiting("popdist.init"):
        horovod.init()
    seen = (horovod.size(), horovod.rank())
    expected = (here.num_instances, here.instance_index)
    if None not in expected and seen != expected:
        raise BackendError(
            "PD011",
            "Horovod sees another job than the launcher started",
            value=f"Horovod: size {seen[0]}, rank {seen[1]}; "
            f"launcher: {expected[0]} instances, index {expected[1]}",
            accepted="the same number of ranks and instances, in the same order",
            hint="Horovod was probably built against another MPI than the mpirun that started the "
            "job; rebuild it here with: python -m popdist.horovod_build --force",
        )
    return horovod


def _meet(horovod: Any, group: dict[str, Any]) -> None:
    with waiting("popdist.synchronize"):
        if hasattr(horovod, "barrier"):
            horovod.barrier(**group)
        else:  # the TensorFlow binding exports none; a gather of nothing waits for everyone as well
            horovod.allgather_object(None, **group)


def _load_binding() -> Any:
    installed = [name for name in _BINDINGS if find_spec(name) is not None]
    installed.sort(key=lambda name: (_BINDINGS[name] not in sys.modules, name not in sys.modules))
    reasons = []
    for framework in installed:
        try:
            binding = import_module(_BINDINGS[framework])
        except ImportError as error:
            reasons.append(f"{_BINDINGS[framework]}: {error}")
            continue
        # Without its native extension horovod.torch imports with a warning and lacks the names.
        if hasattr(binding, "init"):
            return binding
        reasons.append(f"{_BINDINGS[framework]}: its native extension is missing")
    raise BackendError(
        "PD010",
        "this job has several instances, and no usable Horovod is installed to connect them",
        value="; ".join(reasons) or "no framework that Horovod supports is installed",
        accepted="Horovod 0.28.1 built for the installed PyTorch or TensorFlow",
        hint="python -m popdist.horovod_build",
    )


# Processes that no launcher started, and how the real Horovod starts in them.


_LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "HOROVOD_RANK")
"""Variables of which mpirun (Open MPI, PRRTE, MPICH), srun and horovodrun set one."""

_GLOO = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}


def launched() -> bool:
    """Whether mpirun, srun or horovodrun started this process; poprun starts them through mpirun.

    Returns:
        False in a process that runs alone.
    """
    return any(name in os.environ for name in _LAUNCHED)


@contextmanager
def connected_by_gloo(horovod: Any) -> Iterator[None]:
    """Has Horovod start by gloo in a process that nobody launched, as rank 0 of 1.

    MPI need not be able to start there, and then ends the process instead of raising. Nothing
    changes in a launched process, where the user has chosen a controller, and where Horovod was
    built without gloo.

    Args:
        horovod: The binding whose ``init`` is called inside.

    Yields:
        None; programs that are started afterwards inherit no setting.
    """
    is_launched = isPopdistEnvSet() or launched()
    chosen = any(name in os.environ for name in _GLOO)
    if is_launched or chosen or not horovod.gloo_built():
        yield
        return
    os.environ.update(_GLOO)
    try:
        yield
    finally:
        for name in _GLOO:
            del os.environ[name]
