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


# Memory that lives from one run to the next, and that sessions read and write in place.


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
    """Lets ONNX Runtime see an array; nothing is copied.

    Args:
        array: A C-contiguous array of the tensor's type and shape.
        spec: The tensor.

    Returns:
        The buffer; it keeps the array alive.
    """
    if array.dtype.isbuiltin == 1:
        return Buffer(array, ort.OrtValue.ortvalue_from_numpy(array, "cpu", 0))
    # bfloat16 and the like: numpy knows them through ml_dtypes only, ONNX Runtime by their number.
    raw = array.view(f"u{array.dtype.itemsize}")
    return Buffer(array, ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, int(spec.dtype)))


def reshaped(buffer: Buffer, spec: Spec) -> Buffer:
    """The same memory in the shape in which a graph writes it.

    Args:
        buffer: The memory.
        spec: What is written, with as many elements.

    Returns:
        The buffer, or one of the other shape.
    """
    if spec.shape is None or spec.shape == buffer.array.shape:
        return buffer
    return wrap(buffer.array.reshape(spec.shape), spec)


def empty(spec: Spec) -> Buffer:
    """Allocates a tensor.

    Args:
        spec: The tensor, of known shape.

    Returns:
        A buffer of unspecified content.
    """
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
    """Allocates a state tensor.

    Args:
        spec: The tensor.
        in_place: Whether a run may overwrite what it reads.

    Returns:
        A cell that holds zeros.
    """
    buffers = tuple(empty(spec) for _ in range(1 if in_place else 2))
    buffers[0].array.fill(0)
    return Cell(spec, buffers)


_UPDATE = "update"
_ACCUMULATE = "accumulate"
_CARRY = "carry"


class State:
    """All variables of a graph.

    Weights and optimizer state change with an update, accumulators with a micro-batch. Both exist
    once in a process. What else changes with a micro-batch (running statistics) exists once per
    replica, each of which sees its own micro-batches only.

    Args:
        reading: The graph.
        overwritable: States that may live in one buffer.
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
            # What nothing writes needs no second buffer either.
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
        """Which buffers are current, as far as a replica's run is concerned.

        Args:
            replica: The replica.

        Returns:
            A key.
        """
        return (*self._turns.values(), replica)

    def cell(self, name: str, replica: int) -> Cell:
        """The memory of a variable.

        Args:
            name: The variable.
            replica: Whose.

        Returns:
            The cell.
        """
        copies = self._cells[name]
        return copies[replica if len(copies) > 1 else 0]

    def read(self, name: str, replica: int = 0) -> Array:
        """The present value of a variable.

        Args:
            name: The variable.
            replica: Whose.

        Returns:
            The memory itself; the next run may change it.
        """
        return self.cell(name, replica).present.array

    def write(self, name: str, values: Array) -> None:
        """Sets a variable, for all replicas.

        Args:
            name: The variable.
            values: Its value, of its type and shape.
        """
        for copy in self._cells[name]:
            np.copyto(copy.present.array, values, casting="no")

    def place(self, name: str, array: Array) -> Buffer:
        """Moves a variable into memory that somebody else chose.

        Args:
            name: A variable that exists once.
            array: The memory.

        Returns:
            The same memory as a buffer.
        """
        (only,) = self._cells[name]
        buffer = wrap(array, only.spec)
        np.copyto(array, only.present.array)
        only.buffers = (buffer, *only.buffers[1:])
        only.current = 0
        return buffer

    def begin_update(self, runs: int) -> None:
        """Makes accumulators zero.

        Args:
            runs: How many micro-batches follow.
        """
        # So that the last one ends in the first buffer, which may be the exchange's.
        self._turns[_ACCUMULATE] = runs % 2
        for name in self._groups[_ACCUMULATE]:
            accumulator = self.cell(name, 0)
            accumulator.current = runs % len(accumulator.buffers)
            accumulator.present.array.fill(0)

    def end_micro_batch(self, replica: int) -> None:
        """Makes what a micro-batch wrote the present value.

        Args:
            replica: Whose micro-batch it was.
        """
        for group in (_ACCUMULATE, _CARRY, str(replica)):
            self._flip(group, replica)

    def end_update(self) -> None:
        """Makes what an update wrote the present value."""
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
