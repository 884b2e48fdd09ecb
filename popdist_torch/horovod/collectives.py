"""Horovod's collectives inside a loss: their gradients are those of the mean loss of all ranks.

The ranks of a job minimise the mean of their losses, as the distributed optimizer averages
gradients. A rank's tensor may count in the losses of all ranks, as where each compares its rows
with the gathered rows of all. Then its gradient is the sum of what all ranks have for it.
Horovod's own backward passes have other factors: that of ``allgather`` and ``broadcast`` is the
average in place of the sum, that of ``reducescatter`` is larger by the number of ranks. So a loss
of gathered rows trains with gradients that are too small, and beside other terms with wrong ones.

Values are Horovod's own, and so are calls with tensors that need no gradient. In a process that no
launcher started, tensors are those of all processes already.
"""

from __future__ import annotations

import functools
import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.errors import PlainLoopError
from popdist_torch.horovod.world import connected, require_root

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Tensors = Sequence[torch.Tensor]


class _Call:
    """One call of a collective.

    Args:
        name: Of Horovod's function.
        given: The arguments by the function's own names.
    """

    def __init__(self, name: str, given: inspect.BoundArguments) -> None:
        self.horovod: Any = import_module("horovod.torch")
        self.in_place = name.endswith("_")
        self.grouped = name.startswith("grouped_")
        self.kind = name.strip("_").removeprefix("grouped_")
        self._run = getattr(self.horovod, name)
        self._given = given
        self._place = "tensors" if self.grouped else "tensor"
        self.received: Any = None  # rows that an alltoall brought from each rank

    @property
    def settings(self) -> dict[str, Any]:
        """All arguments but the tensors."""
        return {k: v for k, v in self._given.arguments.items() if k != self._place}

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors that the program gave."""
        given = self._given.arguments[self._place]
        return [*given] if self.grouped else [given]

    def require_valid(self) -> None:
        """Checks the arguments as a job of several processes does.

        Raises:
            PlainLoopError: There is no such operation or process, or the splits do not fit.
            ValueError: Horovod cannot send such a tensor.
        """
        settings = self.settings
        if settings.get("op") not in (None, *_operations(self.horovod).values()):
            raise PlainLoopError(
                "PD352",
                "op is none of Horovod's operations",
                value=repr(settings["op"]),
                accepted=", ".join(f"hvd.{name}" for name in _operations(self.horovod)),
            )
        if "root_rank" in settings:
            require_root(settings["root_rank"])
        splits = settings.get("splits")
        if splits is not None:
            wanted, held = sum(map(int, splits)), sum(self.tensors[0].shape[:1])
            if wanted > held:
                raise PlainLoopError(
                    "PD352",
                    "splits has more rows than the tensor",
                    value=f"{wanted} rows in splits, {held} in the tensor",
                )
        operations: Any = import_module("horovod.torch.mpi_ops")
        prefix = "_grouped_" if self.grouped else "_"
        factory = getattr(operations, f"{prefix}{self.kind}_function_factory")
        for tensor in self.tensors:
            operations._check_function(factory, tensor.contiguous())  # noqa: SLF001 - as its calls

    def run(self, tensors: Tensors) -> list[torch.Tensor]:
        """The results for some tensors, which have no graph."""
        if self.kind == "alltoall":
            settings = self.settings
            handle = self.horovod.alltoall_async(*tensors, **settings)
            result, self.received = self.horovod.synchronize(handle)
            return [result] if settings["splits"] is None else [result, self.received]
        given = tensors if self.grouped else tensors[0]
        results = self._run(**{self._place: given}, **self.settings)
        return [*results] if self.grouped else [results]

    def again(self, kind: str, tensors: Tensors, **settings: Any) -> list[torch.Tensor]:
        """Calls a collective of the same processes; its gradients are right as well."""
        settings["process_set"] = self.settings["process_set"]
        if self.grouped:
            return [*differentiable(f"grouped_{kind}")([*tensors], **settings)]
        return [differentiable(kind)(tensors[0], **settings)]


def _of_allreduce(call: _Call, gradients: Tensors) -> Tensors:
    """Each rank's tensor counts in the result of every rank, as often as in its own."""
    settings, horovod = call.settings, call.horovod
    op = settings["op"]
    if op is None:
        op = horovod.Sum if settings["average"] is False else horovod.Average
    if op not in (horovod.Sum, horovod.Average):
        raise PlainLoopError(
            "PD308",
            "a loss depends on a reduction that has no gradient here",
            value=f"hvd.{call.kind}(op={_name_of(op, horovod)})",
            accepted="Average or Sum",
            hint="call it with tensor.detach()",
        )
    factors = {name: settings[name] for name in ("prescale_factor", "postscale_factor")}
    return call.again("allreduce", gradients, op=op, **factors)


def _of_allgather(call: _Call, gradients: Tensors) -> Tensors:
    """A rank's rows are in the result of every rank: the sum, and of that the own rows."""
    processes = call.settings["process_set"]
    mine = torch.tensor([[len(tensor) for tensor in call.tensors]])
    rows = call.horovod.allgather(mine, process_set=processes)
    before = rows[: processes.rank()].sum(0).tolist()
    sums = call.again("allreduce", gradients, op=call.horovod.Sum)
    return [
        total.narrow(0, start, count)
        for total, start, count in zip(sums, before, mine[0].tolist(), strict=True)
    ]


def _of_broadcast(call: _Call, gradients: Tensors) -> Tensors:
    """The root's tensor is the result of every rank; those of the others are in none."""
    [total] = call.again("allreduce", gradients, op=call.horovod.Sum)
    return [total if call.horovod.rank() == call.settings["root_rank"] else total * 0]


def _of_alltoall(call: _Call, gradients: Tensors) -> Tensors:
    """Each row went to one rank, and its gradient comes back from there."""
    settings = {"splits": call.received, "process_set": call.settings["process_set"]}
    return [differentiable("alltoall")(gradients[0], **settings)[0]]


def _of_reducescatter(call: _Call, gradients: Tensors) -> Tensors:
    """A row of every rank's tensor is in the result of one rank."""
    settings = call.settings
    factor = settings["prescale_factor"] * settings["postscale_factor"]
    if settings["op"] == call.horovod.Average:
        factor /= settings["process_set"].size()
    return [gradient * factor for gradient in call.again("allgather", gradients)]


_ADJOINTS: dict[str, Callable[[_Call, Tensors], Tensors]] = {
    "allgather": _of_allgather,
    "allreduce": _of_allreduce,
    "alltoall": _of_alltoall,
    "broadcast": _of_broadcast,
    "reducescatter": _of_reducescatter,
}

NAMES = frozenset(
    {
        *_ADJOINTS,
        *("grouped_allgather", "grouped_allreduce", "grouped_reducescatter"),
        *("allreduce_", "broadcast_", "grouped_allreduce_"),
    }
)
"""Functions of Horovod whose gradients are made here."""


class _Collective(torch.autograd.Function):
    """A collective as an operation of autograd."""

    @staticmethod
    def forward(context: Any, call: _Call, *tensors: torch.Tensor) -> Any:
        context.call = call
        values = [tensor.detach() for tensor in tensors]
        if call.in_place:
            call.run(values)
            context.mark_dirty(*tensors)
            return tensors
        results = call.run([value.contiguous() for value in values])
        context.mark_non_differentiable(*(r for r in results if r is call.received))
        return tuple(results)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        call = context.call
        whole = [gradient.contiguous() for gradient in gradients[: len(call.tensors)]]
        return None, *_ADJOINTS[call.kind](call, whole)


@functools.cache
def differentiable(name: str) -> Callable[..., Any]:
    """One of Horovod's functions, whose gradient is that of the mean loss of all ranks.

    Args:
        name: One of `NAMES`.

    Returns:
        A function that takes and returns what Horovod's does.
    """
    plain = getattr(import_module("horovod.torch"), name)
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def collective(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        call = _Call(name, given)
        here = connected()
        call.require_valid()
        if here is None and not call.horovod.is_initialized():
            return _alone(call)
        if not torch.is_grad_enabled() or not _needs_gradient(call):
            return plain(*args, **kwargs)
        results = _Collective.apply(call, *call.tensors)  # type: ignore[no-untyped-call]
        if call.grouped:
            return list(results)
        return results[0] if len(results) == 1 else results

    return collective


def _alone(call: _Call) -> Any:
    """The results in a process that no launcher started, where Horovod is not."""
    settings = call.settings
    factor = settings.get("prescale_factor", 1.0) * settings.get("postscale_factor", 1.0)
    if call.in_place:
        with torch.no_grad():
            results = [tensor.mul_(factor) for tensor in call.tensors]
    else:
        results = [tensor * factor if factor != 1 else tensor.clone() for tensor in call.tensors]
    if call.grouped:
        return results
    return results[0] if settings.get("splits") is None else (results[0], settings["splits"])


def _needs_gradient(call: _Call) -> bool:
    """Whether a gradient flows back; leaves that change in place have no graph, as in torch."""
    trained = [tensor for tensor in call.tensors if getattr(tensor, "requires_grad", False)]
    return bool(trained) and not (call.in_place and any(tensor.is_leaf for tensor in trained))


def _operations(horovod: Any) -> dict[str, int]:
    names = ("Average", "Sum", "Adasum", "Min", "Max", "Product")
    return {name: getattr(horovod, name) for name in names}


def _name_of(op: Any, horovod: Any) -> str:
    return next((name for name, known in _operations(horovod).items() if known == op), str(op))
