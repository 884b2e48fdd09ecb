"""Geometry of sliding windows: what convolutions and pools share. No nodes are written here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from popdist_onnx.gradients.registry import At
    from popdist_onnx.graph.tensor import Tensor
    from popdist_onnx.graph.values import Dim


@dataclass(frozen=True)
class Windows:
    """Windows that slide over the spatial axes.

    Attributes:
        kernel: Elements of a window.
        strides: Steps between windows.
        dilations: Steps between elements of a window.
        before: Padding before each axis.
        after: Padding after it.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @classmethod
    def of(cls, at: At, big: Tensor, small: Tensor, kernel: Sequence[Dim] | None = None) -> Windows:
        """The windows of a node.

        Args:
            at: The node.
            big: The side that windows slide over.
            small: The side with one element per window.
            kernel: The window where the node does not say it.

        Returns:
            The windows, with explicit padding.
        """
        shape = tuple(int(one or 0) for one in at.get("kernel_shape", kernel or ()))
        rank = len(shape)
        strides = tuple(at.get("strides", [1] * rank))
        dilations = tuple(at.get("dilations", [1] * rank))
        auto = at.get("auto_pad", "NOTSET")
        pads = list(at.get("pads", [0] * (2 * rank)))
        if auto == "VALID":
            pads = [0] * (2 * rank)
        before, after = pads[:rank], pads[rank:]
        if auto.startswith("SAME"):
            before, after = _same(at, big, small, shape, strides, dilations)
        return cls(shape, strides, dilations, tuple(before), tuple(after))

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel)

    @property
    def pads(self) -> list[int]:
        """Padding as ONNX writes it."""
        return [*self.before, *self.after]

    @property
    def padded(self) -> bool:
        """Whether there is any padding."""
        return any(self.pads)

    def reach(self, axis: int, count: int) -> int:
        """Elements of the padded axis that a number of windows covers."""
        return (count - 1) * self.strides[axis] + (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def rest(self, lengths: Sequence[int], counts: Sequence[int]) -> list[int]:
        """Elements at the end of the padded axes that no window covers.

        Args:
            lengths: Lengths of the axes.
            counts: Windows along them.

        Returns:
            The uncovered lengths; negative where a last window hangs over (ceil_mode).
        """
        return [
            lengths[axis] + self.before[axis] + self.after[axis] - self.reach(axis, counts[axis])
            for axis in range(self.rank)
        ]

    def offsets(self) -> Iterator[tuple[int, ...]]:
        """The places of a window's elements, relative to its beginning.

        Yields:
            Offsets in row-major order of the window.
        """
        import itertools

        yield from itertools.product(
            *(
                range(0, size * step, step)
                for size, step in zip(self.kernel, self.dilations, strict=True)
            )
        )


def spatial(tensor: Tensor) -> list[int] | None:
    """Lengths of the axes after batch and channels.

    Args:
        tensor: The tensor.

    Returns:
        The lengths; None where one is unknown.
    """
    found = [dim for dim in tensor.lengths[2:] if isinstance(dim, int)]
    return found if tensor.dims is not None and len(found) == tensor.rank - 2 else None


def _same(
    at: At,
    big: Tensor,
    small: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[list[int], list[int]]:
    """Padding of auto_pad SAME_UPPER and SAME_LOWER."""
    lengths, counts = spatial(big), spatial(small)
    if lengths is None or counts is None:
        raise at.refused("auto_pad with unknown lengths", "export the model with fixed shapes")
    totals = [
        max(0, (count - 1) * stride + (size - 1) * dilation + 1 - length)
        for length, count, stride, size, dilation in zip(
            lengths, counts, strides, kernel, dilations, strict=True
        )
    ]
    halves = [total // 2 for total in totals]
    rests = [total - half for total, half in zip(totals, halves, strict=True)]
    return (halves, rests) if at.get("auto_pad", "") == "SAME_UPPER" else (rests, halves)
