"""Gradients summed over all instances: small ones in flat buffers, large ones in place.

A backward pass allocates new gradients, so gradients for a flat buffer have to be copied there.
For small gradients that is cheaper than separate exchanges; large ones would gain nothing.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import torch

from popdist.exchange import (
    DEFAULT_TAIL_BYTES,
    DEFAULT_ZERO_COPY_BYTES,
    Exchange,
    Item,
    allocate,
    plan,
    views,
)
from popdist_torch.errors import AgreementError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_USED = "used by any replica"
_DIGITS = 6
"""A fact travels as so many numbers below 16, and their squares: sums of whole numbers that single
precision holds exactly for up to 74 thousand instances."""


class Facts:
    """Facts that must be equal on all instances at each update; sent with the gradients.

    A scheduler's step or a loaded state on one instance only would make the models differ without
    an error. A sum over all instances, which is exchanged anyway, reveals it on all of them.

    Args:
        about: What each fact is about.
    """

    def __init__(self, *about: str) -> None:
        self._about = about

    def numbers(self, stated: Sequence[int]) -> list[int]:
        """The numbers to sum over all instances, from one 24-bit number a fact (0 for none)."""
        numbers: list[int] = []
        for fact in stated or [0] * len(self._about):
            digits = [fact >> 4 * place & 15 for place in range(_DIGITS)]
            numbers += [*digits, *(digit * digit for digit in digits)]
        return numbers

    def equal(self, sums: Sequence[float], instances: int, index: int = 0) -> bool:
        """Whether all instances stated the same of one fact, from the sums of their numbers."""
        first = 2 * _DIGITS * index
        totals = sums[first : first + _DIGITS]
        squares = sums[first + _DIGITS : first + 2 * _DIGITS]
        # Numbers are equal where their squares add up to the least that their sum allows.
        return all(t * t == instances * s for t, s in zip(totals, squares, strict=True))

    def require_equal(self, sums: Sequence[float], instances: int) -> None:
        """Checks that all instances stated the same, from the sums of their numbers.

        Raises:
            AgreementError: A fact differs; raised on all instances.
        """
        for index, about in enumerate(self._about):
            if not self.equal(sums, instances, index):
                raise AgreementError(
                    "PD311",
                    f"the instances were about to update with different {about}",
                    hint="make the same changes on every instance: a scheduler's step, a loaded "
                    "state or a changed weight on one instance alone lets their models part",
                )


class InstanceSum:
    """The sum of the ``grad`` attributes of some parameters over all instances.

    One round is `begin`, `collect` for any parameter whose gradient is complete, `finish`, which
    takes all others. The gradients of a slice are moved together, when its last one is complete:
    hooks run once per parameter and step, so they must be fast. A small vector is sent
    too. It counts the instances that have each gradient, so that a parameter without a gradient on
    all instances has none afterwards, as in one process.

    Args:
        parameters: The parameters, in the order in which their gradients are completed.
        names: Their names.
        horovod: The module ``horovod.torch``, initialised.
        label: Prefix for the names of exchanged tensors; equal on all instances.
        wire: The type in which gradients are sent; None for their own.
        factor: What gradients are multiplied with before they are added up.
        notes: Small whole numbers that are sent with each round, read as it ends; None for none.

    Attributes:
        noted: The sums of the notes of the last round over all instances.
        waited: Seconds spent in `finish`, all rounds together: what of the communication was not
            hidden behind backward passes.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        names: Sequence[str],
        horovod: Any,
        label: str,
        *,
        wire: torch.dtype | None = None,
        factor: float = 1.0,
        notes: Callable[[], Sequence[int]] | None = None,
    ) -> None:
        self.waited = 0.0
        self.noted: list[int] = []
        self._horovod = horovod
        self._notes = notes
        self._parameters = list(parameters)
        self._names = list(names)
        self._label = label
        self._wire = wire
        self._factor = factor
        self._kinds: list[tuple[torch.dtype, int]] = []
        self._lay_out()

    @torch.inference_mode(mode=False)
    def _lay_out(self) -> None:
        """Plans the exchange of the parameters as they are now, and allocates its memory."""
        self._kinds = self._kinds_now()
        items = []
        for name, parameter in zip(self._names, self._parameters, strict=True):
            values = _real(parameter.detach())
            dtype = self._wire if self._wire and values.is_floating_point() else values.dtype
            spelled = str(dtype).removeprefix("torch.")
            items.append(Item(name, values.numel(), spelled, dtype.itemsize))
        # Of the most common type, so that it usually travels in the last slice of the gradients.
        said = len(items) + 1 + (0 if self._notes is None else len(self._notes()))
        items.append(Item(_USED, said, "float32", 4))
        layout = plan(
            items,
            tail_bytes=DEFAULT_TAIL_BYTES,
            zero_copy_bytes=DEFAULT_ZERO_COPY_BYTES if self._wire is None else None,
        )
        # Large gradients by index of their parameters, while they are exchanged.
        self._large: dict[int, torch.Tensor | None] = {
            index: None
            for index, slot in enumerate(layout.slots)
            if layout.arenas[slot.arena].zero_copy and index < len(self._parameters)
        }
        self._arenas = allocate(layout, device=self._parameters[0].device)
        shapes = [tuple(_real(p.detach()).shape) for p in self._parameters] + [(said,)]
        *self._views, self._used = views(layout, self._arenas, shapes)
        self._exchange = Exchange(
            layout,
            self._arenas,
            self._horovod,
            name=self._label,
            fill=self._fill,
        )
        self._moved = bytearray(len(items))
        self._addresses = [view.data_ptr() for view in self._views]
        self._references = list(map(sys.getrefcount, self._views))
        self._sharers = [*map(_users, self._arenas)]
        self._touched = False

    def begin(self) -> None:
        """Starts a round: no gradient is complete."""
        self._exchange.begin()
        self._moved = bytearray(len(self._moved))
        self._touched = False

    def collect(self, index: int) -> None:
        """Marks a parameter's gradient as complete; its slice is sent if it waits for no other.

        Raises:
            BackendError: It was marked already in this round.
        """
        if not self._touched:
            self._take_memory()
        self._exchange.ready(index)

    def _take_memory(self) -> None:
        """Takes other memory for this round, where the last round's sums may still be read.

        The sums are the gradients that the program sees. It may keep them beyond its next backward
        pass, or give them other memory, as ``model.double()`` and ``gradient.data = ...`` do.
        """
        self._touched = True
        references = list(map(sys.getrefcount, self._views))
        if (
            (references != self._references and self._kept(references))
            or [view.data_ptr() for view in self._views] != self._addresses
            or [*map(_users, self._arenas)] != self._sharers
            or self._kinds_now() != self._kinds
        ):
            self._lay_out()
            self._exchange.begin()
            self._touched = True

    def _kept(self, references: Sequence[int]) -> bool:
        """Whether the program has references to the last sums, beside the ``grad`` attributes."""
        return any(
            now > before + (parameter.grad is view)
            for now, before, parameter, view in zip(
                references, self._references, self._parameters, self._views, strict=True
            )
        )

    def _kinds_now(self) -> list[tuple[torch.dtype, int]]:
        return [(parameter.dtype, parameter.numel()) for parameter in self._parameters]

    def send(self) -> None:
        """Sends the rest, and waits for nothing."""
        if not self._touched:
            self._take_memory()
        self._exchange.send()

    def finish(self) -> None:
        """Sends the rest, and waits for the sums, which become the parameters' gradients.

        Raises:
            AgreementError: Another instance has called ``hvd.join``.
            BackendError: Another instance ended or failed meanwhile.
        """
        started = time.perf_counter()
        if not self._touched:
            self._take_memory()
        self._exchange.finish()
        self.waited += time.perf_counter() - started
        present, *self.noted = map(int, self._used[len(self._parameters) :].tolist())
        require_all(present, self._horovod.size())
        used = self._used.tolist()
        for index, parameter in enumerate(self._parameters):
            if not used[index]:
                parameter.grad = None
                continue
            summed = self._large.get(index)
            summed = self._views[index] if summed is None else summed
            if parameter.is_complex():
                summed = torch.view_as_complex(summed)
            parameter.grad = summed.to(parameter.dtype)
        self._large = dict.fromkeys(self._large)

    @torch.no_grad()
    def _fill(self, items: Sequence[int]) -> None:
        """Copies gradients that are not there yet into a slice, before it is sent."""
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        scaled: list[torch.Tensor] = []
        for index in items:
            if self._moved[index]:
                continue
            self._moved[index] = 1
            if index == len(self._parameters):
                said = [int(parameter.grad is not None) for parameter in self._parameters]
                said += [1] if self._notes is None else [1, *self._notes()]
                self._used.copy_(torch.tensor(said))
                continue
            gradient, view = _gradient(self._parameters[index]), self._views[index]
            large = index in self._large
            if large:
                view = self._attach(index)
            elif gradient is None:
                view.zero_()
            if gradient is None:
                continue
            # The sum of the last round is still there where the program keeps its gradients.
            if large or gradient is view:
                scaled.append(view)
            else:
                targets.append(view)
                sources.append(gradient)
        self._move(targets, sources, scaled)

    def _move(
        self, targets: list[torch.Tensor], sources: list[torch.Tensor], scaled: list[torch.Tensor]
    ) -> None:
        """Copies gradients and multiplies them in one pass, and multiplies others in place."""
        if self._factor == 1:
            if targets:
                torch._foreach_copy_(targets, sources)
            return
        for target, source in zip(targets, sources, strict=True):
            torch.mul(source, self._factor, out=target)
        if scaled:
            torch._foreach_mul_(scaled, self._factor)

    def _attach(self, index: int) -> torch.Tensor:
        """Lends the exchange the memory of a large gradient; returns the gradient."""
        parameter = self._parameters[index]
        gradient = _gradient(parameter)
        if gradient is None:
            empty = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
            gradient = _real(empty.detach())
        elif gradient.requires_grad or not _exclusive(gradient):
            gradient = gradient.detach().clone()
        gradient = gradient.contiguous()
        self._large[index] = gradient
        self._exchange.attach(index, gradient.view(-1))
        return gradient


def require_all(present: int, size: int) -> None:
    """Checks that all instances took part in an exchange.

    Raises:
        AgreementError: Some did not; others gave zeros for them.
    """
    if present != size:
        raise AgreementError(
            "PD323",
            "some instances did not take part in an exchange",
            value=f"{size - present} of {size} instances",
            hint="they have called hvd.join(): exchange as often on all instances, or use "
            "horovod.torch.DistributedOptimizer, which counts what an instance lacks as zero",
        )


def give_rows(optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor]) -> None:
    """Makes gradients, which are summed as dense ones, sparse for an optimizer that needs that.

    ``SparseAdam`` updates the rows that a gradient has, and refuses dense gradients.
    """
    if isinstance(optimizer, torch.optim.SparseAdam):
        for parameter in parameters:
            if parameter.grad is not None and not parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_sparse(1)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """A complex tensor as pairs of real numbers, which Horovod can add; any other unchanged."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """A parameter's gradient in the form in which it is sent."""
    gradient = parameter.grad
    if gradient is None:
        return None
    return _real(gradient.to_dense() if gradient.is_sparse else gradient)


def _exclusive(gradient: torch.Tensor) -> bool:
    """Whether no other object refers to a gradient's memory.

    Autograd passes gradients on without copies: the gradient of ``b`` in ``a + b.view(...)`` may
    share memory with another parameter's gradient, or with the gradient from which that of ``a`` is
    still being computed.
    """
    return _users(gradient) <= _ALONE


def _users(tensor: torch.Tensor) -> int:
    """The number of references to a tensor's memory, this function's included."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))  # noqa: SLF001


_ALONE = _users(torch.zeros(1))
