"""Weights in files: large ones stay there, and small ones stand in typed fields.

A model with external data is read without large weights: each pass handles small messages that
refer to the files by their absolute paths. The content is mapped into memory where it is read. A
model that is too large for one message of protobuf is written in the same form.

onnx and onnx_ir write ``raw_data``, and PopART typed fields (``float_data`` ...). Both are valid;
programs that were written for PopART read ``initializer.float_data`` of a model that a builder or a
session returns.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
from onnx.external_data_helper import (
    ExternalDataInfo,
    load_external_data_for_model,
    load_external_data_for_tensor,
    uses_external_data,
)

from popdist.whole_files import target
from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.compat import clone
from popdist_onnx.graph.values import add_initializer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

    from popdist_onnx.graph.values import Array


MAPPED_FROM = 64 << 20
"""Bytes of external data from which on they stay in their file; fewer are simply read."""

INLINE_UP_TO = 1 << 30
"""Bytes of weights up to which a written model holds them itself: protobuf ends at 2 GiB."""

TYPED_UP_TO = 1 << 27
"""Bytes of weights up to which they stand in typed fields: half precision needs lists there."""

_ALIGNED_TO = 1 << 16
"""Each tensor in a file begins at a multiple of it, as mapping needs on every system."""

_ALWAYS_READ = 1 << 16


def resolve_external_data(proto: onnx.ModelProto, folder: Path) -> None:
    """Reads small external data; large data refer to their file by absolute path."""
    outside = [one for one in proto.graph.initializer if uses_external_data(one)]
    if sum(map(_bytes, outside)) >= MAPPED_FROM:
        for tensor in outside:
            path = (folder / ExternalDataInfo(tensor).location).resolve()
            if _bytes(tensor) <= _ALWAYS_READ:
                load_external_data_for_tensor(tensor, str(folder))
                tensor.data_location = onnx.TensorProto.DEFAULT
                del tensor.external_data[:]
                continue
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = str(path)
    # The rest: small data, and tensors in attributes.
    mapped = [one for one in proto.graph.initializer if is_mapped(one)]
    for one in mapped:
        one.data_location = onnx.TensorProto.DEFAULT
    load_external_data_for_model(proto, str(folder))
    for one in mapped:
        one.data_location = onnx.TensorProto.EXTERNAL


def is_mapped(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor's content stays in a file."""
    return uses_external_data(tensor) and Path(ExternalDataInfo(tensor).location).is_absolute()


def has_large_content(model: ir.Model) -> bool:
    """Whether so many weights are in memory that they had better lie in a file."""
    contents = (value.const_value for value in model.graph.initializers.values())
    inside = [one for one in contents if one is not None and not isinstance(one, ir.ExternalTensor)]
    return sum(one.nbytes for one in inside if one.dtype != ir.DataType.STRING) >= MAPPED_FROM


def moved_to_file(model: ir.Model, folder: Path) -> ir.Model:
    """A copy of a model whose large weights lie in a new file of a folder, and not in memory."""
    moved = clone(model)
    _move_out(moved, folder / "weights", str((folder / "weights").absolute()))
    # The rest leaves the message that it was read from, which would stay in memory as a whole.
    return ir.from_proto(ir.to_proto(moved))


def release(array: Array) -> None:
    """Gives back the memory into which reading has brought pages of an array's file."""
    owner: object = array
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    if isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        owner.madvise(mmap.MADV_DONTNEED)


def write_model(model: ir.Model, tensors: Mapping[str, Array], path: Path) -> dict[str, Array]:
    """Writes a model with other weights; ``path`` may be the file that the model was read from.

    The model stays as it is. Weights of more than a gibibyte go to a file ``<name>.data`` beside
    the model's. No second copy of the weights is made in memory. Several processes may write the
    same path; the last one's file stays.

    Returns:
        The weights in the second file by name, mapped into memory; none where there is no such
        file. The mapping stays as it is when the file is replaced.

    Raises:
        popart_exception: The folder does not exist.
    """
    if not path.parent.is_dir():
        raise popart_exception(
            "PD520",
            "a model cannot be saved in a folder that does not exist",
            value=str(path),
            hint=f"create it first: os.makedirs({str(path.parent)!r}, exist_ok=True)",
        )
    written = clone(model)
    initializers = written.graph.initializers
    for name, array in tensors.items():
        if name in initializers:
            initializers[name].const_value = ir.Tensor(array, name=name)
        else:
            add_initializer(written.graph, name, array)
    path = Path(target(str(path)))
    # A name of this call: all instances of a job may save to the same place at once.
    new = path.with_name(f".{path.name}.{token_hex(4)}.new")
    new_data = new.with_name(f"{new.name}.data")
    data = path.with_name(f"{path.name}.data")
    try:
        mapped = _write(written, new, new_data, data.name)
        if mapped:
            new_data.replace(data)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
        new_data.unlink(missing_ok=True)
    return mapped


def _write(model: ir.Model, new: Path, new_data: Path, location: str) -> dict[str, Array]:
    """Writes a model; what goes to a second file is returned as that file's mapped content."""
    contents = [
        (value, value.const_value)
        for value in model.graph.initializers.values()
        if value.const_value is not None
    ]
    for value, tensor in contents:
        if isinstance(tensor, ir.ExternalTensor):
            value.const_value = ir.Tensor(tensor.numpy(), name=value.name)
    total = sum(tensor.nbytes for _, tensor in contents if tensor.dtype != ir.DataType.STRING)
    mapped = {} if total <= INLINE_UP_TO else _move_out(model, new_data, location)
    with new.open("wb") as file:
        if mapped:
            file.write(ir.to_proto(model).SerializeToString())
        else:
            write_streamed(model, file, typed=total <= TYPED_UP_TO)
    return mapped


def _move_out(model: ir.Model, new_data: Path, location: str) -> dict[str, Array]:
    """Moves large initializers to a file, which the model calls ``location``; maps them."""
    moved: dict[str, tuple[int, Array]] = {}
    with new_data.open("wb") as file:
        for name, value in model.graph.initializers.items():
            tensor = value.const_value
            if tensor is None or isinstance(tensor, ir.ExternalTensor):
                continue
            if not has_bytes(tensor) or tensor.nbytes <= _ALWAYS_READ:
                continue
            array = tensor.numpy()
            offset = -(-file.tell() // _ALIGNED_TO) * _ALIGNED_TO
            file.seek(offset)
            file.write(as_bytes(array))
            moved[str(name)] = offset, array
            value.const_value = ir.ExternalTensor(
                location,
                offset,
                array.nbytes,
                tensor.dtype,
                shape=ir.Shape(array.shape),
                name=str(name),
            )
    if not moved:
        return {}
    whole = np.asarray(np.memmap(new_data, np.uint8, "r"))
    return {
        name: whole[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
        for name, (offset, array) in moved.items()
    }


def _bytes(tensor: onnx.TensorProto) -> int:
    stated = {entry.key: entry.value for entry in tensor.external_data}
    if "length" in stated:
        return int(stated["length"])
    elements = int(np.prod(tensor.dims)) if tensor.dims else 1
    kind = ir.DataType(tensor.data_type)
    return 0 if kind == ir.DataType.STRING else int(elements * kind.itemsize)


# Typed fields.


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
        # Newer fields refuse truth values.
        _fill(tensor, "int32_data", onnx.numpy_helper.to_array(tensor).astype(np.int32))
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
