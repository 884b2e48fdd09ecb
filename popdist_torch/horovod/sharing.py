"""One state for all processes of a plain loop: step 5 of Horovod's six; and averages of metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from popdist.agreement import disagreements, listed
from popdist.exchange import gather
from popdist_torch import agreement
from popdist_torch.checkpoint import file
from popdist_torch.checkpoint.parts import Instances, load_optimizer
from popdist_torch.errors import AgreementError, PlainLoopError
from popdist_torch.horovod.world import connected, require_root
from popdist_torch.rounds import ROUNDS, Call

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Named = Mapping[str, Any] | Iterable[tuple[str, Any]]

_MEASURED = (
    "the metrics would be those of several models: load the same weights on all processes, and "
    "choose the best epoch by averaged metrics"
)

_PIECE = 64 << 20
"""Bytes that travel at once."""


def broadcast_parameters(params: nn.Module | Named, root_rank: int = 0) -> None:
    """Gives all processes the tensors of one of them, in place.

    Any element type can be sent, also bfloat16 and bool, because values are sent as bytes.

    Args:
        params: A module (its parameters and buffers), a ``state_dict()``, or pairs of name and
            tensor; also an iterator such as ``model.named_parameters()``.
        root_rank: The process whose values are taken.

    Raises:
        AgreementError: The processes have other names, shapes or types (raised on all of them), or
            do not all call this.
        PlainLoopError: Something is not a tensor, or there is no process of this rank.
    """
    horovod = connected()
    require_root(root_rank)
    if horovod is not None:
        ROUNDS.meet(Call("broadcast_parameters"), horovod)
    if isinstance(params, nn.Module):
        params = params.state_dict()
    pairs: list[Any] = list(params.items() if hasattr(params, "items") else params)
    for pair in pairs:
        if not isinstance(pair, tuple):
            raise PlainLoopError(
                "PD308",
                "only tensors with names can be broadcast",
                value=type(pair).__name__,
                accepted="a module, its state_dict() or its named_parameters()",
            )
    stated = {name: _described(name, value) for name, value in pairs}
    if horovod is None:
        return
    _require_same(stated, horovod)
    handles = []
    waiting = []
    for name, value in pairs:
        tensor = value.detach()
        flat = tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
        for index, piece in enumerate(torch.split(flat, _PIECE)):
            label = f"popdist parameter {name}.{index}"
            handles.append(horovod.broadcast_async_(piece, root_rank, name=label))
        waiting.append((tensor, flat))
    for handle in handles:
        horovod.synchronize(handle)
    for tensor, flat in waiting:
        tensor.copy_(flat.view(tensor.dtype).view(tensor.shape))


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Gives all processes the state and the hyper-parameters of one process's optimizer.

    Args:
        optimizer: The optimizer, of the same type and over the same parameters on every process.
        root_rank: The process whose state is taken.

    Raises:
        AgreementError: The processes do not all call this.
        CheckpointError: The state holds something that is neither a tensor nor a plain value;
            raised on all processes.
        PlainLoopError: There is no process of this rank.
    """
    horovod = connected()
    require_root(root_rank)
    if horovod is None:
        return
    ROUNDS.meet(Call("broadcast_optimizer_state"), horovod)
    job = Instances(int(horovod.rank()), int(horovod.size()), horovod)
    here = job.index == root_rank
    mine = job.on_each(
        lambda: file.packed(optimizer.state_dict(), "the optimizer") if here else b""
    )
    state = file.unpacked(job.from_one(mine, root_rank))
    if not here:
        load_optimizer(optimizer, state)


def average_metrics(metrics: Mapping[str, float], weight: float = 1.0) -> dict[str, float]:
    """Averages numbers over all processes; all of them must call it.

    Args:
        metrics: Numbers by name; the same names everywhere.
        weight: How much this process's numbers count, such as its number of samples.

    Returns:
        The averages, the same on every process.

    Raises:
        AgreementError: The processes have other names or other weights of the model (raised on all
            of them), or do not all call this.
        PlainLoopError: The weights of all processes are zero, or a value is not a number.
    """
    horovod = connected()
    values = _numbers(metrics)
    total = torch.tensor([*(v * weight for v in values.values()), weight], dtype=torch.float64)
    if horovod is not None:
        ROUNDS.meet(Call("average_metrics"), horovod)
        _require_same({f"metric {index}": name for index, name in enumerate(values)}, horovod)
        total = _of_one_model(total, horovod)
    if not total[-1]:
        raise PlainLoopError("PD308", "metrics of no weight have no average", value=weight)
    return dict(zip(values, (total[:-1] / total[-1]).tolist(), strict=True))


def _numbers(metrics: Any) -> dict[str, float]:
    try:
        return {name: float(value) for name, value in metrics.items()}
    except (AttributeError, TypeError, ValueError):
        raise PlainLoopError(
            "PD308",
            "metrics are numbers by name",
            value=metrics,
            accepted='such as {"loss": 0.5}; of a tensor of several numbers, its mean',
        ) from None


def _of_one_model(own: torch.Tensor, horovod: Any) -> torch.Tensor:
    """The sums over all processes, whose models were not changed on some of them alone.

    A process that restores the weights of its own best epoch measures another model than others.
    """
    members = ROUNDS.members()
    present = [float(one is not None) for one in members]
    changed = [float(one is not None and one.has_changed()) for one in members]
    said = torch.tensor([*present, *changed], dtype=torch.float64)
    total = horovod.allreduce(torch.cat([said, own]), op=horovod.Sum, name="popdist metrics")
    present, changed = total[: len(said)].reshape(2, -1).tolist()
    size = horovod.size()
    for member, held, count in zip(members, present, changed, strict=True):
        # A change that all have made, such as to averaged weights, is compared by the next update.
        if member is not None and held == size and 0 < count < size:
            agreement.require(agreement.parameter_facts(member.weights()), horovod, _MEASURED)
    return cast("torch.Tensor", total[len(said) :])


def _described(name: str, value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        raise PlainLoopError(
            "PD308",
            f"{name} cannot be broadcast",
            value=type(value).__name__,
            accepted="tensors; broadcast_object sends anything else",
        )
    return f"{value.dtype} {list(value.shape)}"


def _require_same(stated: dict[str, str], horovod: Any) -> None:
    found = disagreements(stated, gather(horovod))
    if found:
        raise AgreementError(
            "PD007",
            f"the processes are about to share different things:{listed(found)}",
            hint="build the same model in every process",
        )
