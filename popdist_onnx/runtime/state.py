"""The state of a training graph: weights, optimizer state, accumulators, running statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.graph import names
from popdist_onnx.runtime.cells import Array, Buffer, Cell, cell, wrap

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable

    from popdist_onnx.runtime.reading import Reading

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
