"""The Horovod extension for ONNX training: ``import popdist_onnx.horovod as hvd``.

It is the real Horovod, through its PyTorch binding: started by poprun, mpirun or horovodrun (with
MPI or gloo), it sums what sessions with ``hostAllReduce`` send to the host. Where PyTorch is not
installed, MPI alone does. Sums, not averages, are what published programs were trained with;
``op=Average`` divides by the number of processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from popdist import backend
from popdist.errors import BackendError
from popdist_onnx.errors import popart_exception
from popdist_onnx.runtime.collectives import broadcast_tensors, combined, moved, require_rank
from popdist_onnx.session.training import TrainingSession
from popdist_onnx.session.weights import PyWeightsIO

if TYPE_CHECKING:
    from popdist_onnx.optimizers.optimizer import Optimizer
    from popdist_onnx.runtime.state import Array
    from popdist_onnx.types.session_options import SessionOptions

_SAME = frozenset(
    {
        "cross_rank",
        "cross_size",
        "gloo_built",
        "gloo_enabled",
        "is_homogeneous",
        "is_initialized",
        "local_rank",
        "local_size",
        "mpi_built",
        "mpi_enabled",
        "mpi_threads_supported",
        "nccl_built",
        "rank",
        "shutdown",
        "size",
        "Average",
        "Sum",
    }
)
"""What is Horovod's own."""

__all__ = [  # noqa: PLE0604 - Horovod's own names are strings, listed once above
    "DistributedOptimizer",
    "DistributedTrainingSession",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_weights",
    "init",
    *_SAME,
]


def __getattr__(name: str) -> Any:
    if name in _SAME:
        horovod = backend.binding(backend.ARRAYS)
        # PyTorch's binding exports most of what its operations module has, but not all.
        return getattr(getattr(horovod, "mpi_ops", horovod), name)
    from popdist.sdk.surface import missing

    return missing(__name__, name)


def init() -> None:
    """Starts Horovod; call it before anything else of this module.

    A process that no launcher started is rank 0 of 1. Its Horovod connects by gloo, where it was
    built with it: MPI need not be able to start there, and would end the process.

    Raises:
        BackendError: No usable Horovod is installed, or it sees another job than the launcher's.
    """
    backend.start(backend.ARRAYS)


class DistributedOptimizer:
    """Sums a session's gradients over all processes.

    Args:
        optimizer: The session's optimizer; any is exchanged alike, by its raw gradients.
        session: A session with the option ``hostAllReduce``, prepared.
        options: The session's options.
        op: ``Sum`` (where None) or ``Average``.

    Raises:
        popart_exception: An argument is of another kind, or the option is off.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        session: TrainingSession,
        options: SessionOptions,
        op: Any = None,
    ) -> None:
        if not isinstance(session, TrainingSession):
            raise popart_exception(
                "PD578",
                "DistributedOptimizer takes a TrainingSession",
                value=type(session).__name__,
                hint="with a namedtuple of session and anchors, pass its .session",
            )
        if not options.hostAllReduce:
            raise popart_exception(
                "PD578",
                "DistributedOptimizer needs the session option hostAllReduce",
                hint="set userOpts.hostAllReduce = True before the session is made",
            )
        horovod = _initialised()
        if op not in {None, horovod.Sum, horovod.Average}:
            raise popart_exception("PD578", "not an op", value=op, accepted="Sum, Average")
        self.optimizer = optimizer
        self._session = session
        self._average = op is not None and op == horovod.Average

    def insert_host_allreduce(self) -> None:
        """Connects the session's gradients with Horovod; call it after ``prepareDevice``.

        Raises:
            popart_exception: The session is not prepared.
        """
        self._session.connect_horovod(_initialised(), average=self._average)


class DistributedTrainingSession(TrainingSession):
    """A training session whose replicas are spread over all processes of a job.

    It is for options made by ``popdist.popart.configureSessionOptions``, takes what
    `TrainingSession` takes, and needs no `DistributedOptimizer`.

    Raises:
        popart_exception: The options say nothing of replicas in other processes.
    """

    def __init__(self, *args: Any, enableEngineCaching: bool = True, **kwargs: Any) -> None:
        del enableEngineCaching  # compiling takes seconds at most, so nothing is cached
        super().__init__(*args, **kwargs)
        # In a job of one instance, `configureSessionOptions` leaves the option off.
        if not self._options.enableDistributedReplicatedGraphs and _initialised().size() > 1:
            raise popart_exception(
                "PD578",
                "DistributedTrainingSession needs the option enableDistributedReplicatedGraphs",
                hint="popdist.popart.configureSessionOptions(options)",
            )


def broadcast_weights(session: TrainingSession, root_rank: int = 0) -> None:
    """Gives all processes the host's tensor data of one of them, optimizer state included.

    ``weightsFromHost`` must follow, to load them onto the devices.

    Args:
        session: The session; every process must call it.
        root_rank: Whose data.

    Raises:
        popart_exception: The processes' sessions have other variables, or there is no such rank.
    """
    session.writeWeights(
        PyWeightsIO(broadcast_tensors(session.host_tensors, root_rank, _initialised()))
    )


def broadcast(array: Array, root_rank: int = 0, *, name: str = "array") -> Array:
    """Gives all processes the array of one of them.

    Args:
        array: This process's array; on all of them of the same type and shape.
        root_rank: Whose array.
        name: What it is called in messages of Horovod.

    Returns:
        The array of that process.
    """
    horovod = _initialised()
    require_rank(root_rank, horovod.size())
    label = f"popdist_onnx.broadcast.{name}"
    return moved(array, horovod, lambda one: horovod.broadcast(one, root_rank, name=label))


def allreduce(array: Array, op: Any = None, *, name: str = "array") -> Array:
    """Combines an array over all processes, for example a metric.

    Args:
        array: This process's array; on all of them of the same type and shape.
        op: ``Average`` (where None, as in Horovod) or ``Sum``.
        name: What it is called in messages of Horovod.

    Returns:
        The result, equal on all processes.
    """
    horovod = _initialised()
    chosen, label = horovod.Average if op is None else op, f"popdist_onnx.allreduce.{name}"
    return combined(array, horovod, lambda one: horovod.allreduce(one, op=chosen, name=label))


def allgather(array: Array, *, name: str = "array") -> Array:
    """Joins the arrays of all processes along their first axis.

    Args:
        array: This process's array.
        name: What it is called in messages of Horovod.

    Returns:
        The arrays, in the order of the ranks.
    """
    horovod, label = _initialised(), f"popdist_onnx.allgather.{name}"
    return moved(array, horovod, lambda one: horovod.allgather(one, name=label))


def _initialised() -> Any:
    horovod = backend.started(backend.ARRAYS)
    if horovod is None:
        raise BackendError(
            "PD012",
            "Horovod is not initialised",
            hint="call popdist_onnx.horovod.init() first",
        )
    return horovod
