"""Warnings for programs of several processes that train without exchanging gradients.

A program that was started with others, and updates weights by itself, ends with other weights on
each process, without an error. Before its first step, each optimizer of torch is checked (PD327).
Updates by hand, as ``weight -= rate * weight.grad``, go through no optimizer. So the leaves of the
first backward passes are compared: values that change from pass to pass are updates (PD333).
"""

from __future__ import annotations

import gc
import logging
import sys
from contextlib import contextmanager, suppress
from operator import and_
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from popdist.backend import launch
from popdist.checks import is_enabled
from popdist.checks.passes import is_local, local
from popdist.checks.plain_torch import SHARDED
from popdist.errors import PopdistError
from popdist_torch import checks
from popdist_torch.errors import PlainLoopError
from popdist_torch.executor.compiled import keep_from_dynamo
from popdist_torch.executor.weights import a_model_runs
from popdist_torch.parameter_hooks import of_popdist

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType

logger = logging.getLogger("popdist.torch")

_PASSES = 64
"""Backward passes that are looked at."""

_LEAVES = 64
_ELEMENTS = 256
"""First elements of a leaf that are compared."""

_others: WeakSet[Any] = WeakSet()
"""Optimizers that were looked at."""

_is_traced = getattr(torch.compiler, "is_compiling", bool)  # torch 2.2 has none

_watching = False


def watch(rank: int) -> None:
    """Warns of updates without an exchange, on the first process; a second call does nothing.

    Args:
        rank: The index of this process.
    """
    global _watching  # noqa: PLW0603 - torch has one list of hooks for all optimizers
    if not _watching and rank == 0:
        _watching = True
        register_optimizer_step_pre_hook(_say_if_alone)
        BY_HAND.start()


def watch_if_launched() -> None:
    """Does the same where a launcher has started several processes, before Horovod starts."""
    with suppress(PopdistError):  # variables of no job are named where they are needed
        here = launch()
        if (here.size or 1) > 1 and here.rank is not None:
            watch(here.rank)


@contextmanager
def local_training() -> Iterator[None]:
    """Says that what is trained inside is for this process alone.

    A plain loop that updates weights without an exchange is warned of (PD327, PD333), as its
    processes would end with unequal weights. In this context it is not: for a model that only one
    process uses, such as a comparison or a probe.

    Yields:
        None.

    Example:
        ::

            if popdist.getInstanceIndex() == 0:
                with popdist_torch.local_training():
                    train(probe)
    """
    with local():
        yield


def _say_if_alone(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    summed = BY_HAND.summed()
    # Dynamo traces a step with copies of the parameters, which have no hooks.
    if _is_traced() or optimizer in _others or is_local() or not is_enabled(checks.EXCHANGE):
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    # A closure makes the gradients only after this.
    closure = kwargs.get("closure") or len(args) > 1
    trained = [
        p
        for p in parameters
        if isinstance(p, torch.Tensor) and p.requires_grad and (closure or p.grad is not None)
    ]
    if not trained:
        return
    _others.add(optimizer)
    BY_HAND.leave_out(parameters)
    # One of Horovod's own exchanges too.
    if hasattr(optimizer, "_allreduce_delay") or _exchanged(trained):
        return
    if not closure and has_zero_gradients(trained):
        _others.discard(optimizer)  # its next step is looked at
        return
    if summed >= sum(parameter.numel() for parameter in trained):
        return  # the program averages gradients by itself
    logger.warning(
        "%s",
        PlainLoopError(
            "PD327",
            "an optimizer updates weights without exchanging gradients: the weights differ between "
            "processes from now on",
            value=f"{type(optimizer).__name__} with {len(trained)} parameters, the first of shape "
            f"{list(trained[0].shape)}",
            hint="wrap it in popdist_torch.horovod.DistributedOptimizer; where a process trains "
            "what it alone uses, train in `with popdist_torch.local_training():`; ignore the "
            "warning where the program averages gradients itself",
        ),
    )


def has_zero_gradients(parameters: Iterable[torch.Tensor]) -> bool:
    """Whether some tensors have gradients, all of which are zero.

    Horovod's ``broadcast_optimizer_state`` makes such a step, before it wraps the optimizer, so
    that there is a state to broadcast. It trains nothing.
    """
    found = [p.grad for p in parameters if p.grad is not None]
    numbers = (grad.coalesce().values() if grad.is_sparse else grad for grad in found)
    return bool(found) and not any(bool(one.any()) for one in numbers)


def _exchanged(parameters: list[torch.Tensor]) -> bool:
    """Whether popdist or torch.distributed exchanges gradients of some parameters."""
    hooks = [p._post_accumulate_grad_hooks or {} for p in parameters]  # noqa: SLF001 - no public name
    shared = any(of_popdist(hook) for found in hooks for hook in found.values())
    return shared or a_model_runs() or _torch_reduces(parameters)


def _torch_reduces(parameters: list[torch.Tensor]) -> bool:
    """Whether torch.distributed exchanges the gradients, for DistributedDataParallel or FSDP."""
    torch_distributed: Any = sys.modules.get("torch.distributed")
    if torch_distributed is None or not torch_distributed.is_initialized():
        return False
    if any(hasattr(parameter, mark) for parameter in parameters for mark in SHARDED):
        return True
    wrappers = [
        found
        for found in gc.get_objects()
        if issubclass(type(found), torch.nn.parallel.DistributedDataParallel)
    ]
    reduced = {id(parameter) for wrapper in wrappers for parameter in wrapper.parameters()}
    return all(id(parameter) in reduced for parameter in parameters)


class _ByHand:
    """Looks at the first backward passes for leaves that the program changes by itself.

    A pass in which all leaves belong to optimizers, or are exchanged, ends it; and so does any sum
    over processes that the program asks for. From then on, such sums are counted.
    """

    def __init__(self) -> None:
        self._looks = False
        self._summed = 0
        self._passes = 0
        self._seen: dict[tuple[torch.Size, ...], list[_Leaf]] = {}
        self._left_out: set[int] = set()
        self._patched: list[tuple[Any, str, Any]] = []

    def start(self) -> None:
        """Wraps what all backward passes call."""
        run = getattr(torch.autograd, "_engine_run_backward", None)  # no public hook sees all
        if run is None or self._patched or not is_enabled(checks.BY_HAND):
            return
        self._passes = 0

        def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            self._look(outputs, args[3] if len(args) > 3 else ())  # noqa: PLR2004 - as torch calls it
            return run(outputs, *args, **kwargs)

        keep_from_dynamo(run_backward)
        self._patch(torch.autograd, "_engine_run_backward", run_backward)
        self._looks, self._summed = True, 0

    def _look_at_sums(self) -> None:
        """Counts what the program sums by Horovod, or by torch.distributed, from now on."""
        if len(self._patched) > 1:
            return
        operations: Any = sys.modules.get("horovod.torch.mpi_ops")
        if operations is not None:
            check = operations._check_function  # noqa: SLF001 - what all its operations call
            group = operations._grouped_allreduce_async  # noqa: SLF001 - calls it for one of them

            def checked(factory: Any, tensor: Any) -> Any:
                if not _called_by_popdist():
                    self._count(tensor)
                return check(factory, tensor)

            def grouped(tensors: Any, *args: Any, **kwargs: Any) -> Any:
                if not _called_by_popdist():
                    self._count(*tensors)
                return group(tensors, *args, **kwargs)

            self._patch(operations, "_check_function", checked)
            self._patch(operations, "_grouped_allreduce_async", grouped)
        torch_distributed: Any = sys.modules.get("torch.distributed")
        if torch_distributed is not None and torch_distributed.is_initialized():
            reduce = torch_distributed.all_reduce

            def reduced(tensor: Any, *args: Any, **kwargs: Any) -> Any:
                self._count(tensor)
                return reduce(tensor, *args, **kwargs)

            self._patch(torch_distributed, "all_reduce", reduced)

    def _count(self, *tensors: torch.Tensor) -> None:
        self._summed += sum(tensor.numel() for tensor in tensors)
        self._end_looks()

    def summed(self) -> int:
        """How many numbers the program has summed over processes since this was last asked."""
        found, self._summed = self._summed, 0
        return found

    def leave_out(self, parameters: Iterable[torch.Tensor]) -> None:
        """Takes parameters that an optimizer updates, which `_say_if_alone` looks at."""
        if self._looks:
            self._left_out.update(map(id, parameters))

    def _patch(self, module: Any, name: str, wrapper: Any) -> None:
        self._patched.append((module, name, getattr(module, name)))
        setattr(module, name, wrapper)

    def _stop(self) -> None:
        """Undoes all patches, unless something else has wrapped one again."""
        for module, name, original in self._patched:
            if getattr(getattr(module, name), "__module__", None) == __name__:
                setattr(module, name, original)
        self._patched = []
        self._seen = {}
        self._left_out = set()
        self._looks = False

    def _end_looks(self) -> None:
        """Looks at no more backward passes; what the program sums is still counted."""
        if self._looks:
            counts, self._patched = self._patched[1:], self._patched[:1]
            self._stop()
            self._patched = counts

    def _look(self, outputs: Any, inputs: Any) -> None:
        """Looks at one backward pass, before it runs."""
        if not self._looks or is_local():
            return
        self._passes += 1
        self._look_at_sums()
        try:
            leaves = [_unwrapped(leaf) for leaf in inputs or _leaves(outputs)][:_LEAVES]
            mine = [leaf for leaf in leaves if id(leaf) not in self._left_out]
            if not mine or _exchanged(mine):
                self._stop()
                return
            if _others_exchange():
                self._end_looks()
                return
            with torch._C._DisableFuncTorch():  # noqa: SLF001 - as torch.func does
                values = [*map(_Leaf, mine)]
        except Exception:  # noqa: BLE001 - tensors without values, as in tracing
            self._end_looks()
            return
        before = self._seen.get(key := tuple(leaf.shape for leaf in mine))
        self._seen[key] = values
        if before is not None and _changed(before, values):
            self._stop()
            self._say(mine)
        elif self._passes >= _PASSES:
            self._stop()

    def _say(self, leaves: list[torch.Tensor]) -> None:
        logger.warning(
            "%s",
            PlainLoopError(
                "PD333",
                "the program updates weights by hand, and exchanges no gradients: the weights "
                "differ between processes from now on",
                value=f"{len(leaves)} tensors, the first of shape {list(leaves[0].shape)}",
                hint="average gradients before the update, as by popdist_torch.horovod.allreduce"
                "(gradient), or use torch's optimizers with DistributedOptimizer; where a process "
                "trains what it alone uses, train in `with popdist_torch.local_training():`",
            ),
        )


class _Leaf:
    """A leaf of a backward pass, and its first values."""

    def __init__(self, leaf: torch.Tensor) -> None:
        self.leaf = ref(leaf)
        flat = leaf.detach().flatten()[:_ELEMENTS]
        self.values = flat.cpu().contiguous().view(torch.uint8).numpy().tobytes()


def _changed(before: list[_Leaf], now: list[_Leaf]) -> bool:
    """Whether leaves were updated: one in place, or all of several by new tensors."""
    other = [then.values != leaf.values for then, leaf in zip(before, now, strict=True)]
    same = [then.leaf() is leaf.leaf() for then, leaf in zip(before, now, strict=True)]
    return any(map(and_, other, same)) or (len(other) > 1 and all(other))


def _leaves(outputs: Iterable[Any]) -> list[torch.Tensor]:
    """The leaves that a backward pass of some tensors reaches."""
    found: list[torch.Tensor] = []
    pending = [getattr(output, "grad_fn", None) or output for output in outputs]
    seen = set(pending)
    while pending:
        node = pending.pop()
        leaf = node if isinstance(node, torch.Tensor) else getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
            continue
        for parent, _ in getattr(node, "next_functions", ()):
            if parent is not None and parent not in seen:
                seen.add(parent)
                pending.append(parent)
    return found


def _unwrapped(tensor: Any) -> torch.Tensor:
    """The tensor inside those of torch.func's transforms."""
    functorch = torch._C._functorch  # noqa: SLF001 - as torch.func does
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor  # type: ignore[no-any-return]


def _others_exchange() -> bool:
    """Whether the program may exchange gradients by other means than Horovod."""
    torch_distributed: Any = sys.modules.get("torch.distributed")
    started = torch_distributed is not None and torch_distributed.is_initialized()
    return started or "mpi4py.MPI" in sys.modules


def _called_by_popdist() -> bool:
    """Whether an operation of Horovod was asked for by popdist, not by the program."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - the cheapest way to look
    between = ("horovod.torch.mpi_ops", "torch.", "popdist_torch.horovod.collectives")
    while frame is not None and _module(frame).startswith(between):
        frame = frame.f_back
    return frame is not None and _module(frame).startswith("popdist")


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


BY_HAND = _ByHand()
"""What looks at the backward passes of this process."""
