"""Weights in a file's typed fields (``float_data`` ...), where PopART has them.

onnx and onnx_ir write ``raw_data``. Both are valid; programs that were written for PopART read
``initializer.float_data`` of a model that a builder or a session returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir

if TYPE_CHECKING:
    from typing import BinaryIO

    from popdist_onnx.graph.values import Array

_T = onnx.TensorProto

# The field number of each type whose packed elements equal the bytes in raw_data: protobuf packs
# floating-point numbers in their memory layout.
_PACKED_AS_IN_MEMORY = {int(_T.FLOAT): 4, int(_T.DOUBLE): 10}

_AS_INT32 = (_T.INT32, _T.INT16, _T.INT8, _T.UINT16, _T.UINT8, _T.BOOL)
_BITS_IN_INT32 = (_T.FLOAT16, _T.BFLOAT16)

_RAW_DATA = 9
_INITIALIZER = 5
_GRAPH = 7

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
            tensor.MergeFromString(_head(field, len(raw)) + raw)
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


def write_streamed(model: ir.Model, file: BinaryIO, *, typed: bool) -> None:
    """Writes a model without a second copy of its weights in memory.

    The bytes are those of a message of protobuf: everything but the initializers, and then one
    initializer after the other, whose content is written from where it lies. ``typed`` stands for
    typed fields. The model in memory loses its initializers.
    """
    values = [one for one in model.graph.initializers.values() if one.const_value is not None]
    model.graph.initializers.clear()
    shell = ir.to_proto(model)
    graph = shell.graph.SerializeToString()
    shell.ClearField("graph")
    tensors = [_encoded(value, typed=typed) for value in values]
    sizes = [len(said) + (0 if array is None else array.nbytes) for said, array in tensors]
    heads = [_head(_INITIALIZER, size) for size in sizes]
    file.write(shell.SerializeToString())
    file.write(_head(_GRAPH, len(graph) + sum(map(len, heads)) + sum(sizes)))
    file.write(graph)
    for head, (said, array) in zip(heads, tensors, strict=True):
        file.write(head + said)
        if array is not None:
            file.write(as_bytes(array))


def has_bytes(tensor: ir.TensorProtocol) -> bool:
    """Whether each element of a tensor is some whole bytes, as in neither text nor four bits."""
    return tensor.dtype != ir.DataType.STRING and tensor.dtype.itemsize >= 1


def as_bytes(array: Array) -> memoryview:
    """The memory of an array as bytes; copied only where the array is not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _encoded(value: ir.Value, *, typed: bool) -> tuple[bytes, Array | None]:
    """The message of an initializer; without its last field's content, which is returned too."""
    tensor = value.const_value
    assert tensor is not None  # noqa: S101 - checked by the caller
    dtype = tensor.dtype
    field = _PACKED_AS_IN_MEMORY.get(int(dtype)) if typed else _RAW_DATA
    if field is None or not has_bytes(tensor) or not tensor.nbytes:
        proto = ir.serde.serialize_tensor(tensor)
        proto.name = str(value.name)
        if typed and proto.HasField("raw_data"):
            _move(proto)
        return bytes(proto.SerializeToString()), None
    said = onnx.TensorProto(
        name=value.name, data_type=int(dtype), dims=[int(d) for d in tensor.shape.numpy()]
    )
    return said.SerializeToString() + _head(field, tensor.nbytes), tensor.numpy()


def _head(field: int, length: int) -> bytes:
    """What stands before a field's content in a message of protobuf."""
    return bytes([field << 3 | _LENGTH_DELIMITED]) + _varint(length)


def _varint(number: int) -> bytes:
    """A number in protobuf's variable-length encoding of field lengths."""
    found = bytearray()
    while number > _LOW_BITS:
        found.append(number & _LOW_BITS | _MORE_FOLLOWS)
        number >>= _SEVEN_BITS
    found.append(number)
    return bytes(found)
