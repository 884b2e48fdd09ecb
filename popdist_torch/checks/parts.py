"""The measurement of `popdist.checks.parts` in a `trainingModel`.

After updates 1, 8 and 64 the gradients of a micro-batch and of its halves are computed again, in
float64 where the model allows it, without dropout and with running statistics. Nothing is
exchanged, and everything that the passes change is put back: weights, gradients, buffers and random
numbers.

Some forward passes are not judged, and the log says why: those that draw random numbers of their
own (two seeds give two gradients), exchange something, take arguments that are not rows, or raise.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from popdist.checks import is_enabled
from popdist.checks.parts import (
    CAUSE,
    DOUBLE,
    FIXES,
    HALVES,
    SINGLE,
    UPDATES,
    Finding,
    Products,
    judge,
)
from popdist.checks.passes import NotJudgedError, random_states_kept
from popdist_torch.checks import PARTS
from popdist_torch.checks.quiet import Quiet, local_norms, seed_all, without_exchange
from popdist_torch.errors import LossError
from popdist_torch.executor.compiled import eagerly
from popdist_torch.executor.losses import LossWatch, final_loss
from popdist_torch.global_batch_hooks import enlarged
from popdist_torch.global_means import counting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from popdist_torch.executor.batching import Batching
    from popdist_torch.executor.inputs import Arguments
    from popdist_torch.executor.step import StepCheck, Training
    from popdist_torch.executor.weights import DeviceModel
    from popdist_torch.options.placement import Placement

logger = logging.getLogger("popdist.torch")

Gradients = list[torch.Tensor | None]

_FIXES = FIXES.format(
    global_mean="popdist_torch.global_mean(total, count)", gather="popdist_torch.horovod.allgather"
)


def checks_of(batching: Batching, here: Placement) -> list[StepCheck]:
    """The checks of one training model that its layout needs and its environment leaves on."""
    parts = batching.accumulation * here.total_replicas
    return [PartsProbe(warns=here.process_id == 0)] if parts > 1 and is_enabled(PARTS) else []


class PartsProbe:
    """Warns once of a loss that its replicas cannot compute in parts.

    Args:
        warns: Whether this process prints a finding; the others log it.
    """

    def __init__(self, *, warns: bool) -> None:
        self._level = logging.WARNING if warns else logging.INFO
        self._updates = 0
        self._found = False

    def after_update(self, training: Training, arguments: Arguments, iteration: int) -> None:
        """Measures a micro-batch of the update that was made."""
        self._updates += 1
        if self._found or self._updates not in UPDATES or not training.gradients.parameters:
            return
        try:
            finding = _measured(training, arguments, iteration)
        except Exception as error:  # noqa: BLE001 - anything that forward may raise for other rows
            logger.info("parts of a batch were not compared: %s: %s", type(error).__name__, error)
            return
        if finding is not None:
            self._found = True
            logger.log(
                self._level, "%s", LossError("PD335", CAUSE, value=finding.seen, hint=_FIXES)
            )


def _measured(training: Training, arguments: Arguments, iteration: int) -> Finding | None:
    """Compares gradients in float64, or in the model's own type where that fails."""
    leaves = _rows(training, arguments, iteration)
    model, streams = training.replicas.model, training.replicas.streams
    positions = streams.state
    try:
        with ExitStack() as put_back:
            put_back.enter_context(without_exchange())
            put_back.enter_context(random_states_kept())
            put_back.enter_context(training.replicas.running(0))
            put_back.enter_context(training.replicas.without_autocast())
            put_back.enter_context(local_norms(model.module.modules()))
            try:
                with _copies(model, torch.float64):
                    return _compared(training, arguments, leaves, DOUBLE)
            except NotJudgedError:
                raise
            except Exception:
                if any(p.dtype.itemsize < torch.float32.itemsize for p in model.weights.parameters):
                    raise
                with _copies(model, None):
                    return _compared(training, arguments, leaves, SINGLE)
    finally:
        streams.state = positions


def _rows(training: Training, arguments: Arguments, iteration: int) -> list[Any]:
    """The leaves of an even number of rows: of a micro-batch, or of two that have one row each.

    Raises:
        NotJudgedError: Tensors differ in their numbers of rows, or there is one row only.
    """
    batching = training.batching
    lengths = {len(v) for v in arguments.values if isinstance(v, torch.Tensor) and v.dim()}
    if len(lengths) != 1:
        raise NotJudgedError(f"tensors have {sorted(lengths)} rows")
    length = lengths.pop()
    size = length // batching.parts
    taken = max(size // 2 * 2, 2)
    start = min(batching.part(iteration, 0, 0) * size, length - taken)
    if start < 0:
        raise NotJudgedError("a call has one row")
    return [
        v.narrow(0, start, taken) if isinstance(v, torch.Tensor) and v.dim() else v
        for v in arguments.values
    ]


@contextmanager
def _copies(model: DeviceModel, dtype: torch.dtype | None) -> Iterator[None]:
    """Gives the model copies of its tensors, of a floating-point type; None for their own."""
    before = torch.get_default_dtype()
    # The module's own dictionaries: forward may assign new tensors.
    owners = [(part, dict(held)) for part, held in model.buffers.owned()]
    tensors = [*model.weights.parameters, *model.plain.tensors()]
    tensors += [tensor for _, held in owners for tensor in held.values() if tensor is not None]
    kept = [(t, t.data, t.grad) for t in dict.fromkeys(tensors)]
    try:
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - past the host's notice
            for tensor, data, _ in kept:
                tensor.grad = None
                wide = dtype is not None and data.is_floating_point()
                tensor.data = data.to(dtype) if wide and data.dtype != dtype else data.clone()
        if dtype is not None:
            torch.set_default_dtype(dtype)
        yield
    finally:
        torch.set_default_dtype(before)
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - as above
            for part, held in owners:
                part._buffers.clear()  # noqa: SLF001 - no public way
                part._buffers.update(held)  # noqa: SLF001 - as above
            for tensor, data, gradient in kept:
                tensor.grad = None
                tensor.data = data
                tensor.grad = gradient


def _compared(
    training: Training, arguments: Arguments, leaves: Sequence[Any], tolerance: float
) -> Finding | None:
    """Compares the halves of some rows with the whole.

    Raises:
        NotJudgedError: The gradients depend on random numbers.
    """

    def gradients(*starts: int, seed: int = 0) -> tuple[Gradients, float]:
        chosen = [_chosen(leaf, starts) for leaf in leaves]
        with enlarged(HALVES / len(starts)), counting() as counts:
            found = _gradients(training, arguments, chosen, seed)
        return found, counts[0] if counts else 1.0

    whole, _ = gradients(0, 1)
    again, _ = gradients(0, 1, seed=1)
    if judge(_products(training, whole, again), tolerance) is not None:
        raise NotJudgedError("forward draws random numbers")
    try:
        first, second = gradients(0), gradients(1)
    except Exception:  # noqa: BLE001 - the program may fix the number of rows
        first, second = gradients(0, 0), gradients(1, 1)
    # With `global_mean` a half counts as much as its number of elements.
    counts = first[1], second[1]
    mean = [_mean(*pair, counts) for pair in zip(first[0], second[0], strict=True)]
    return judge(_products(training, whole, mean), tolerance, any_factor=not training.averages)


def _chosen(leaf: Any, halves: Sequence[int]) -> Any:
    """Some halves of a tensor's rows, one after the other, in float64 where torch's default is."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    wide = leaf.is_floating_point() and torch.get_default_dtype() == torch.float64
    leaf = leaf.double() if wide else leaf
    if not leaf.dim():
        return leaf.clone()
    parts = leaf.chunk(2)
    return torch.cat([parts[half] for half in halves])


def _gradients(
    training: Training, arguments: Arguments, leaves: Sequence[Any], seed: int
) -> Gradients:
    """The gradients of the loss of some rows, for every trained parameter."""
    args, kwargs = arguments.called(leaves)
    model, trained = training.replicas.model, training.gradients.parameters
    seed_all(seed)
    with training.saved.kept() if training.saved.keeps else nullcontext():
        with (
            torch.enable_grad(),
            eagerly() if model.compiled else nullcontext(),
            LossWatch() as watch,
            Quiet(),
        ):
            model.run(*args, **kwargs)
        loss = watch.found[final_loss(watch.found)]
        torch.autograd.backward(loss, torch.ones_like(loss))
    model.buffers.end_graphs()
    found: Gradients = []
    for parameter in trained:
        gradient, parameter.grad = parameter.grad, None
        found.append(None if gradient is None else gradient.to_dense().detach())
    return found


def _mean(
    first: torch.Tensor | None, second: torch.Tensor | None, counts: tuple[float, float]
) -> torch.Tensor | None:
    pairs = zip((first, second), counts, strict=True)
    present = [gradient * count for gradient, count in pairs if gradient is not None]
    return sum(present[1:], present[0]) / (sum(counts) or 1.0) if present else None


def _products(training: Training, whole: Gradients, mean: Gradients) -> Iterator[Products]:
    """The inner products of gradients, with zeros for those that are absent."""
    weights = training.replicas.model.weights
    for parameter, one, other in zip(training.gradients.parameters, whole, mean, strict=True):
        yield Products(
            weights.name_of(parameter),
            _product(one, one),
            _product(other, other),
            _product(one, other),
        )


def _product(one: torch.Tensor | None, other: torch.Tensor | None) -> float:
    if one is None or other is None:
        return 0.0
    first, second = (torch.view_as_real(t) if t.is_complex() else t for t in (one, other))
    return float((first.double() * second.double()).sum())
