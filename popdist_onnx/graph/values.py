"""Type, shape and content of a graph's values, and functions that add inputs and initializers."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx_ir as ir

from popdist_onnx.graph.names import FAILED_INFERENCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Dim: TypeAlias = "int | str | None"
"""A length, the name of an unknown length, or nothing known."""

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


def dims(value: ir.Value) -> tuple[Dim, ...] | None:
    """The known lengths of a value; None where the rank is not known."""
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def failed_inference(value: ir.Value) -> ir.Node | None:
    """The first node before a value whose own inputs are known and whose output shape is not."""
    seen: set[ir.Value] = set()
    found, node = None, value.producer()
    while node is not None:
        found = node
        unknown = [
            one
            for one in node.inputs
            if one is not None and (one.dtype is None or one.shape is None) and one not in seen
        ]
        seen.update(unknown)
        stops = FAILED_INFERENCE in node.meta or not unknown
        node = None if stops else unknown[0].producer()
    return found


def why_unknown(value: ir.Value) -> str:
    """A sentence that names the node where inference stopped, its inputs and the reason."""
    node = failed_inference(value)
    if node is None:
        return f"nothing says what {value.name!r} is"
    inputs = ", ".join(f"{one.name} {_described(one)}" for one in node.inputs if one is not None)
    reason = node.meta.get(FAILED_INFERENCE, "its outputs depend on values")
    return (
        f"shape inference stopped at {node.op_type} {node.name or node.outputs[0].name!r} "
        f"(inputs: {inputs or 'none'}): {reason}"
    )


def _described(value: ir.Value) -> str:
    kind = "of unknown type" if value.dtype is None else value.dtype.name
    known = dims(value)
    return f"{kind} {'of unknown shape' if known is None else list(known)}"


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """An input of a node; None where the node does not have it."""
    return node.inputs[index] if index < len(node.inputs) else None


def static(value: ir.Value) -> bool:
    """Whether a value's whole shape is known."""
    known = dims(value)
    return known is not None and all(isinstance(dim, int) for dim in known)


def lengths(value: ir.Value) -> tuple[int, ...] | None:
    """A tensor's shape; None where a length is not known."""
    if not static(value):
        return None
    return tuple(int(length) for length in value.shape or ())  # type: ignore[arg-type]


def constant(value: ir.Value) -> Array | None:
    """A value's content where the graph fixes it, else None.

    Floating-point initializers are weights. Training changes them, so they are not constants.
    """
    node = value.producer()
    if node is not None:
        return _of_constant_node(node) if node.op_type == "Constant" else None
    if value.const_value is None or value.is_graph_input():
        return None
    if value.const_value.dtype.is_floating_point():
        return None
    return np.asarray(value.const_value.numpy())


def stored(value: ir.Value) -> Array | None:
    """A value's content where the file has it: that of a constant, or the first of a weight."""
    if value.const_value is not None:
        return np.asarray(value.const_value.numpy())
    return constant(value)


def _of_constant_node(node: ir.Node) -> Array | None:
    for name, attribute in node.attributes.items():
        content = attribute.value
        match name:
            case "value":
                return np.asarray(content.numpy())
            case "value_int" | "value_ints":
                return np.asarray(content, np.int64)
            case "value_float" | "value_floats":
                return np.asarray(content, np.float32)
            case _:
                # A sparse value, or an annotation of PopART's.
                continue
    return None


def operator_node(
    domain: str,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Any],
    outputs: Sequence[str],
    metadata: Mapping[str, str],
) -> ir.Node:
    """A node of any operator; attributes that are None are left out.

    The first name in ``outputs`` is also the node's name; without outputs, the operator is.
    """
    given = {name: value for name, value in attributes.items() if value is not None}
    return ir.Node(
        domain,
        op_type,
        inputs,
        ir.convenience.convert_attributes(given),
        outputs=[ir.Value(name=name) for name in outputs],
        name=outputs[0] if outputs else op_type,
        metadata_props=dict(metadata),
    )


def constant_node(array: Array, name: str, metadata: Mapping[str, str]) -> ir.Node:
    """A node whose output is a constant; ``name`` names both."""
    tensor = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape))
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype))
    content = [ir.AttrTensor("value", tensor)]
    return ir.Node(
        "", "Constant", [], content, outputs=[value], name=name, metadata_props=dict(metadata)
    )


def put_first(graph: ir.Graph, node: ir.Node) -> None:
    """Inserts a node without inputs before all others."""
    first = next(iter(graph), None)
    if first is None:
        graph.append(node)
    else:
        graph.insert_before(first, node)


def add_input(
    graph: ir.Graph, name: str, dtype: ir.DataType, shape: Sequence[int | str | None]
) -> ir.Value:
    """Adds an input to a graph."""
    value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))
    graph.inputs.append(value)
    return value


def add_initializer(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """Adds an initializer to a graph."""
    value = ir.Value(
        name=name,
        shape=ir.Shape(array.shape),
        type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        const_value=ir.Tensor(array, name=name),
    )
    graph.register_initializer(value)
    return value


def add_shared(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Adds an initializer that shares the content of a tensor, which keeps its own name."""
    if isinstance(tensor, ir.TensorProtoTensor):
        # Its name is that of the file's message.
        twin: ir.TensorProtocol = ir.LazyTensor(lambda: tensor, tensor.dtype, tensor.shape)
    else:
        twin = copy(tensor)
    twin.name = name
    value = ir.Value(
        name=name,
        shape=ir.Shape(tensor.shape.numpy()),
        type=ir.TensorType(tensor.dtype),
        const_value=twin,
    )
    graph.register_initializer(value)
    return value
