"""Element types: PopART's names, and what numpy and ONNX call the same thing."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from onnx import TensorProto

from popdist_onnx.errors import ArgumentError


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
            ArgumentError: numpy has none.
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
        """The element type that a program means.

        Args:
            dtype: A member, a name (``"FLOAT"``, ``"float32"``), a numpy type or scalar class.

        Returns:
            The member.

        Raises:
            ArgumentError: It is none of these, or names no known type.
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
