"""The place of this process in a job of plain loops, its device, and its part of the data.

These are steps 1 to 4 of Horovod's six.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import data
from torch.utils._pytree import tree_map_only

from popdist import backend
from popdist.popdist_core import getDeviceId, isPopdistEnvSet
from popdist_torch.errors import PlainLoopError
from popdist_torch.synchronised_norms import explain_that_of_horovod

if TYPE_CHECKING:
    from collections.abc import Sized


def init() -> None:
    """Starts the real Horovod where something launched this process."""
    here = backend.launch()
    if here.by and not (here.alone and find_spec("horovod") is None):
        _refuse_gpus(backend.start("torch"))
        _allow_inference()
        explain_that_of_horovod()
    backend.init()


_ALLOCATE = (
    "_allgather_async",
    "_alltoall_async",
    "_grouped_allgather_async",
    "_grouped_reducescatter_async",
    "_reducescatter_async",
)
"""What Horovod's functions call with an empty tensor for the result."""


def _allow_inference() -> None:
    """Makes Horovod's functions work in ``torch.inference_mode``.

    Horovod's thread resizes empty tensors for results. It may not do that to tensors that are made
    in the mode.
    """
    operations: Any = import_module("horovod.torch.mpi_ops")
    for name in _ALLOCATE:
        start = getattr(operations, name)
        if getattr(start, "__module__", None) != __name__:
            setattr(operations, name, _with_normal_results(start))


def _with_normal_results(start: Any) -> Any:
    def started(*args: Any) -> Any:
        return start(*(tree_map_only(torch.Tensor, _normal, args)))

    return started


def _normal(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_inference() or tensor.numel():
        return tensor
    with torch.inference_mode(mode=False):
        return torch.empty_like(tensor)


def _refuse_gpus(horovod: Any) -> None:
    """Makes a Horovod without CUDA refuse tensors of a GPU; its calls with them do not return."""
    if horovod.cuda_built() or horovod.rocm_built():
        return
    operations: Any = import_module("horovod.torch.mpi_ops")
    check = operations._check_function  # noqa: SLF001 - what all of Horovod's operations call

    def checked(factory: Any, tensor: torch.Tensor) -> Any:
        if tensor.is_cuda:
            raise PlainLoopError(
                "PD308",
                "this Horovod was built for the host, and takes no tensor of a GPU",
                value=f"{list(tensor.shape)} on {tensor.device}",
                accepted="tensors of the host, such as tensor.cpu()",
                hint="python -m popdist.horovod_build --with-nccl builds one that does; "
                "DistributedOptimizer and trainingModel do without",
            )
        return check(factory, tensor)

    if getattr(check, "__module__", None) != __name__:
        operations._check_function = checked  # noqa: SLF001 - as above


def connected() -> Any | None:
    """The initialised ``horovod.torch``; None in a job of one process.

    Raises:
        PlainLoopError: `init` was not called.
    """
    horovod = backend.started("torch")
    if horovod is None and not (backend.launch().alone and backend.isBackendInitialized()):
        raise PlainLoopError(
            "PD308", "Horovod has not been started", hint="call popdist_torch.horovod.init() first"
        )
    return None if horovod is None or horovod.size() == 1 else horovod


def rank() -> int:
    """Index of this process in the job.

    Returns:
        The index, from 0.
    """
    horovod = connected()
    return 0 if horovod is None else int(horovod.rank())


def size() -> int:
    """Number of processes of the job.

    Returns:
        The number.
    """
    horovod = connected()
    return 1 if horovod is None else int(horovod.size())


def local_rank() -> int:
    """Index of this process among those on its host.

    Returns:
        The index, from 0.
    """
    horovod = connected()
    return 0 if horovod is None else int(horovod.local_rank())


def local_size() -> int:
    """Number of the job's processes on this host.

    Returns:
        The number.
    """
    horovod = connected()
    return 1 if horovod is None else int(horovod.local_size())


def require_root(root_rank: object) -> None:
    """Checks the rank of a process whose values the others get.

    Raises:
        PlainLoopError: There is no such process, or `init` was not called.
    """
    count = size()
    if type(root_rank) is not int or not 0 <= root_rank < count:
        raise PlainLoopError(
            "PD352",
            "root_rank is the rank of no process",
            value=repr(root_rank),
            accepted=f"0 to {count - 1}",
        )


def pin_device() -> torch.device:
    """Gives this process a device of its own, and makes it torch's current one.

    Returns:
        The GPU that poprun assigned, or that of the local rank; the CPU where there is no GPU.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        return torch.device("cpu")
    wanted = getDeviceId() if isPopdistEnvSet() else local_rank()
    device = torch.device("cuda", wanted % count)
    torch.cuda.set_device(device)
    return device


# The data that a process reads in a plain loop: steps 2 and 4 of Horovod's six.


def local_batch_size(global_batch_size: int) -> int:
    """This process's part of a global batch.

    Args:
        global_batch_size: Samples of one update of the whole job.

    Returns:
        Samples of this process.

    Raises:
        PlainLoopError: The batch does not divide; leaving out its rest would train another model.
    """
    count = size()
    if not isinstance(global_batch_size, int):
        raise PlainLoopError(
            "PD308", "the global batch size is a whole number", value=global_batch_size
        )
    if global_batch_size < 1 or global_batch_size % count:
        raise PlainLoopError(
            "PD308",
            "the global batch size cannot be divided over the processes",
            value=f"{global_batch_size} samples, {count} processes",
            accepted=f"a multiple of {count}",
        )
    return global_batch_size // count


class DistributedSampler(data.distributed.DistributedSampler[Any]):
    """Torch's sampler, for this process of this job.

    Call ``set_epoch`` before each epoch, or all epochs have the same order.

    Args:
        dataset: The data; the same in every process.
        shuffle: Whether to shuffle, alike in all processes.
        seed: Of the order; the same in every process.
        drop_last: Whether samples that do not divide are left out; by default some are repeated, so
            that all processes take as many steps.
    """

    def __init__(
        self, dataset: Sized, *, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> None:
        super().__init__(
            dataset,  # type: ignore[arg-type]  # torch asks for a Dataset and uses its length only
            num_replicas=size(),
            rank=rank(),
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
        )
