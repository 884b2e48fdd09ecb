"""`TensorInfo`: the element type and the shape of a tensor."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.errors import ArgumentError, ValueRangeError
from popdist_onnx.types.dtypes import DataType

if TYPE_CHECKING:
    from collections.abc import Iterable


class TensorInfo:
    """What is known of a tensor before it has values.

    Args:
        dtype_or_array: An element type (name, numpy type or `DataType`), or an array to describe.
        shape: The dimensions, where an element type was given.

    Raises:
        ArgumentError: The arguments are neither a type and a shape nor an array.
        ValueRangeError: A dimension is negative.
    """

    def __init__(self, dtype_or_array: object, shape: Iterable[int] | None = None) -> None:
        if isinstance(dtype_or_array, np.ndarray):
            if shape is not None:
                raise ArgumentError("PD507", "an array brings its own shape", value=shape)
            self._dtype = DataType.of(dtype_or_array.dtype)
            self._shape: tuple[int, ...] = dtype_or_array.shape
            return
        if shape is None:
            raise ArgumentError(
                "PD507",
                "TensorInfo takes an element type and a shape, or an array",
                value=dtype_or_array,
                hint='write TensorInfo("FLOAT", [2, 3]), or TensorInfo(array)',
            )
        self._dtype = DataType.of(dtype_or_array)
        self._shape = checked_shape(shape)

    def shape(self) -> list[int]:
        """The dimensions."""
        return list(self._shape)

    def rank(self) -> int:
        """The number of dimensions."""
        return len(self._shape)

    def nelms(self) -> int:
        """The number of elements."""
        return math.prod(self._shape)

    def nbytes(self) -> int:
        """The size in bytes."""
        return self.nelms() * self._dtype.numpy.itemsize

    def dim(self, index: int) -> int:
        """One dimension.

        Args:
            index: Which one; negative counts from the end.

        Returns:
            Its size.

        Raises:
            ValueRangeError: There is no such dimension.
        """
        if not -self.rank() <= index < self.rank():
            raise ValueRangeError(
                "PD507", f"Invalid input dimension {index}, tensor of rank {self.rank()}"
            )
        return self._shape[index]

    def dataType(self) -> DataType:
        """The element type."""
        return self._dtype

    def data_type(self) -> str:
        """The element type's name, as in ``FLOAT``."""
        return self._dtype.name

    def data_type_lcase(self) -> str:
        """The element type's name in lower case, as in ``float32``."""
        return self._dtype.lower

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorInfo):
            return NotImplemented
        return (self._dtype, self._shape) == (other._dtype, other._shape)

    def __hash__(self) -> int:
        return hash((self._dtype, self._shape))

    def __repr__(self) -> str:
        return f"TensorInfo({self.data_type()!r}, {self.shape()})"


def checked_shape(shape: Iterable[int]) -> tuple[int, ...]:
    """Dimensions as plain whole numbers.

    Args:
        shape: What the program gave.

    Returns:
        The dimensions.

    Raises:
        ArgumentError: It is no sequence of whole numbers.
        ValueRangeError: A dimension is negative.
    """
    try:
        dims = tuple(operator.index(dim) for dim in shape)
    except TypeError:
        raise ArgumentError(
            "PD507", "a shape is a sequence of whole numbers", value=shape, accepted="e.g. [2, 3]"
        ) from None
    if any(dim < 0 for dim in dims):
        raise ValueRangeError("PD507", "a dimension is negative", value=dims)
    return dims
