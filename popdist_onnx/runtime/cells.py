"""Memory that lives from one run to the next, and that sessions read and write in place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort

if TYPE_CHECKING:
    from popdist_onnx.runtime.reading import Spec

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
