"""Slots of shared memory through which batches travel from a data process."""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from popdist_torch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

_ALIGNMENT = 64


@dataclass(frozen=True)
class Place:
    """Stands for a tensor in the nesting of a batch while the tensor lies in a slot.

    Attributes:
        index: Which of the batch's tensors it is.
        rows: Its first dimension; None for a tensor without dimensions.
    """

    index: int
    rows: int | None


@dataclass(frozen=True)
class Field:
    """Where one of a batch's tensors lies in every slot.

    Attributes:
        dtype: Its element type.
        shape: Its largest shape.
        start: Its first byte in the slot.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int


def fields(tensors: Sequence[torch.Tensor], rows: int | None) -> list[Field]:
    """Lays out a slot.

    Args:
        tensors: Those of the first batch.
        rows: Rows that a slot must hold; None for as many as the first batch has.

    Returns:
        One field per tensor.
    """
    made: list[Field] = []
    start = 0
    for tensor in tensors:
        shape = tuple(tensor.shape)
        if rows is not None:
            shape = (rows, *shape[1:])
        made.append(Field(tensor.dtype, shape, start))
        start += -(-prod(shape) * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
    return made


class Ring:
    """A number of slots, each for one batch.

    The memory is anonymous, so it needs no place in ``/dev/shm`` and goes with its last user.

    Args:
        layout: The fields of a slot.
        slots: Number of slots.
        file: Descriptor of memory that another process made; by default new memory.

    Attributes:
        layout: The fields of a slot.
        slots: Number of slots.
        file: Descriptor of the memory.

    Raises:
        OSError: There is not so much memory.
    """

    def __init__(self, layout: list[Field], slots: int, file: int | None = None) -> None:
        self.layout, self.slots = layout, slots
        last = layout[-1]
        size = last.start + max(prod(last.shape) * last.dtype.itemsize, 1)
        self._slot_bytes = -(-size // _ALIGNMENT) * _ALIGNMENT
        self.file = _anonymous(slots * self._slot_bytes) if file is None else file
        self._memory = mmap.mmap(self.file, slots * self._slot_bytes)

    def write(self, slot: int, pieces: Sequence[Any]) -> Any:
        """Copies a batch into a slot.

        Args:
            slot: The slot.
            pieces: Batches whose rows follow each other.

        Returns:
            The batch's nesting, with places for tensors.

        Raises:
            DataError: The batch does not fit; batches must be shaped like the first one.
        """
        flat = [pytree.tree_flatten(piece) for piece in pieces]
        columns = zip(*(leaves for leaves, _ in flat), strict=True)
        described: list[Any] = []
        index = 0
        for column in columns:
            if isinstance(column[0], torch.Tensor):
                described.append(self._put(slot, index, column))
                index += 1
            else:
                described.append(column[0])
        return pytree.tree_unflatten(described, flat[0][1])

    def read(self, slot: int, nesting: Any) -> Any:
        """Copies a batch out of a slot.

        Args:
            slot: The slot.
            nesting: What `write` returned.

        Returns:
            The batch, in memory of its own.
        """

        def tensor(place: Place) -> torch.Tensor:
            view = self._view(slot, place.index)
            return (view if place.rows is None else view[: place.rows]).clone()

        return pytree.tree_map_only(Place, tensor, nesting)

    def _put(self, slot: int, index: int, parts: Sequence[torch.Tensor]) -> Place:
        if index >= len(self.layout):
            raise DataError("PD302", "a batch has more tensors than the first one")
        field = self.layout[index]
        rows = sum(len(part) for part in parts) if field.shape else None
        fits = all(p.dtype == field.dtype and p.shape[1:] == field.shape[1:] for p in parts)
        if not fits or (rows is not None and rows > field.shape[0]):
            raise DataError(
                "PD302",
                "the batches of an accessor must have the shapes and types of the first one, or "
                "fewer rows",
                value=[(p.dtype, tuple(p.shape)) for p in parts],
                accepted=f"{field.dtype} {field.shape}",
                hint="pad samples to one shape, or use DataLoaderMode.Sync",
            )
        view = self._view(slot, index)
        if rows is None:
            view.copy_(parts[0])
        else:
            torch.cat(list(parts), out=view[:rows])
        return Place(index, rows)

    def _view(self, slot: int, index: int) -> torch.Tensor:
        field = self.layout[index]
        count = prod(field.shape)
        if not count:
            return torch.empty(field.shape, dtype=field.dtype)
        return torch.frombuffer(
            self._memory,
            dtype=field.dtype,
            count=count,
            offset=slot * self._slot_bytes + field.start,
        ).view(field.shape)


def _anonymous(size: int) -> int:
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("popdist batches")
    else:
        with tempfile.TemporaryFile() as kept:
            file = os.dup(kept.fileno())
    # Now, as an error: without it the first write beyond what is there would kill the process.
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)
    return file
