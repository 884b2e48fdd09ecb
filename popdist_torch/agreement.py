"""Facts that must be equal on all instances before they train together, and their comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from popdist.agreement import ABSENT, Disagreement, digest, disagreements, listed
from popdist.checks import is_enabled
from popdist.exchange import gather
from popdist_torch.checks import STATE
from popdist_torch.errors import AgreementError
from popdist_torch.memory import dense_parts
from popdist_torch.rounds import ROUNDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

    from popdist_torch.options import Options


def facts(module: nn.Module, options: Options, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """The settings, optimizer, divided data sets and parameters of a model before its first update.

    Each parameter has its shape, type and a digest of its values.
    """
    stated = {
        "option deviceIterations": str(options.device_iterations),
        "option gradientAccumulation": str(options.Training.gradient_accumulation),
        "option accumulationAndReplicationReductionType": (
            options.Training.accumulation_and_replication_reduction_type.name
        ),
        "replicas of the job": str(options.placement.total_replicas),
        **optimizer_facts(optimizer),
    }
    for index, fact in enumerate(options._data_facts):  # noqa: SLF001 - left by the loaders
        stated[_data(index)] = fact
    return stated | parameter_facts(module.named_parameters())


def optimizer_facts(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """The type of an optimizer and the settings of its groups, by name."""
    stated = {"optimizer": type(optimizer).__name__}
    for index, group in enumerate(optimizer.param_groups):
        stated |= {
            f"optimizer group {index}: {key}": str(value)
            for key, value in group.items()
            if isinstance(value, int | float | tuple | str)
        }
        stated[f"optimizer group {index}: parameters"] = str(len(group["params"]))
    return stated


def parameter_facts(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """Type, shape and a digest of the values of every parameter, by name."""
    stated = {}
    for name, parameter in named:
        stated[f"parameter {name}"] = f"{parameter.dtype} {list(parameter.shape)}"
        stated[f"values of {name}"] = _digest(parameter)
    return stated


def buffer_facts(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """A digest of the values of every buffer, by name."""
    return {f"buffer {name}": _digest(buffer) for name, buffer in named}


def state_facts(
    named: Iterable[tuple[str, torch.Tensor]], optimizer: torch.optim.Optimizer
) -> dict[str, str]:
    """A digest of the optimizer's state of every parameter, by name."""
    stated = {}
    for name, parameter in named:
        state = optimizer.state.get(parameter, {})
        parts = [
            f"{k}: {_digest(v) if isinstance(v, torch.Tensor) else v}" for k, v in state.items()
        ]
        stated[f"state of {name}"] = digest("; ".join(parts).encode())
    return stated


def due(updates: int) -> bool:
    """Whether weights are compared in any case: after 1, 8, 64, 512, ... updates."""
    power = updates > 0 and updates & (updates - 1) == 0
    return power and updates.bit_length() % 3 == 1


def require(stated: Mapping[str, str], horovod: Any, hint: str | None = None) -> None:
    """Compares facts over all instances; every instance must call it.

    Raises:
        AgreementError: Instances differ; raised on all of them.
    """
    ROUNDS.settle()
    # A loader that only some instances build (such as one for validation) is no contradiction.
    found = [row for row in disagreements(stated, gather(horovod)) if not _only_somewhere(row)]
    if not is_enabled(STATE):  # exchanges need equal shapes, settings and numbers of updates
        found = [row for row in found if not row.name.startswith(_VALUES)]
    if not found:
        return
    raise AgreementError(
        "PD007",
        f"the instances are about to train different things:{listed(found)}",
        hint=hint or _hint(found),
    )


_VALUES = ("values of ", "state of ", "buffer ")


def _data(index: int) -> str:
    return f"data set {index}"


def _only_somewhere(row: Disagreement) -> bool:
    return row.name.startswith("data set ") and ABSENT in row.values


def array_of(tensor: torch.Tensor) -> Any:
    """The bytes of a tensor's values, and of a sparse one's indices, as a numpy array."""
    parts = [
        part.cpu().contiguous().reshape(-1).view(torch.uint8)
        for part in dense_parts(tensor.detach())
    ]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).numpy()


def _digest(parameter: torch.Tensor) -> str:
    return digest(array_of(parameter).data)


def _hint(found: list[Disagreement]) -> str:
    if all(row.name.startswith("values of ") for row in found):
        return (
            "first weights are not shared by themselves: call options.randomSeed(n) right before "
            "the model is built, or popdist_torch.horovod.broadcast_parameters(model) after it is"
        )
    if all(row.name.startswith("data set ") for row in found):
        return (
            "divide the same data on every instance: random_split and shuffled indices need a "
            "generator with the same seed everywhere"
        )
    return "build the same model, options, optimizer and data set on every instance"
