"""From Python values to ONNX attributes, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from popdist_onnx.errors import ArgumentError
from popdist_onnx.types.enums import ReductionType
from popdist_onnx.types.tensor_info import DataType


class Kind(Enum):
    """What a parameter of an operator's method takes."""

    INT = "a whole number"
    FLOAT = "a number"
    STRING = "a text"
    INTS = "a list of whole numbers"
    FLOATS = "a list of numbers"
    STRINGS = "a list of texts"
    TENSOR = "a numpy array"
    GRAPH = "a sub-graph builder"
    FLAG = "True or False"
    DTYPE = "the name of an element type"
    DTYPE_NAME = "the name of an element type "
    REDUCTION = "a ReductionType"
    PROTO = "a protobuf message of onnx"


def attribute(kind: Kind, name: str, value: Any, what: str) -> ir.Attr:
    """An argument as a node's attribute.

    Args:
        kind: What the parameter takes.
        name: The attribute.
        value: The argument.
        what: Method and parameter, for the error: "add takes {} for axis" with ``{}`` for the kind.

    Returns:
        The attribute.

    Raises:
        ArgumentError: The argument is not what the parameter takes.
    """
    try:
        return _WRITERS[kind](name, value)
    except (TypeError, ValueError, AttributeError, KeyError):
        raise ArgumentError("PD501", what.format(kind.value.strip()), value=value) from None


def _int(name: str, value: Any) -> ir.Attr:
    return ir.AttrInt64(name, _whole(value))


def _whole(value: Any) -> int:
    if isinstance(value, float) or not isinstance(value, (int, np.integer, np.bool_)):
        raise TypeError(value)
    return int(value)


def _float(name: str, value: Any) -> ir.Attr:
    if isinstance(value, (str, bool)):
        raise TypeError(value)
    return ir.AttrFloat32(name, float(value))


def _string(name: str, value: Any) -> ir.Attr:
    if isinstance(value, bytes):
        value = value.decode()
    if not isinstance(value, str):
        raise TypeError(value)
    return ir.AttrString(name, value)


def _strings(name: str, value: Any) -> ir.Attr:
    if isinstance(value, str) or not all(isinstance(one, str) for one in value):
        raise TypeError(value)
    return ir.AttrStrings(name, list(value))


def _tensor(name: str, value: Any) -> ir.Attr:
    # A copy: a program may write to its own array later.
    array = np.array(value, order="C")
    if array.dtype == object:
        raise TypeError(value)
    return ir.AttrTensor(name, ir.Tensor(array))


def _graph(name: str, value: Any) -> ir.Attr:
    return ir.AttrGraph(name, value.graph)


def _dtype(name: str, value: Any) -> ir.Attr:
    code = value if type(value) is int else DataType.of(value).onnx
    if code not in onnx.TensorProto.DataType.values():
        raise ValueError(value)
    return ir.AttrInt64(name, code)


def _dtype_name(name: str, value: Any) -> ir.Attr:
    return ir.AttrString(name, DataType.of(value).name)


def _reduction(name: str, value: Any) -> ir.Attr:
    member = ReductionType(value)
    return ir.AttrString(name, "None" if member is ReductionType.NoReduction else member.name)


def _proto(name: str, value: Any) -> ir.Attr:
    return ir.serde.deserialize_attribute(onnx.helper.make_attribute(name, value))


_WRITERS: dict[Kind, Callable[[str, Any], ir.Attr]] = {
    Kind.INT: _int,
    Kind.FLOAT: _float,
    Kind.STRING: _string,
    Kind.INTS: lambda name, value: ir.AttrInt64s(name, [_whole(one) for one in value]),
    Kind.FLOATS: lambda name, value: ir.AttrFloat32s(name, [float(one) for one in value]),
    Kind.STRINGS: _strings,
    Kind.TENSOR: _tensor,
    Kind.GRAPH: _graph,
    Kind.FLAG: lambda name, value: ir.AttrInt64(name, int(bool(value))),
    Kind.DTYPE: _dtype,
    Kind.DTYPE_NAME: _dtype_name,
    Kind.REDUCTION: _reduction,
    Kind.PROTO: _proto,
}


def plain_attribute(name: str, value: Any) -> ir.Attr:
    """An attribute whose type is that of the Python value.

    Args:
        name: The attribute.
        value: A number, text, array, sub-graph builder, or a list of numbers or texts.

    Returns:
        The attribute.

    Raises:
        ArgumentError: The value is none of these.
    """
    if hasattr(value, "graph"):
        return _graph(name, value)
    if isinstance(value, np.ndarray):
        return _tensor(name, value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        value = [int(one) if isinstance(one, bool) else one for one in value]
    try:
        return ir.serde.deserialize_attribute(onnx.helper.make_attribute(name, value))
    except (TypeError, ValueError):
        raise ArgumentError(
            "PD505",
            f"no attribute can hold the value of {name}",
            value=value,
            accepted="a number, a text, an array, or a list of numbers or texts",
        ) from None
