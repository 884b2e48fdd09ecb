"""Checks of the tensors in a file before any memory is allocated for them.

A file may come from anybody. Its tensors may name files outside of its folder, devices that never
end, and sizes that the machine does not have; readers of onnx and onnx-ir trust these numbers.
"""

from __future__ import annotations

import math
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
from onnx.external_data_helper import uses_external_data

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.compat import graphs_inside, graphs_within

if TYPE_CHECKING:
    from collections.abc import Iterator

_T = onnx.TensorProto
_BYTE = 8

_FIELDS: dict[int, str] = {
    **dict.fromkeys((_T.FLOAT, _T.COMPLEX64), "float_data"),
    **dict.fromkeys((_T.DOUBLE, _T.COMPLEX128), "double_data"),
    **dict.fromkeys((_T.UINT32, _T.UINT64), "uint64_data"),
    _T.INT64: "int64_data",
    _T.STRING: "string_data",
}
"""The typed field of each element type; ``int32_data`` of all others."""

_PARTS: dict[int, int] = {_T.COMPLEX64: 2, _T.COMPLEX128: 2}
"""Numbers in a typed field for each element, where it is not one."""


def stored_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of a model: initializers, and those in attributes, of inner graphs too."""
    graphs = [*graphs_within(proto.graph)]
    for function in proto.functions:
        yield from _of_nodes(function.node)
        graphs += (graph for node in function.node for graph in graphs_inside(node))
    for graph in graphs:
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        yield from _of_nodes(graph.node)


def _of_nodes(nodes: object) -> Iterator[onnx.TensorProto]:
    for node in nodes:  # type: ignore[attr-defined]
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
            for one in (*sparse, *attribute.sparse_tensors):
                yield from (one.values, one.indices)


def require_stored(proto: onnx.ModelProto, folder: Path, *, own: bool = False) -> None:
    """Refuses tensors whose content is not where the file says, or not of the size that it says.

    Args:
        proto: The model.
        folder: The folder of its file, in which external data lie.
        own: Whether the model was made in this process, so that absolute paths are its own.

    Raises:
        popart_exception: A tensor cannot be read, by its name.
    """
    for tensor in stored_tensors(proto):
        size = _bits(tensor)
        if uses_external_data(tensor):
            _require_file(tensor, -(-size // _BYTE), folder, own=own)
        elif tensor.HasField("raw_data"):
            if len(tensor.raw_data) != -(-size // _BYTE):
                raise _misfit(tensor, f"{len(tensor.raw_data)} bytes", f"{-(-size // _BYTE)} bytes")
        else:
            _require_numbers(tensor, size, own=own)


def _bits(tensor: onnx.TensorProto) -> int:
    """The size of a tensor; that of texts counts elements."""
    try:
        kind = ir.DataType(tensor.data_type)
    except ValueError:
        kind = ir.DataType.UNDEFINED
    if kind is ir.DataType.UNDEFINED:
        raise _unreadable(tensor, "has an unknown element type", tensor.data_type)
    if any(length < 0 for length in tensor.dims):
        raise _unreadable(tensor, "has a negative length", list(tensor.dims))
    elements = math.prod(tensor.dims)
    return elements if kind is ir.DataType.STRING else int(elements * kind.itemsize * _BYTE)


def _require_numbers(tensor: onnx.TensorProto, bits: int, *, own: bool) -> None:
    kind = tensor.data_type
    field = _FIELDS.get(kind, "int32_data")
    have = len(getattr(tensor, field))
    elements = math.prod(tensor.dims)
    if own and not have:
        return  # a model that was made in this process may get its content when it runs
    # Several elements of less than a byte share a number.
    packed = kind != _T.STRING and elements and bits // elements < _BYTE
    wanted = -(-bits // _BYTE) if packed else elements * _PARTS.get(kind, 1)
    if have != wanted:
        raise _misfit(tensor, f"{have} elements in {field}", f"{wanted} elements")


def _require_file(tensor: onnx.TensorProto, size: int, folder: Path, *, own: bool) -> None:
    stated = {entry.key: entry.value for entry in tensor.external_data}
    location = stated.get("location", "")
    if tensor.data_type == _T.STRING:
        raise _unreadable(tensor, "has texts as external data", location)
    path = folder / location
    if not (own and Path(location).is_absolute()) and _is_outside(location, folder):
        raise _unreadable(
            tensor,
            "has its data outside of the model's folder",
            location,
            f"a relative path of a file in {folder}: else a model could read any file",
        )
    offset, length = _number(tensor, stated, "offset", 0), _number(tensor, stated, "length", size)
    try:
        status = path.stat()
    except OSError as missing:
        raise _unreadable(tensor, f"has no data: {missing.strerror}", str(path)) from None
    if not stat.S_ISREG(status.st_mode):
        raise _unreadable(tensor, "has its data in what is not a regular file", str(path))
    if length != size:
        raise _misfit(tensor, f"{length} bytes in {location}", f"{size} bytes")
    if offset + length > status.st_size:
        raise _misfit(
            tensor,
            f"bytes {offset} to {offset + length} of {location}",
            f"a file of {status.st_size} bytes",
        )


def _is_outside(location: str, folder: Path) -> bool:
    """Whether a location is absolute, is none at all, or leaves a folder by a link or ``..``."""
    if not location or Path(location).is_absolute():
        return True
    try:
        return not (folder / location).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):
        return True  # links in a circle, or no name of a file


def _number(tensor: onnx.TensorProto, stated: dict[str, str], key: str, default: int) -> int:
    text = stated.get(key, str(default))
    if not (text.isascii() and text.isdigit()):
        raise _unreadable(tensor, f"has an {key} of its data that is no number", text)
    return int(text)


def _misfit(tensor: onnx.TensorProto, seen: str, wanted: str) -> popart_exception:
    kind = _T.DataType.Name(tensor.data_type)
    return popart_exception(
        "PD610",
        f"tensor '{tensor.name}' of the model ({kind} {list(tensor.dims)}) has other data than "
        "its shape says",
        value=seen,
        accepted=wanted,
        hint="the file is damaged, or was cut off: copy or export it again",
    )


def _unreadable(
    tensor: onnx.TensorProto, what: str, value: object, hint: str | None = None
) -> popart_exception:
    return popart_exception(
        "PD610", f"tensor '{tensor.name}' of the model {what}", value=value, hint=hint
    )


_MOST_DENSE = 1 << 30
"""Bytes of a sparse initializer that becomes a dense one."""


def densified(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model whose sparse initializers are dense ones, which train in all their elements.

    Raises:
        popart_exception: One would be larger than a gibibyte, or its indices leave its shape.
    """
    if not proto.graph.sparse_initializer:
        return proto
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for sparse in made.graph.sparse_initializer:
        made.graph.initializer.append(_dense(sparse))
    del made.graph.sparse_initializer[:]
    return made


def _dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    values, places = (
        np.asarray(ir.serde.deserialize_tensor(one).numpy())
        for one in (sparse.values, sparse.indices)
    )
    shape = tuple(sparse.dims)
    size = math.prod(shape) * values.dtype.itemsize
    if size > _MOST_DENSE or any(length < 0 for length in shape):
        raise _unreadable(sparse.values, "is sparse and too large to be a dense tensor", shape)
    flat = places
    if places.ndim == 2:  # noqa: PLR2004 - an index for each dimension
        known = (places >= 0).all() and (places < np.asarray(shape)).all()
        flat = np.ravel_multi_index(tuple(places.T), shape) if known else np.asarray([-1])
    if flat.shape != values.shape or (
        flat.size and not 0 <= flat.min() <= flat.max() < math.prod(shape)
    ):
        raise _unreadable(sparse.values, "is sparse, and its indices leave its shape", shape)
    dense = np.zeros(math.prod(shape), values.dtype)
    dense[flat] = values
    return onnx.numpy_helper.from_array(dense.reshape(shape), sparse.values.name)
