"""A warning for losses that are means over other numbers of elements on each process.

The processes of a job average their gradients, so each of their losses counts as much as any other.
Where a loss is a mean over what a batch happens to have, as without padding (``ignore_index``), by
class weights, over a mask, or over fewer rows, an element counts more on a process that has fewer.
One process with all rows would divide the sum over all elements by their number. The first
backward passes are checked: their graphs say what losses are divided by.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch

from popdist_torch.embeddings import require_none_in_graph
from popdist_torch.errors import PlainLoopError
from popdist_torch.executor.compiled import keep_from_dynamo

if TYPE_CHECKING:
    from collections.abc import Iterable

logger = logging.getLogger("popdist.torch")

_EXCHANGES = 8
"""Exchanges of an optimizer that are checked."""

_NODES = 64
_LOSSES = 8
_MEAN = 1  # torch's number of reduction="mean"
_TOLERANCE = 1e-9


class Divisors:
    """What the losses of backward passes are divided by, in this process.

    Attributes:
        wanted: Who compares them; while any does, backward passes are checked.
    """

    def __init__(self) -> None:
        self.wanted: WeakSet[LossMeans] = WeakSet()
        self._seen: list[float] | None = None
        self._started = False
        self._graphs = 0  # that are checked still

    def start(self) -> None:
        """Checks the next graphs, and wraps what all backward passes call, once."""
        self._graphs = _EXCHANGES
        engine: Any = torch.autograd
        if self._started or not hasattr(engine, "_engine_run_backward"):
            return
        self._started = True
        run = engine._engine_run_backward  # noqa: SLF001 - no public hook sees all

        def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            # Gradients inside of torch.func's transforms, and of compilers, are a program's own.
            inner = torch._C._functorch.peek_interpreter_stack() is not None  # noqa: SLF001 - torch's own test
            if self._graphs and not inner:
                self._graphs -= 1
                require_none_in_graph(outputs)
            if self.wanted and not inner:
                self._seen = _divisors(outputs) or self._seen
            return run(outputs, *args, **kwargs)

        keep_from_dynamo(run_backward)
        engine._engine_run_backward = run_backward  # noqa: SLF001 - as above

    def take(self) -> list[float] | None:
        """The divisors of the passes since the last call."""
        seen, self._seen = self._seen, None
        return seen


DIVISORS = Divisors()


class LossMeans:
    """Compares the divisors of one optimizer's losses, in its first exchanges.

    Args:
        horovod: The module ``horovod.torch``, initialised.
        label: Prefix for the names of exchanged tensors; equal on all processes.
    """

    def __init__(self, horovod: Any, label: str) -> None:
        self._horovod = horovod
        self._name = f"{label}: divisors of losses"
        self._left = _EXCHANGES
        DIVISORS.wanted.add(self)

    def compare(self) -> None:
        """Warns, once and on the first process, where processes divide by other numbers.

        All processes must call it.
        """
        if not self._left:
            return
        self._left -= 1
        seen = DIVISORS.take()
        mine = _filled(seen or [])
        said = [float(seen is not None), *mine, *(value**2 for value in mine)]
        size = int(self._horovod.size())
        present, *sums = self._horovod.allreduce(
            torch.tensor(said, dtype=torch.float64), op=self._horovod.Sum, name=self._name
        ).tolist()
        if present == size and _places_that_differ(size, sums):
            self._left = 0
            if self._horovod.rank() == 0:
                self._warn(mine, sums, size)
        if not self._left:
            DIVISORS.wanted.discard(self)

    def _warn(self, mine: list[float], sums: list[float], size: int) -> None:
        seen = [
            f"{value:g} on this process, {total / size:g} on average"
            for value, total in zip(mine, sums, strict=False)
            if abs(value * size - total) > _TOLERANCE * total
        ]
        logger.warning(
            "%s",
            PlainLoopError(
                "PD335",
                "a loss is a mean over another number of elements on each process, and each "
                "process counts as much: an element counts less where there are more",
                value=seen[0] if seen else "other numbers on other processes",
                hint="divide the sum by the mean number of all processes, such as "
                "cross_entropy(scores, y, reduction='sum') / hvd.allreduce(count); ignore the "
                "warning where processes are meant to count alike",
            ),
        )


class MicroBatchMeans:
    """Compares the divisors of a training model's losses, in its first updates.

    Args:
        horovod: The module ``horovod.torch``, initialised; None for a job of one instance.
        label: Prefix for the names of exchanged tensors; equal on all instances.
    """

    def __init__(self, horovod: Any, label: str) -> None:
        self._horovod = horovod
        self._name = f"{label}: divisors of losses"
        self._left = _EXCHANGES
        self._seen: list[list[float]] = []

    def note(self, loss: torch.Tensor) -> None:
        """Reads the divisors of one micro-batch's loss."""
        if self._left:
            self._seen.append(_divisors([loss]))

    def compare(self) -> None:
        """Warns, once and on the first instance, where micro-batches divide by other numbers.

        All instances must call it, after each update.
        """
        if not self._left:
            return
        self._left -= 1
        seen, self._seen = self._seen, []
        rows = [_filled(row) for row in seen]
        table = torch.tensor(rows, dtype=torch.float64).view(-1, _LOSSES)
        present = float(sum(map(bool, seen)))
        numbers = torch.tensor([len(seen), present], dtype=torch.float64)
        sums = torch.cat([numbers, table.sum(0), table.square().sum(0)])
        if self._horovod is not None:
            sums = self._horovod.allreduce(sums, op=self._horovod.Sum, name=self._name)
        count, with_means, *parts = sums.tolist()
        differing = _places_that_differ(count, parts)
        if with_means < count or not differing:
            return
        self._left = 0
        if self._horovod is None or self._horovod.rank() == 0:
            self._warn([row[differing[0]] for row in rows], parts[differing[0]] / count)

    def _warn(self, mine: list[float], mean: float) -> None:
        logger.warning(
            "%s",
            PlainLoopError(
                "PD335",
                "a loss is a mean over another number of elements in each micro-batch, and each "
                "replica's micro-batch counts as much: an element counts less where there are more",
                value=f"{', '.join(f'{value:g}' for value in mine[:_LOSSES])} in micro-batches "
                f"here, {mean:g} on average",
                hint="divide the sum by a number that is the same for all, such as "
                "identity_loss(cross_entropy(scores, y, reduction='sum') / number, 'none'); "
                "ignore the warning where micro-batches are meant to count alike",
            ),
        )


def _filled(divisors: list[float]) -> list[float]:
    """The divisors of as many losses as are exchanged."""
    return divisors[:_LOSSES] + [0.0] * (_LOSSES - len(divisors))


def _places_that_differ(count: float, sums: list[float]) -> list[int]:
    """The losses that are not divided by one number everywhere, by sums of numbers and squares."""
    both = zip(sums[:_LOSSES], sums[_LOSSES:], strict=True)
    return [
        place
        for place, (total, squares) in enumerate(both)
        if count * squares - total**2 > _TOLERANCE * total**2
    ]


def _divisors(outputs: Iterable[Any]) -> list[float]:
    """The divisors of the losses nearest to the roots of a backward pass."""
    found: list[float] = []
    pending = [node for node in (getattr(o, "grad_fn", None) for o in outputs) if node is not None]
    seen = set(pending)
    for node in pending:
        divisor = _divisor(node)
        if divisor is not None:
            found.append(divisor)
            continue
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen and len(seen) < _NODES:
                seen.add(parent)
                pending.append(parent)
    return found


def _divisor(node: Any) -> float | None:
    """What a node of a graph divides a sum by, if it is a loss."""
    name = node.name()
    if name == "MeanBackward0":
        return float(node._saved_self_sym_numel)  # noqa: SLF001 - no public name
    if getattr(node, "_saved_reduction", None) == _MEAN:
        weight = _saved(node, "total_weight")
        rows = _saved(node, "self") if weight is None else None
        return float(weight) if weight is not None else rows.numel() if rows is not None else None
    if name == "DivBackward0" and node.next_functions[1][0] is None:
        other = _saved(node, "other")
        if other is not None and other.numel() == 1 and float(other).is_integer():
            return float(other)
    return None


def _saved(node: Any, name: str) -> torch.Tensor | None:
    """A tensor that a node has saved; None where reading it would compute it again.

    A checkpoint computes what a node has saved once, in the backward pass. Such tensors have hooks,
    and torch accepts no others for them.
    """
    raw = getattr(node, f"_raw_saved_{name}", None)
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    try:
        if raw is not None:
            raw.register_hooks(keep, _same)
    except RuntimeError:
        return None
    return kept[0] if kept else None


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
