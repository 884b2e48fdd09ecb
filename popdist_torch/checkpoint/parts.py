"""The state of each kind of object in a checkpoint, and its exchange between instances.

Some state is saved once for the job, other state once for each instance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from popdist import backend
from popdist_torch.errors import CheckpointError
from popdist_torch.executor.training import TrainingExecutor
from popdist_torch.optim.device import FACTOR

if TYPE_CHECKING:
    from collections.abc import Callable


def shared(part: Any) -> Any:
    """The state that is equal on all instances and may be large; None where there is none."""
    if isinstance(part, TrainingExecutor):
        return {
            "module": part.state_dict(),
            "optimizer": part.optimizer.state_dict(),
            "loss_scaling": getattr(part.optimizer, "loss_scaling", None),
            FACTOR: getattr(part.optimizer, FACTOR, None),
        }
    if isinstance(part, nn.Module | torch.optim.Optimizer):
        return part.state_dict()
    return None


def own(part: Any) -> Any:
    """The state that may differ between instances."""
    if isinstance(part, TrainingExecutor):
        return part.replica_state()
    if isinstance(part, nn.Module):
        return {name: part.state_dict()[name] for name in _buffer_names(part)}
    if isinstance(part, torch.optim.Optimizer):
        return None
    return part.state_dict()


def load(part: Any, for_all: Any, each: list[Any], index: int) -> None:
    """Restores an object from the result of `shared` and those of `own` on each instance."""
    if isinstance(part, TrainingExecutor):
        part.load_state_dict(for_all["module"])
        if for_all.get(FACTOR) is not None:  # older files lack it
            setattr(part.optimizer, FACTOR, for_all[FACTOR])
        part.load_optimizer_state(lambda: load_optimizer(part.optimizer, for_all["optimizer"]))
        if for_all["loss_scaling"] is not None:
            part.optimizer.loss_scaling = for_all["loss_scaling"]  # type: ignore[attr-defined]
        part.load_replica_state([row for state in each for row in state])
    elif isinstance(part, nn.Module):
        part.load_state_dict({**for_all, **each[index]})
    elif isinstance(part, torch.optim.Optimizer):
        load_optimizer(part, for_all)
    else:
        part.load_state_dict(each[index])


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Loads an optimizer's state with the types that it was saved with.

    Torch converts loaded state to the parameter's type, which would round wider accumulators.
    """
    optimizer.load_state_dict(state)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, values in state["state"].items():
        loaded = optimizer.state[parameters[index]]
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and loaded[name].dtype != value.dtype:
                loaded[name] = value.clone().to(loaded[name].device)


def require_parts(parts: dict[str, Any]) -> None:
    """Checks that everything in a checkpoint can be saved and loaded.

    Raises:
        CheckpointError: Something has no ``state_dict`` or ``load_state_dict``.
    """
    for name, part in parts.items():
        if not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
            raise CheckpointError(
                "PD307",
                f"{name} cannot be part of a checkpoint",
                value=type(part).__name__,
                accepted="objects with state_dict() and load_state_dict(); numbers and text go to "
                "save(...)",
            )


def _buffer_names(module: nn.Module) -> list[str]:
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return [name for name in module.state_dict() if name not in parameters]


# Exchange of states between instances; only instance 0 reads and writes the file.


Result = TypeVar("Result")

_PIECE = 64 << 20
"""Bytes that travel at once; Horovod counts elements in 32 bits."""


@dataclass(frozen=True)
class Job:
    """The instances that save and load together.

    Attributes:
        index: This one's index.
        count: How many there are.
        horovod: The module ``horovod.torch``, initialised; None for a job of one.
    """

    index: int = 0
    count: int = 1
    horovod: Any = None

    @classmethod
    def joined(cls, processes: int | None) -> Job:
        """The job of this process; ``processes`` is None where no options give their number.

        Raises:
            BackendError: No usable Horovod is installed, or it sees another job.
        """
        if processes == 1:
            return cls()
        horovod = backend.connect("torch", processes)
        if horovod is None:
            return cls()
        return cls(int(horovod.rank()), int(horovod.size()), horovod)

    def meet(self, call: str) -> None:
        """Waits until all instances make the same call.

        Horovod's ``join`` does not let an instance that continues to train wait forever: its
        exchange ends without this instance, and it detects that.

        Raises:
            CheckpointError: Others did something else.
        """
        if self.horovod is None:
            return
        try:
            self.horovod.join()
        except RuntimeError as error:
            raise CheckpointError(
                "PD323",
                f"{call} was called on this instance, and others did something else",
                value=str(error).splitlines()[0] if str(error) else type(error).__name__,
                hint="call it on all instances (no `if rank == 0`); instance 0 alone touches the "
                "file",
            ) from error

    def gathered(self, content: bytes) -> list[bytes]:
        """The content of every instance, one entry each; all must call it."""
        if self.horovod is None:
            return [content]
        sizes = self.horovod.allgather(torch.tensor([len(content)]), name="popdist.state.sizes")
        joined = self.horovod.allgather(_tensor(content), name="popdist.state.gathered")
        return [part.numpy().tobytes() for part in torch.split(joined, sizes.tolist())]

    def on_first(self, function: Callable[[], Result]) -> Result | None:
        """Calls a function on instance 0 alone; all must call this. The others get None.

        Raises:
            CheckpointError: The function raised it on instance 0; then all instances raise it.
        """
        result, failure = None, b""
        if self.index == 0:
            try:
                result = function()
            except CheckpointError as error:
                failure, raised = str(error).encode(), error
        failure = self.from_first(failure)
        if not failure:
            return result
        if self.index == 0:
            raise raised
        raise CheckpointError("PD307", "instance 0 failed", value=failure.decode())

    def from_first(self, content: bytes) -> bytes:
        """Instance 0's bytes; all must call it, and the others' content is ignored."""
        return self.from_one(content, 0)

    def from_one(self, content: bytes, root: int) -> bytes:
        """The bytes of instance ``root``; all must call it, and the others' content is ignored."""
        if self.horovod is None:
            return content
        size = self.horovod.broadcast(torch.tensor([len(content)]), root, name="popdist.state.size")
        here = self.index == root
        whole = _tensor(content) if here else torch.empty(int(size), dtype=torch.uint8)
        for piece in torch.split(whole, _PIECE):
            self.horovod.broadcast_(piece, root, name="popdist.state.piece")
        return content if here else whole.numpy().tobytes()


def _tensor(content: bytes) -> torch.Tensor:
    return (
        torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if content
        else torch.empty(0, dtype=torch.uint8)
    )
