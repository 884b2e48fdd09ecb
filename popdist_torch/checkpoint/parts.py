"""What a checkpoint keeps of each kind of object: once for the job, or once an instance."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from popdist_torch.errors import CheckpointError
from popdist_torch.executor.training import TrainingExecutor
from popdist_torch.optim.device import FACTOR


def shared(part: Any) -> Any:
    """What is equal on all instances and may be large.

    Args:
        part: A training model, a module, an optimizer, or anything with ``state_dict``.

    Returns:
        Its state; None where everything is the instance's own.
    """
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
    """What may differ between instances.

    Args:
        part: As for `shared`.

    Returns:
        Its state.
    """
    if isinstance(part, TrainingExecutor):
        return part.replica_state()
    if isinstance(part, nn.Module):
        return {name: part.state_dict()[name] for name in _buffer_names(part)}
    if isinstance(part, torch.optim.Optimizer):
        return None
    return part.state_dict()


def load(part: Any, for_all: Any, each: list[Any], index: int) -> None:
    """Brings an object to a state.

    Args:
        part: As for `shared`.
        for_all: What `shared` returned.
        each: What `own` returned on each instance.
        index: Which instance this is.
    """
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

    Torch converts what it loads to the type of the parameter, which would round accumulators that
    are kept in a wider one.

    Args:
        optimizer: The optimizer.
        state: What its ``state_dict`` returned.
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

    Args:
        parts: What is to be kept, by name.

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
