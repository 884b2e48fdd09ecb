"""The state of a training graph: weights, optimizer state, accumulators, running statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort

from popdist_onnx.graph import names

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable

    from popdist_onnx.runtime.graph_reader import Reading, Spec


# Memory that outlives a run, and that sessions read and write in place.


Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Buffer:
    """An array that ONNX Runtime can be bound to.

    Attributes:
        array: The array.
        value: The same memory, as ONNX Runtime sees it.
    """

    array: Array
    value: ort.OrtValue


def wrap(array: Array, spec: Spec) -> Buffer:
    """Binds a C-contiguous array to ONNX Runtime without a copy, and keeps the array alive."""
    if array.dtype.isbuiltin == 1:
        return Buffer(array, ort.OrtValue.ortvalue_from_numpy(array, "cpu", 0))
    # numpy knows types such as bfloat16 through ml_dtypes only; ONNX Runtime gets the type's
    # number.
    raw = array.view(f"u{array.dtype.itemsize}")
    return Buffer(array, ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, int(spec.dtype)))


def reshaped(buffer: Buffer, spec: Spec) -> Buffer:
    """The same memory in another shape with as many elements."""
    if spec.shape is None or spec.shape == buffer.array.shape:
        return buffer
    return wrap(buffer.array.reshape(spec.shape), spec)


def empty(spec: Spec) -> Buffer:
    """Allocates a tensor of known shape, with unspecified content."""
    assert spec.shape is not None  # noqa: S101 - callers ask for stored tensors only
    return wrap(np.empty(spec.shape, spec.dtype.numpy()), spec)


@dataclass
class Cell:
    """A state tensor: read by a run that writes its next value.

    Attributes:
        spec: The tensor.
        buffers: One buffer where a run may overwrite what it reads, else two that take turns.
        current: Which of them holds the present value.
    """

    spec: Spec
    buffers: tuple[Buffer, ...]
    current: int = field(default=0)

    @property
    def present(self) -> Buffer:
        """What the next run reads."""
        return self.buffers[self.current]

    @property
    def next(self) -> Buffer:
        """What the next run writes."""
        return self.buffers[-1 - self.current if len(self.buffers) > 1 else 0]

    def flip(self) -> None:
        """Makes what was written the present value."""
        if len(self.buffers) > 1:
            self.current = 1 - self.current


def cell(spec: Spec, *, in_place: bool) -> Cell:
    """Allocates a state tensor of zeros: one buffer with ``in_place``, else two."""
    assert spec.shape is not None  # noqa: S101 - as in `empty`
    # Zeros of the system: memory that is never written is never used either.
    first = wrap(np.zeros(spec.shape, spec.dtype.numpy()), spec)
    return Cell(spec, (first,) if in_place else (first, empty(spec)))


_UPDATE = "update"
_ACCUMULATE = "accumulate"
_CARRY = "carry"


class State:
    """All variables of a graph.

    Weights and optimizer state change with an update, accumulators with a micro-batch. Both exist
    once in a process. Other tensors that change with a micro-batch (running statistics) exist once
    per replica, and each replica sees its own micro-batches only.

    Args:
        reading: The graph.
        overwritable: States that may lie in one buffer.
        replicas: Replicas of this process.
    """

    def __init__(self, reading: Reading, overwritable: Collection[str], replicas: int) -> None:
        self._cells: dict[str, list[Cell]] = {}
        self._groups: dict[str, list[str]] = {_UPDATE: [], _ACCUMULATE: [], _CARRY: []}
        self._groups |= {str(replica): [] for replica in range(replicas)}
        for name in reading.variables:
            groups = _groups(name, reading.states.get(name), replicas)
            for group in groups:
                self._groups[group].append(name)
            # A variable that no node writes needs no second buffer either.
            in_place = name not in reading.states or name in overwritable
            self._cells[name] = [cell(reading.spec(name), in_place=in_place) for _ in groups]
        self._turns = dict.fromkeys(self._groups, 0)

    def __contains__(self, name: str) -> bool:
        return name in self._cells

    @property
    def names(self) -> list[str]:
        """All variables."""
        return list(self._cells)

    def situation(self, replica: int) -> Hashable:
        """A key of the buffers that are current for a replica's run."""
        return (*self._turns.values(), replica)

    def cell(self, name: str, replica: int) -> Cell:
        """The memory of a variable."""
        copies = self._cells[name]
        return copies[replica if len(copies) > 1 else 0]

    def read(self, name: str, replica: int = 0) -> Array:
        """The memory of a variable; the next run may change it."""
        return self.cell(name, replica).present.array

    def write(self, name: str, values: Array) -> None:
        """Sets a variable of equal type and shape, for all replicas."""
        for copy in self._cells[name]:
            np.copyto(copy.present.array, values, casting="no")

    def place(self, name: str, array: Array) -> Buffer:
        """Moves a variable that exists once into the given memory."""
        (only,) = self._cells[name]
        buffer = wrap(array, only.spec)
        np.copyto(array, only.present.array)
        only.buffers = (buffer, *only.buffers[1:])
        only.current = 0
        return buffer

    def attach(self, name: str, array: Array) -> None:
        """Lets a variable that no run writes be the given memory, without a copy."""
        for copy in self._cells[name]:
            copy.buffers = (wrap(array, copy.spec),)
            copy.current = 0

    def begin_update(self, runs: int) -> None:
        """Sets accumulators to zero before ``runs`` micro-batches."""
        # Chosen so that the last micro-batch writes the first buffer, which may be the exchange's.
        self._turns[_ACCUMULATE] = runs % 2
        for name in self._groups[_ACCUMULATE]:
            accumulator = self.cell(name, 0)
            accumulator.current = runs % len(accumulator.buffers)
            accumulator.present.array.fill(0)

    def end_micro_batch(self, replica: int) -> None:
        """Makes the results of a micro-batch the present values."""
        for group in (_ACCUMULATE, _CARRY, str(replica)):
            self._flip(group, replica)

    def end_update(self) -> None:
        """Makes the results of an update the present values."""
        self._flip(_UPDATE, 0)

    def _flip(self, group: str, replica: int) -> None:
        self._turns[group] = 1 - self._turns[group]
        for name in self._groups[group]:
            self.cell(name, replica).flip()


def _groups(name: str, update: bool | None, replicas: int) -> list[str]:
    """The groups of a variable's copies; members of one group change at the same time."""
    if update is None or update:
        return [_UPDATE]
    if name.startswith(names.ACCUMULATOR):
        return [_ACCUMULATE]
    if names.reserved_prefix(name):
        return [_CARRY]
    return [str(replica) for replica in range(replicas)]
