"""``ddp_hook``: DistributedDataParallel's gradients, averaged by popdist's exchange over Horovod.

DDP copies gradients into buckets, and calls the hook for each bucket as soon as it is complete, in
the same order on all processes. The hook divides the bucket, sends it in slices, and returns at
once. DDP waits for the results in a callback at the end of the backward pass. The hook queues a
callback of its own for the last bucket, which therefore runs just before DDP's.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from popdist import backend
from popdist.agreement import digest
from popdist.exchange import DEFAULT_SLICE_BYTES, Exchange, Item, allocate, plan
from popdist_torch import agreement
from popdist_torch.data.equal_rows import EqualRows, digest_of
from popdist_torch.errors import DdpError
from popdist_torch.executor.compiled import keep_from_dynamo

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch._C._distributed_c10d import GradBucket

    Future = torch.futures.Future[torch.Tensor]

_DIVIDE = "pass sampler=torch.utils.data.DistributedSampler(dataset) to the loader"
_PARTED = (
    "make the same changes on every process: of weights, learning rates and loaded states; a "
    "scheduler's step on one process alone makes the weights differ"
)


class _Average(Protocol):
    """The average over all processes of one bucket, repeated in each backward pass."""

    def send(self, buffer: torch.Tensor) -> None:
        """Sends a buffer."""

    def result(self) -> torch.Tensor:
        """Waits for the average."""


class _Dense:
    """The average of a flat buffer, in place.

    Args:
        buffer: A buffer of the size and type of all buffers that are sent later.
        horovod: The module ``horovod.torch``, initialised.
        name: The name of what is sent; equal on all processes.
    """

    def __init__(self, buffer: torch.Tensor, horovod: Any, name: str) -> None:
        self._size = int(horovod.size())
        self._buffer = buffer
        step = max(1, DEFAULT_SLICE_BYTES // buffer.itemsize)
        kind = str(buffer.dtype).removeprefix("torch.")
        # An item a slice: one is divided while the slice before it is being sent.
        items = [
            Item(f"{name}, from {start}", min(step, buffer.numel() - start), kind, buffer.itemsize)
            for start in range(0, buffer.numel(), step)
        ]
        layout = plan(items, zero_copy_bytes=0)
        arenas = allocate(layout, device=buffer.device)
        self._sizes = [item.elements for item in items]
        self._exchange = Exchange(layout, arenas, horovod, name=name)

    def send(self, buffer: torch.Tensor) -> None:
        """Divides a buffer by the number of processes, and sends it."""
        self._buffer = buffer
        self._exchange.begin()
        for index, part in enumerate(torch.split(buffer, self._sizes)):
            self._exchange.attach(index, part.div_(self._size))
            self._exchange.ready(index)

    def result(self) -> torch.Tensor:
        """Waits until the buffer has the average."""
        self._exchange.finish()
        return self._buffer


class _Sparse:
    """The average of a sparse gradient: the rows of all processes.

    Args:
        horovod: The module ``horovod.torch``, initialised.
        name: The name of what is sent; equal on all processes.
    """

    def __init__(self, horovod: Any, name: str) -> None:
        self._horovod = horovod
        self._name = name
        self._shape = torch.Size()
        self._handles: tuple[int, ...] = ()

    def send(self, buffer: torch.Tensor) -> None:
        """Divides a gradient by the number of processes, and sends its rows."""
        self._shape = buffer.shape
        mine = buffer.coalesce()
        parts = (mine.indices().t().contiguous(), mine.values() / self._horovod.size())
        self._handles = tuple(
            self._horovod.allgather_async(part, name=f"{self._name}, {label}")
            for part, label in zip(parts, ("indices", "values"), strict=True)
        )

    def result(self) -> torch.Tensor:
        """Waits for the rows of all processes."""
        indices, values = map(self._horovod.synchronize, self._handles)
        return torch.sparse_coo_tensor(indices.t(), values, self._shape).coalesce()


class _Bucket:
    """A bucket of one model.

    Args:
        average: The exchange.
        kind: What other buffers need another exchange for.

    Attributes:
        average: The exchange.
        kind: What other buffers need another exchange for.
        passes: Backward passes so far.
        is_new: Whether its parameters were in no other bucket before.
    """

    def __init__(self, average: _Average, kind: object, *, is_new: bool) -> None:
        self.average = average
        self.kind = kind
        self.is_new = is_new
        self.passes = 0


class _Sent(NamedTuple):
    """A bucket whose average is awaited.

    Attributes:
        bucket: The bucket.
        parameters: Its parameters.
        local: A digest of its gradients in the first pass of the model; else empty.
        future: What DDP waits for.
    """

    bucket: _Bucket
    parameters: list[torch.Tensor]
    local: str
    future: Future


class _Buckets:
    """The buckets of all models of this process, numbered in the order of their first use."""

    def __init__(self) -> None:
        # By their first parameter: those of a deleted model are freed. DDP makes other buckets
        # after its first pass.
        self._buckets: Any = WeakTensorKeyDictionary()
        self._trained: Any = WeakTensorKeyDictionary()
        self._names: Any = WeakTensorKeyDictionary()
        self._count = 0
        self._sent: list[_Sent] = []

    def name(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Notes the names of parameters, for messages."""
        for name, parameter in named:
            self._names[parameter] = name

    def send(self, given: GradBucket, horovod: Any) -> Future:
        """Sends a bucket; the result is set at the end of the backward pass."""
        buffer, parameters = given.buffer(), given.parameters()
        bucket = self._bucket(buffer, parameters, horovod)
        bucket.passes += 1
        first = bucket.is_new and bucket.passes == 1
        future = _future(buffer)
        self._sent.append(_Sent(bucket, parameters, digest_of([buffer]) if first else "", future))
        bucket.average.send(buffer)
        if torch._C._current_autograd_node() is None:  # noqa: SLF001 - no public name
            # DDP waits for this bucket before any callback runs: in the first pass of a static
            # graph, and for a process that has joined (`DistributedDataParallel.join`).
            self._finish(horovod)
        elif given.is_last():
            torch.autograd.Variable._execution_engine.queue_callback(  # noqa: SLF001 - as DDP
                partial(self._finish, horovod)
            )
        return future

    def _bucket(
        self, buffer: torch.Tensor, parameters: Sequence[torch.Tensor], horovod: Any
    ) -> _Bucket:
        kind = (buffer.layout, buffer.dtype, buffer.shape)
        found: _Bucket | None = self._buckets.get(parameters[0])
        if found is not None and found.kind == kind:
            return found
        name = f"bucket {self._count} of DistributedDataParallel"
        self._count += 1
        average = _Sparse(horovod, name) if buffer.is_sparse else _Dense(buffer, horovod, name)
        is_new = not any(parameter in self._trained for parameter in parameters)
        for index, parameter in enumerate(parameters):
            self._trained[parameter] = True
            self._names.setdefault(parameter, f"{index} of {name}")
        bucket = self._buckets[parameters[0]] = _Bucket(average, kind, is_new=is_new)
        return bucket

    def _finish(self, horovod: Any) -> None:
        """Waits for the averages of all buckets that were sent, and compares what is due."""
        sent, self._sent = self._sent, []
        averages = [one.bucket.average.result() for one in sent]
        local = "".join(one.local for one in sent)
        if local:
            EqualRows(horovod, _DIVIDE).look_at_gradients(digest(local.encode()))
        compared = [
            (self._names[parameter], parameter)
            for one in sent
            if agreement.due(one.bucket.passes)
            for parameter in one.parameters
        ]
        if compared:
            agreement.require(agreement.parameter_facts(compared), horovod, _PARTED)
        for one, average in zip(sent, averages, strict=True):
            one.future.set_result(average)


_BUCKETS = _Buckets()


def ddp_hook(state: Any, bucket: Any) -> Future:
    """Averages the gradients of a bucket over all processes, by popdist's exchange.

    A communication hook for ``DistributedDataParallel.register_comm_hook``, and for the argument
    ``ddp_comm_hook`` of Lightning's ``DDPStrategy``. DDP uses its process group for all else, such
    as the first weights and buffers.

    Args:
        state: The process group of the model, which has all processes of the job; None for the
            default group, as in torch's own hooks.
        bucket: The gradients.

    Returns:
        The averages, in the memory of the bucket.

    Raises:
        AgreementError: The weights differ between processes; raised on all of them.
        BackendError: Another process ended or failed meanwhile.
        DdpError: The gradients cannot be exchanged.

    Example::

        model = torch.nn.parallel.DistributedDataParallel(model)
        model.register_comm_hook(None, popdist_torch.ddp_hook)
    """
    if isinstance(bucket, tuple):
        raise DdpError(
            "PD370",
            "a model that is compiled with DDP's Python reducer has no buckets to exchange",
            value="torch._dynamo.config.optimize_ddp = 'python_reducer'",
            accepted="torch's default, optimize_ddp = True",
        )
    horovod = _connected(state)
    if horovod is None:
        future = _future(bucket.buffer())
        future.set_result(bucket.buffer())
        return future
    return _BUCKETS.send(bucket, horovod)


# DDP compares annotations with types, not with their text.
ddp_hook.__annotations__ |= {
    "bucket": torch.distributed.GradBucket,  # type: ignore[attr-defined]  # not listed there
    "return": torch.futures.Future[torch.Tensor],
}


def install(model: torch.nn.parallel.DistributedDataParallel) -> None:
    """Makes a model use `ddp_hook`, unless the program registers another hook before training.

    Args:
        model: The model, as it was made.

    Raises:
        BackendError: No usable Horovod is installed, or it sees another job than the launcher's.
        DdpError: Its gradients cannot be exchanged.
    """
    _connected(model.process_group)
    _BUCKETS.name(model.module.named_parameters())
    model.register_forward_pre_hook(_register)


def _register(model: Any, _arguments: Any) -> None:
    if not model._comm_hooks:  # noqa: SLF001 - no public name
        model.register_comm_hook(None, ddp_hook)


keep_from_dynamo(_register)


def _connected(group: Any) -> Any | None:
    """The initialised ``horovod.torch``; None in a job of one process.

    Raises:
        BackendError: No usable Horovod is installed, or it sees another job than the launcher's.
        DdpError: The group has other processes than Horovod.
    """
    distributed = torch.distributed
    if not isinstance(group, distributed.ProcessGroup | None):
        raise DdpError(
            "PD370",
            "the state of the hook is not a process group",
            value=type(group).__name__,
            accepted="None, or the process group of the model",
        )
    horovod = backend.connect("torch")
    size = 1 if horovod is None else int(horovod.size())
    if distributed.get_world_size(group) != size:
        raise DdpError(
            "PD370",
            "the process group of a DistributedDataParallel does not have all processes of the job",
            value=f"{distributed.get_world_size(group)} processes in the group, {size} in the job",
            accepted="a group of all processes that poprun has started",
            hint="leave groups of some processes to torch: no hook, and poprun without "
            "--ddp popdist; start all processes by poprun, not by torch.multiprocessing.spawn",
        )
    return horovod


def _future(buffer: torch.Tensor) -> Future:
    return torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
