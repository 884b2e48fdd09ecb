"""What is exchanged: how many bytes, in how many tensors, in which memory. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from benchmarks.harness import Effort

Buffers = Literal["reused", "written", "fresh"]

KIB = 2**10
MIB = 2**20
ELEMENT_BYTES = 4

_SIZES = tuple(4 * KIB * 4**step for step in range(8))
_MANY = 16
_MANY_SIZES = (MIB, 16 * MIB, 64 * MIB)

# A sample of fewer bytes than this repeats the exchange, up to so many times: what a barrier leaves
# between the ranks would otherwise be a good part of the few microseconds that are measured.
_SAMPLE_BYTES = MIB
_MOST_CALLS = 16


@dataclass(frozen=True)
class Case:
    """One size in one kind of memory.

    Attributes:
        size: Bytes that every rank contributes.
        tensors: Into how many equal tensors they are divided.
        buffers: ``reused``: the same memory every time, as with gradients that stay where they
            are; other contenders have had their turns since, so no cache holds it any more.
            ``written``: the same, but the rank has just written it, outside the clock, as a
            backward pass leaves gradients. ``fresh``: memory that is mapped and written for this
            exchange, as with gradients that a backward pass allocates anew; mapping and writing
            are part of the sample.
    """

    size: int
    tensors: int = 1
    buffers: Buffers = "reused"

    def __post_init__(self) -> None:
        if self.size < 1 or self.tensors < 1 or self.size % (self.tensors * ELEMENT_BYTES):
            raise ValueError(f"{self.size} bytes cannot be divided into {self.tensors} tensors")

    @property
    def label(self) -> str:
        """Size and memory in words."""
        each = readable(self.size // self.tensors)
        return f"{f'{self.tensors} x ' if self.tensors > 1 else ''}{each}, {self.buffers}"

    @property
    def calls(self) -> int:
        """Exchanges in one sample."""
        return max(1, min(_MOST_CALLS, _SAMPLE_BYTES // self.size))


def readable(size: int) -> str:
    """Writes a number of bytes.

    Args:
        size: Bytes.

    Returns:
        The number in the largest unit in which it is whole.
    """
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def cases(effort: Effort) -> tuple[Case, ...]:
    """What one run measures.

    Args:
        effort: A quick run takes every third size.

    Returns:
        One tensor of each size in reused and in fresh memory; then many tensors, as real gradients
        are, which is where fusing them shows; then both as just written, from 1 MiB on, where a
        sample is one exchange.
    """
    step = effort.choose(full=1, quick=3)
    # Counted from the end: the largest size is the one with aims.
    sizes = sorted(_SIZES[::-1][::step])
    many = sorted(_MANY_SIZES[::-1][::step])
    kinds: tuple[Buffers, ...] = ("reused", "fresh")
    single = [Case(size, 1, buffers) for buffers in kinds for size in sizes]
    written = [Case(size, tensors, "written") for tensors in (1, _MANY) for size in many]
    return (*single, *(Case(size, _MANY) for size in many), *written)
