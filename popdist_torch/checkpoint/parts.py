"""The state of each kind of object in a checkpoint, and its exchange between instances.

Some state is saved once for the job, other state once for each instance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import nn

from popdist import backend
from popdist_torch.checkpoint import file
from popdist_torch.data.loader import DataLoader
from popdist_torch.errors import CheckpointError
from popdist_torch.executor.executor import Executor
from popdist_torch.executor.training import TrainingExecutor
from popdist_torch.optim.device import FACTOR
from popdist_torch.rounds import ROUNDS, Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from popdist_torch.data.partition import Layout


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


def load(part: Any, for_all: Any, each: list[Any], move: Move) -> None:
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
        part.load_state_dict({**for_all, **each[move.owner]})
    elif isinstance(part, torch.optim.Optimizer):
        load_optimizer(part, for_all)
    elif isinstance(part, DataLoader) and move.layout is not None:
        part.load_state_dict(_moved_position(each, move, move.layout))
    else:
        part.load_state_dict(each[move.owner])


def require_same_kind(name: str, part: Any, for_all: Any) -> None:
    """Checks that a saved state is of the kind of the object that takes it.

    Raises:
        CheckpointError: It is of another kind, such as a module where a training model is resumed.
    """
    seen, wanted = _kind_of_state(for_all), _kind_of(part)
    if seen != wanted:
        raise CheckpointError(
            "PD307",
            f"{name} in the checkpoint is the state of another kind of object",
            value=seen,
            accepted=wanted,
            hint="give Checkpoint the same objects as in the program that saved it; "
            "read()['shared'] has the saved states",
        )


def _kind_of(part: Any) -> str:
    if isinstance(part, TrainingExecutor):
        return "a training model"
    if isinstance(part, nn.Module):
        return "a module"
    return "an optimizer" if isinstance(part, torch.optim.Optimizer) else "another object"


def _kind_of_state(for_all: Any) -> str:
    if for_all is None:
        return "another object"
    if {"module", "optimizer"} <= for_all.keys():
        return "a training model"
    return "an optimizer" if {"state", "param_groups"} <= for_all.keys() else "a module"


@dataclass(frozen=True)
class Move:
    """From which of the instances that saved a checkpoint an instance takes its state.

    Attributes:
        owner: The instance that had the first replica of this one.
        offset: How many replicas of the owner come before that replica.
        layout: First replica and number of replicas of each instance that saved; None where the
            present layout is the same.
    """

    owner: int
    offset: int = 0
    layout: Layout | None = None

    @classmethod
    def between(cls, past: Layout, present: Layout, index: int) -> Move:
        """The move of instance ``index`` between two layouts of the same replicas."""
        if past == present:
            return cls(index)
        first = present[index][0]
        owner = next(n for n, place in enumerate(past) if place[0] <= first < sum(place))
        return cls(owner, first - past[owner][0], past)


def place_of(part: Any) -> list[int] | None:
    """The first replica and the number of replicas of this instance; None where unknown."""
    if isinstance(part, Executor | DataLoader):
        here = part.options.placement
        return [here.first_replica, here.local_replicas]
    return None


def require_movable(name: str, part: Any, each: list[Any]) -> None:
    """Checks that the state of each instance can be given to another number of instances.

    Raises:
        CheckpointError: It was an instance's own, and nothing says what another layout has of it.
    """
    if isinstance(part, TrainingExecutor | torch.optim.Optimizer):
        return
    if isinstance(part, DataLoader):
        places = {(state["epoch"], state["batch"]) for state in each}
        if len(places) == 1:
            return
        what = f"epoch and batch {sorted(places)}"
    elif all(file.equal(state, each[0]) for state in each):
        return
    else:
        what = "a state of its own on each instance"
    raise CheckpointError(
        "PD324",
        f"{name} cannot be resumed with another layout of instances",
        value=what,
        accepted="a training model, a loader at the same place everywhere, or one state for all",
        hint="resume in the layout that saved the checkpoint, or leave the object out of it",
    )


def _moved_position(each: list[Any], move: Move, layout: Layout) -> dict[str, Any]:
    states = [state["random"] for state in each]
    random = each[move.owner]["random"]
    if random is not None and all(state is not None for state in states):
        generators = [torch.tensor(state, dtype=torch.uint8) for state in states]
        random = file.moved_generator(generators, move.owner, move.offset).tolist()
    size = each[0]["place"][2]
    grouped = sum(local for _, local in layout) // size  # replicas that read the same rows
    places = [[first // grouped, local // grouped] for first, local in layout]
    return {**each[move.owner], "random": random, "layout": each[0]["layout"] or places}


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


def private(parts: dict[str, Any]) -> set[str]:
    """Paths of the tensors in `shared` that may differ between instances: buffers."""
    found: set[str] = set()
    for name, part in parts.items():
        if isinstance(part, TrainingExecutor):
            found |= {f"['{name}']['module']['{key}']" for key in _buffer_names(part.model)}
        elif isinstance(part, nn.Module):
            found |= {f"['{name}']['{key}']" for key in _buffer_names(part)}
    return found


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


# Exchange of states between instances.


Result = TypeVar("Result")

_PIECE = 64 << 20
"""Bytes that travel at once; Horovod counts elements in 32 bits."""


@dataclass(frozen=True)
class Instances:
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
    def connected(cls, processes: int | None) -> Instances:
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

        Raises:
            CheckpointError: Others did something else.
        """
        if self.horovod is not None:
            ROUNDS.meet(Call(call, "", CheckpointError), self.horovod)

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
        raise _elsewhere(0, failure)

    def on_each(self, function: Callable[[], Result]) -> Result:
        """Calls a function on every instance; all must call this.

        Raises:
            CheckpointError: The function raised it on some instance; then all instances raise it.
        """
        result, failure = None, b""
        try:
            result = function()
        except CheckpointError as error:
            failure, raised = str(error).encode(), error
        failures = self.gathered(failure)
        if failure:
            raise raised
        for index, failed in enumerate(failures):
            if failed:
                raise _elsewhere(index, failed)
        return cast("Result", result)

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


def _elsewhere(instance: int, text: bytes) -> CheckpointError:
    """The error of another instance, with the same code."""
    code, rest = text.decode().removeprefix("[").split("] ", 1)
    return CheckpointError(code, f"instance {instance} failed: {rest}")


def _tensor(content: bytes) -> torch.Tensor:
    return (
        torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if content
        else torch.empty(0, dtype=torch.uint8)
    )
