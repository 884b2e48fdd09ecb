"""Whether this process is alone or in a job, which rank it is, and which Horovod connects it.

The only place that reads other launchers' variables or chooses a binding, and the only one with
module-level state: the handle of the initialised backend. The first part says how a process was
started (`launch`), the second starts Horovod and checks what it sees (`start`, `connect`), the
third is the published API on both. A job of one instance needs no Horovod and gets none.

MPI cannot be started twice in a process and may be shared with the program's own Horovod or mpi4py,
so finalising here releases the handle and leaves the shutdown to Horovod's exit handler.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from popdist.contract import natural
from popdist.errors import ArgumentError, BackendError, ContractError
from popdist.popdist_core import Topology, topology
from popdist.program_status import tell_progress, waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


Result = TypeVar("Result")


# How this process was started.


class Launch(NamedTuple):
    """Who started this process, and its place among the processes that were started with it.

    Attributes:
        by: ``"poprun"``, ``"mpirun"``, ``"horovodrun"``, ``"mpiexec"``, ``"srun"``, ``"torchrun"``,
            or ``""`` for a process that no launcher started.
        rank: Its index; None where the launcher does not tell.
        size: How many processes there are; None where the launcher does not tell.
    """

    by: str
    rank: int | None
    size: int | None

    @property
    def alone(self) -> bool:
        """Whether the job is known to consist of this process."""
        return self.size == 1


class _Launcher(NamedTuple):
    name: str
    rank: str
    size: str
    sign: str = ""


# Launchers that set variables for each process, innermost first: mpirun starts its daemons on other
# hosts through srun, so Slurm's variables may be those of the daemons. In the shell of a batch
# script Slurm sets SLURM_PROCID and SLURM_NTASKS as well; srun alone sets the number of a step's
# tasks. PMIx tells a process its rank, and no size.
_LAUNCHERS = (
    _Launcher("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    _Launcher("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE"),
    _Launcher("mpiexec", "PMI_RANK", "PMI_SIZE"),
    _Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", sign="SLURM_STEP_NUM_TASKS"),
    _Launcher("torchrun", "RANK", "WORLD_SIZE", sign="TORCHELASTIC_RUN_ID"),
    _Launcher("mpiexec", "PMIX_RANK", "PMIX_SIZE"),
)


def launch(environ: Mapping[str, str] | None = None) -> Launch:
    """Finds out who started this process.

    Args:
        environ: The environment to read; None for this process's.

    Returns:
        What poprun says; else what the first other launcher says of which there are variables; else
        that the process is alone.

    Raises:
        ContractError: A launcher's variables hold no place in a job.
    """
    here = topology() if environ is None else Topology.from_environ(environ)
    if here.launched and here.num_instances is not None:
        return Launch("poprun", here.instance_index, here.num_instances)
    found = os.environ if environ is None else environ
    for launcher in _LAUNCHERS:
        signs = (launcher.sign,) if launcher.sign else (launcher.rank, launcher.size)
        if any(sign in found for sign in signs):
            place = _place(launcher, found)
            # A poprun of another make, of which instances differ in number of replicas.
            return place._replace(by="poprun") if here.launched else place
    return Launch("poprun", None, None) if here.launched else Launch("", 0, 1)


def _place(launcher: _Launcher, environ: Mapping[str, str]) -> Launch:
    rank, size = (
        None if (text := environ.get(name)) is None else natural(text)
        for name in (launcher.rank, launcher.size)
    )
    shown = {name: environ[name] for name in (launcher.rank, launcher.size) if name in environ}
    if len(shown) != (rank is not None) + (size is not None) or (
        size is not None and (rank or 0) >= size
    ):
        raise ContractError(
            "PD006",
            f"the variables of {launcher.name} hold no place in a job",
            value=" ".join(f"{name}={text}" for name, text in shown.items()),
            accepted="a rank from 0 on that is smaller than the number of processes",
            hint=f"unset {' '.join(shown)} to run alone, or start the job with poprun",
        )
    return Launch(launcher.name, rank, size)


# The Horovod that connects this process with others.


# A binding per framework; where several are installed, one that the program has imported already
# costs nothing more, so it is preferred. The last one, over MPI alone, serves where Horovod has no
# framework that it could be built for.
_BINDINGS = {
    "torch": "horovod.torch",
    "tensorflow": "horovod.tensorflow",
    "numpy": "popdist.exchange.mpi",
}

ARRAYS = "arrays"
"""In place of a framework: the binding that exchanges numpy arrays, PyTorch's where it is there."""

_EXCHANGE = "POPDIST_EXCHANGE"
_OF_ARRAYS = {"": ("torch", "numpy"), "horovod": ("torch",), "mpi": ("numpy",)}
"""The bindings for arrays, in order, by the value of that variable."""


def started(*frameworks: str) -> Any | None:
    """The Horovod that is running in this process, started by popdist or by the program.

    Nothing is imported: a program that has not imported a binding has not started it.

    Args:
        *frameworks: ``"torch"``, ``"tensorflow"`` or `ARRAYS`; none of them for any.

    Returns:
        The binding's module, initialised; None where there is none.
    """
    for framework in _choices(frameworks) or _BINDINGS:
        binding = sys.modules.get(_BINDINGS[framework])
        # Without its native extension horovod.torch imports with a warning and lacks the names.
        if binding is not None and hasattr(binding, "init") and binding.is_initialized():
            return binding
    return None


def _choices(frameworks: Iterable[str]) -> list[str]:
    found: list[str] = []
    for name in frameworks:
        found += _of_arrays() if name == ARRAYS else (name,)
    return found


def _of_arrays() -> tuple[str, ...]:
    wanted = os.environ.get(_EXCHANGE, "")
    if wanted not in _OF_ARRAYS:
        accepted = ", ".join(name for name in _OF_ARRAYS if name)
        raise ContractError(
            "PD006", f"{_EXCHANGE} names no exchange of arrays", value=wanted, accepted=accepted
        )
    return _OF_ARRAYS[wanted]


def connect(framework: str, processes: int | None = None) -> Any | None:
    """The Horovod that connects the processes of this job, with any launcher.

    Where the program has started Horovod, that one is taken. In a job of poprun it serves the
    published functions as well (see `init`).

    Args:
        framework: Whose binding, ``"torch"``, ``"tensorflow"`` or `ARRAYS`.
        processes: The number of processes that the caller has found; more than 1 has Horovod
            started also where no known launcher is seen.

    Returns:
        The binding's module, initialised; None in a job of one process.

    Raises:
        BackendError: No usable Horovod is installed, or it sees another job than the launcher's.
    """
    here = launch()
    horovod = started(framework)
    if horovod is None:
        if here.alone and (here.by == "poprun" or (processes or 1) == 1):
            return None
        horovod = binding(framework)
        _begin(horovod)
        _require_same_job(horovod, here)
    elif here.by == "poprun" or horovod.size() == 1:
        # Under another launcher a program may start Horovod among some of the processes, but not
        # for each one alone.
        _require_same_job(horovod, here)
    _use(horovod, here)
    return horovod if horovod.size() > 1 else None


def start(framework: str, *args: Any, **kwargs: Any) -> Any:
    """Starts a framework's Horovod as a program's own call of ``init`` does; safe to call again.

    In a process that no launcher started, it starts by gloo, where it was built with it, as rank 0
    of 1: MPI need not be able to start there, and then ends the process instead of raising.

    Args:
        framework: Whose binding, ``"torch"``, ``"tensorflow"`` or `ARRAYS`.
        *args: Arguments of Horovod's own ``init``.
        **kwargs: Arguments of Horovod's own ``init``.

    Returns:
        The binding's module, initialised.

    Raises:
        BackendError: No usable Horovod is installed, or it sees another job than the launcher's.
    """
    horovod = binding(framework)
    with connected_by_gloo(horovod):
        _begin(horovod, *args, **kwargs)
    # A program that names ranks wants another job than the launcher's.
    if not args and not kwargs:
        here = launch()
        _require_same_job(horovod, here)
        _use(horovod, here)
    return horovod


def binding(framework: str) -> Any:
    """A framework's Horovod, not started.

    Args:
        framework: ``"torch"``, ``"tensorflow"`` or `ARRAYS`.

    Returns:
        The module ``horovod.torch`` or ``horovod.tensorflow``, or `popdist.exchange.mpi`.

    Raises:
        BackendError: It is not installed, or lacks its native extension.
    """
    reasons = []
    for name in (_BINDINGS[one] for one in _choices([framework])):
        try:
            horovod = import_module(name)
        except (ImportError, RuntimeError) as error:  # the latter where mpi4py finds no MPI
            reasons.append(str(error))
            continue
        if hasattr(horovod, "init"):
            return horovod
        reasons.append(f"{name} lacks its native extension")
    if framework == ARRAYS:
        accepted = "Horovod 0.28.1 built for the installed torch, or mpi4py"
        hint = "pip install mpi4py, or with PyTorch: python -m popdist.horovod_build"
    else:
        accepted = f"Horovod 0.28.1 built for the installed {framework}"
        hint = "python -m popdist.horovod_build"
    raise BackendError(
        "PD010",
        f"no usable Horovod for {framework} is installed",
        value="; ".join(reasons),
        accepted=accepted,
        hint=hint,
    )


def takes_arrays(horovod: Any) -> bool:
    """Whether a binding takes numpy arrays: the one over MPI alone, and no framework's.

    Args:
        horovod: The binding.
    """
    return horovod is sys.modules.get(_BINDINGS["numpy"])


def _begin(horovod: Any, *args: Any, **kwargs: Any) -> None:
    # Their native libraries share symbols: the second one's thread ends the process.
    running = started("torch", "tensorflow")
    if running not in (None, horovod) and not takes_arrays(horovod):
        raise BackendError(
            "PD013",
            "Horovod is running in this process with another framework's binding",
            value=f"{running.__name__} is running, {horovod.__name__} is asked for",
            hint="train with one framework in a process; where popdist.init() comes first, import "
            f"{horovod.__name__} before it, so that it takes that binding",
        )
    # execute_on_instances adds groups later, which Horovod allows only if told before it starts.
    os.environ.setdefault("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    # Horovod's thread waits inside MPI by polling, which would keep a processor from the training.
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    tell_progress(phase="connecting")
    with waiting("popdist.init"):
        horovod.init(*args, **kwargs)
    tell_progress(phase="running")


def _require_same_job(horovod: Any, here: Launch) -> None:
    """Each process would train alone, or with the wrong ones, where the two differ."""
    seen = (int(horovod.size()), int(horovod.rank()))
    told = (here.size, here.rank)
    if not here.by or all(own in (None, said) for own, said in zip(told, seen, strict=True)):
        return
    raise BackendError(
        "PD011",
        "Horovod sees another job than the launcher started",
        value=f"Horovod: size {seen[0]}, rank {seen[1]}; "
        f"launcher: {here.size} instances, index {here.rank}",
        accepted="the same number of ranks and instances, in the same order",
        hint="Horovod cannot connect what torchrun starts; start the job with poprun"
        if here.by == "torchrun"
        else "Horovod was probably built against another MPI than the one that started the job; "
        "rebuild it here with: python -m popdist.horovod_build --force",
    )


_GLOO = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}


@contextmanager
def connected_by_gloo(horovod: Any) -> Iterator[None]:
    """Has Horovod start by gloo in a process that is alone without mpirun, as rank 0 of 1.

    MPI need not be able to start there, and then ends the process instead of raising. Nothing
    changes under mpirun, in a process that was launched beside others, where the user has chosen a
    controller, and where Horovod was built without gloo.

    Args:
        horovod: The binding whose ``init`` is called inside.

    Yields:
        None; programs that are started afterwards inherit no setting.
    """
    here = launch()
    alone = here.by == "" or (here.by == "srun" and here.alone)
    chosen = any(name in os.environ for name in _GLOO)
    if not alone or chosen or not horovod.gloo_built():
        yield
        return
    os.environ.update(_GLOO)
    try:
        yield
    finally:
        for name in _GLOO:
            del os.environ[name]


# Host communication of popdist itself, among the instances of a job of poprun.


class Backend:
    """Communication among all instances of one job.

    Attributes:
        num_instances: Instances that take part.
        instance_index: This process's rank among them.
    """

    def __init__(self, horovod: Any | None) -> None:
        self.num_instances = 1 if horovod is None else int(horovod.size())
        self.instance_index = 0 if horovod is None else int(horovod.rank())
        self.horovod = horovod
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
_announcers: list[Callable[[str], None]] = []
_participants: ContextVar[frozenset[int] | None] = ContextVar("participants", default=None)


def init() -> None:
    """Starts host communication among the instances; safe to call again.

    Without a launcher, and in a job of one instance, the call has no effect. Otherwise it
    initialises the real Horovod, with the binding of a framework that is imported already, or else
    of the first that is installed (PyTorch, then TensorFlow); where there is none, MPI alone.

    Raises:
        BackendError: No usable Horovod is installed, or it sees another job than the launcher's.
    """
    global _backend  # noqa: PLW0603 - the backend's one handle
    if _backend is None:
        here = topology()
        alone = here.num_total_replicas == here.num_local_replicas
        _backend = Backend(None if alone else _start_any())


initializeBackend = init  # noqa: N816 - published name
"""The same as `init`."""


def isBackendInitialized() -> bool:  # noqa: N802 - published name
    """Whether `init` has been called.

    Returns:
        True between `init` and `finalizeBackend`.
    """
    return _backend is not None


def finalizeBackend() -> None:  # noqa: N802 - published name
    """Ends popdist's use of host communication; a later `init` starts it again.

    MPI itself runs until the process ends, because MPI cannot be started twice, and because the
    program may use Horovod or mpi4py too.
    """
    global _backend  # noqa: PLW0603 - the backend's one handle
    _backend = None


def current() -> Backend:
    """The initialised backend.

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


def announce_waits(announce: Callable[[str], None]) -> None:
    """Has an adapter tell the other instances of a wait, so that all notice what differs.

    Args:
        announce: Called with the name of the call; it raises where others do something else.
    """
    _announcers.append(announce)


def synchronize() -> None:
    """Waits until every instance has reached this call.

    Inside `execute_on_instances` only the instances that take part are waited for.

    Raises:
        BackendError: `init` was not called.
    """
    backend = current()
    group = _participants.get()
    if group is None:
        for announce in _announcers:
            announce("popdist.synchronize")
    backend.barrier(frozenset(range(backend.num_instances)) if group is None else group)


def execute_on_instances(
    instances: Iterable[int], func: Callable[..., Result], *args: Any, **kwargs: Any
) -> Result | None:
    """Runs a function on some of the instances (SDK 3).

    Every instance of the job must reach the call. Only the listed instances run ``func``, and
    `synchronize` inside ``func`` waits for these instances only.

    Args:
        instances: Indices of the instances that run ``func``.
        func: The function.
        *args: Positional arguments of ``func``.
        **kwargs: Keyword arguments of ``func``.

    Returns:
        The result of ``func`` on the listed instances; None on the others.

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


def _start_any() -> Any:
    """The binding of a framework that is imported already, else of the first that is usable."""
    loaded = sys.modules
    installed = [name for name in _BINDINGS if name in loaded or find_spec(name) is not None]
    installed.sort(
        key=lambda one: (one == "numpy", _BINDINGS[one] not in loaded, one not in loaded)
    )
    reasons = []
    for framework in installed:
        try:
            horovod = binding(framework)
        except BackendError as error:
            reasons.append(f"{_BINDINGS[framework]}: {error.value}")
            continue
        _begin(horovod)
        _require_same_job(horovod, launch())
        return horovod
    raise BackendError(
        "PD010",
        "this job has several instances, and no usable Horovod is installed to connect them",
        value="; ".join(reasons) or "no framework that Horovod supports is installed",
        accepted="Horovod 0.28.1 built for the installed PyTorch or TensorFlow, or mpi4py",
        hint="python -m popdist.horovod_build, or without a framework: pip install mpi4py",
    )


def _use(horovod: Any, here: Launch) -> None:
    """Takes the binding that an adapter needs: two in a process end it (see `_begin`)."""
    global _backend  # noqa: PLW0603 - the backend's one handle
    if _backend is None and here.by == "poprun" and horovod.size() > 1:
        _backend = Backend(horovod)


def _meet(horovod: Any, group: dict[str, Any]) -> None:
    with waiting("popdist.synchronize"):
        if hasattr(horovod, "barrier"):
            horovod.barrier(**group)
        else:  # the TensorFlow binding exports none; a gather of nothing waits for everyone as well
            horovod.allgather_object(None, **group)
