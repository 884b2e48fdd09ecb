"""Weights in a file's typed fields (``float_data`` ...), where PopART has them.

onnx and onnx_ir write ``raw_data``. Both are valid; programs that were written for PopART read
``initializer.float_data`` of a model that a builder or a session returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx

if TYPE_CHECKING:
    from popdist_onnx.graph.values import Array

_T = onnx.TensorProto

# The field number of each type whose packed elements equal the bytes in raw_data: protobuf packs
# floating-point numbers in their memory layout.
_PACKED_AS_IN_MEMORY = {int(_T.FLOAT): 4, int(_T.DOUBLE): 10}

_AS_INT32 = (_T.INT32, _T.INT16, _T.INT8, _T.UINT16, _T.UINT8, _T.BOOL)
_BITS_IN_INT32 = (_T.FLOAT16, _T.BFLOAT16)

_LENGTH_DELIMITED = 2
_SEVEN_BITS = 7
_LOW_BITS = 0x7F
_MORE_FOLLOWS = 0x80


def use_typed_fields(proto: onnx.ModelProto) -> None:
    """Moves initializers from ``raw_data`` to typed fields; external data stay as they are."""
    for tensor in proto.graph.initializer:
        if tensor.HasField("raw_data"):
            _move(tensor)


def _move(tensor: onnx.TensorProto) -> None:
    if field := _PACKED_AS_IN_MEMORY.get(int(tensor.data_type)):
        raw = tensor.raw_data
        tensor.ClearField("raw_data")
        if raw:
            key = field << 3 | _LENGTH_DELIMITED
            tensor.MergeFromString(bytes([key]) + _varint(len(raw)) + raw)
        return
    if tensor.data_type in _AS_INT32:
        _fill(tensor, "int32_data", onnx.numpy_helper.to_array(tensor))
    elif tensor.data_type in _BITS_IN_INT32:
        _fill(tensor, "int32_data", np.frombuffer(tensor.raw_data, "<u2"))
    elif tensor.data_type == _T.INT64:
        _fill(tensor, "int64_data", onnx.numpy_helper.to_array(tensor))
    elif tensor.data_type in (_T.UINT32, _T.UINT64):
        _fill(tensor, "uint64_data", onnx.numpy_helper.to_array(tensor))


def _fill(tensor: onnx.TensorProto, field: str, array: Array) -> None:
    tensor.ClearField("raw_data")
    getattr(tensor, field).extend(array.reshape(-1).tolist())


def _varint(number: int) -> bytes:
    """A number in protobuf's variable-length encoding of field lengths."""
    found = bytearray()
    while number > _LOW_BITS:
        found.append(number & _LOW_BITS | _MORE_FOLLOWS)
        number >>= _SEVEN_BITS
    found.append(number)
    return bytes(found)
