"""`TensorInfo`: the element type and the shape of a tensor.

`InputSettings` says how an input reaches the replicas, and `InputShapeInfo` gives shapes that the
model leaves open.
"""

from __future__ import annotations

import math
import operator
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto

from popdist_onnx.errors import ArgumentError, NotOnHostError, ValueRangeError
from popdist_onnx.types.enums import TileSet

if TYPE_CHECKING:
    from collections.abc import Iterable


# Element types under PopART's names, with their numpy and ONNX types.


class DataType(IntEnum):
    """The element type of a tensor."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    UINT32 = 6
    UINT64 = 7
    BOOL = 8
    FLOAT = 9
    FLOAT16 = 10
    BFLOAT16 = 11
    DOUBLE = 12
    COMPLEX64 = 13
    COMPLEX128 = 14
    STRING = 15
    UNDEFINED = 16

    @property
    def onnx(self) -> int:
        """The member of ``onnx.TensorProto.DataType`` with the same meaning."""
        return int(TensorProto.DataType.Value(self.name))

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy type with the same meaning.

        Raises:
            ArgumentError: numpy has no such type.
        """
        if self is DataType.BFLOAT16:
            # numpy itself has no bfloat16; ml_dtypes comes with onnx-ir.
            import ml_dtypes

            bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return bfloat16
        if self not in _NUMPY:
            raise ArgumentError("PD507", f"{self.name} has no numpy type", value=self)
        return np.dtype(_NUMPY[self])

    @property
    def lower(self) -> str:
        """The name in lower case with its width, as in ``float32``."""
        return {DataType.FLOAT: "float32", DataType.DOUBLE: "float64"}.get(self, self.name.lower())

    @classmethod
    def of(cls, dtype: object) -> DataType:
        """The element type for a name or a numpy type.

        Args:
            dtype: A member, a name (``"FLOAT"``, ``"float32"``), a numpy type or scalar class.

        Returns:
            The member.

        Raises:
            ArgumentError: ``dtype`` is none of these, or names no known type.
        """
        if isinstance(dtype, DataType):
            return dtype
        if isinstance(dtype, str):
            known = {name: m for m in cls for name in (m.name, m.lower.upper())}
            if (member := known.get(dtype.upper())) is not None:
                return member
        elif isinstance(dtype, (type, np.dtype)):
            name = np.dtype(dtype).name
            for member in cls:
                if member.lower == name:
                    return member
        raise ArgumentError(
            "PD507",
            "not an element type",
            value=dtype,
            accepted="a numpy type, or one of " + ", ".join(m.name for m in cls),
        )

    @classmethod
    def from_onnx(cls, code: int) -> DataType:
        """The element type of an ONNX tensor.

        Args:
            code: A member of ``onnx.TensorProto.DataType``.

        Returns:
            The member with the same name.

        Raises:
            ArgumentError: PopART has no such type (for example the 8-bit floats).
        """
        name = TensorProto.DataType.Name(code)
        if name not in cls.__members__:
            raise ArgumentError("PD507", f"element type {name} has no PopART name", value=code)
        return cls[name]


_NUMPY: dict[DataType, type[np.generic]] = {
    DataType.UINT8: np.uint8,
    DataType.INT8: np.int8,
    DataType.UINT16: np.uint16,
    DataType.INT16: np.int16,
    DataType.INT32: np.int32,
    DataType.INT64: np.int64,
    DataType.UINT32: np.uint32,
    DataType.UINT64: np.uint64,
    DataType.BOOL: np.bool_,
    DataType.FLOAT: np.float32,
    DataType.FLOAT16: np.float16,
    DataType.DOUBLE: np.float64,
    DataType.COMPLEX64: np.complex64,
    DataType.COMPLEX128: np.complex128,
}


class TensorInfo:
    """Element type and shape of a tensor.

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
        """The dimensions.

        Returns:
            A list of its own; empty for a scalar.
        """
        return list(self._shape)

    def rank(self) -> int:
        """The number of dimensions.

        Returns:
            0 for a scalar.
        """
        return len(self._shape)

    def nelms(self) -> int:
        """The number of elements.

        Returns:
            The product of the dimensions; 1 for a scalar.
        """
        return math.prod(self._shape)

    def nbytes(self) -> int:
        """The size in bytes.

        Returns:
            `nelms` times the bytes of an element.
        """
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
        """The element type.

        Returns:
            One of `DataType`.
        """
        return self._dtype

    def data_type(self) -> str:
        """The element type's name, as in ``FLOAT``.

        Returns:
            The name that the constructor takes.
        """
        return self._dtype.name

    def data_type_lcase(self) -> str:
        """The element type's name in lower case, as in ``float32``.

        Returns:
            For example ``int64`` for INT64.
        """
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
    """Dimensions as a tuple of plain int.

    Raises:
        ArgumentError: ``shape`` is not a sequence of integers.
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


# `InputSettings`: how an input reaches the replicas.


class ReplicatedStreamMode(IntEnum):
    """Whether each replica gets data of its own, or all get the same."""

    Replicate = 0
    Broadcast = 1


class ExchangeStrategy(IntEnum):
    """When an input is fetched; nothing on a host depends on it."""

    JustInTime = 0
    OverlapInnerLoop = 1
    OverlapLoops = 2
    OverlapStep = 3


class InputSettings:
    """How an input reaches the replicas.

    Args:
        *settings: A `ReplicatedStreamMode`, a `TileSet` and an `ExchangeStrategy`, as needed.

    Raises:
        ArgumentError: An argument is none of these.
        NotOnHostError: The input is to be the same for all replicas.
    """

    def __init__(self, *settings: ReplicatedStreamMode | TileSet | ExchangeStrategy) -> None:
        for one in settings:
            if not isinstance(one, (ReplicatedStreamMode, TileSet, ExchangeStrategy)):
                raise ArgumentError(
                    "PD501",
                    "not a setting of an input",
                    value=one,
                    accepted="a ReplicatedStreamMode, a TileSet, an ExchangeStrategy",
                )
            if one is ReplicatedStreamMode.Broadcast:
                raise NotOnHostError(
                    "PD503",
                    "an input cannot be broadcast to replicas",
                    hint="repeat its data for every replica (numpy.repeat) when it is fed",
                )
        self.settings = settings


# `InputShapeInfo`: the shapes of inputs whose shape the model leaves open.


class InputShapeInfo:
    """Shapes by input id."""

    def __init__(self) -> None:
        self._infos: dict[str, TensorInfo] = {}

    def add(self, tensor_id: str, info: TensorInfo) -> None:
        """Sets element type and shape of an input.

        Args:
            tensor_id: The input.
            info: Its element type and shape.

        Raises:
            ArgumentError: The second argument is not a `TensorInfo`.
        """
        if not isinstance(info, TensorInfo):
            raise ArgumentError("PD507", "an input is described by a TensorInfo", value=info)
        self._infos[tensor_id] = info

    def get(self, tensor_id: str) -> TensorInfo:
        """The element type and shape of an input.

        Args:
            tensor_id: The input.

        Returns:
            What `add` got for the input.

        Raises:
            ValueRangeError: Nothing was added for the input.
        """
        if tensor_id not in self._infos:
            raise ValueRangeError(
                "PD507",
                f"nothing is known of input '{tensor_id}'",
                accepted=", ".join(self._infos) or "no input was added",
            )
        return self._infos[tensor_id]

    def has(self, tensor_id: str) -> bool:
        """Whether `add` was called for an input.

        Args:
            tensor_id: The input.

        Returns:
            True if so.
        """
        return tensor_id in self._infos

    def getAllTensorIds(self) -> list[str]:
        """The inputs for which `add` was called.

        Returns:
            Their ids, in the order of the calls.
        """
        return list(self._infos)
