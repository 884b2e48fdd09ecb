"""Makes nodes, and the values that a graph starts from: constants, inputs, initializers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist_onnx.graph.tensor import Array


def operator_node(
    domain: str,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Any],
    outputs: Sequence[str],
    metadata: Mapping[str, str],
) -> ir.Node:
    """A node of any operator.

    Args:
        domain: The operator's domain.
        op_type: The operator.
        inputs: What it reads.
        attributes: Its attributes; those that are None are left out.
        outputs: The names of its outputs; the first one is the node's too.
        metadata: Its metadata.

    Returns:
        The node.
    """
    given = {name: value for name, value in attributes.items() if value is not None}
    return ir.Node(
        domain,
        op_type,
        inputs,
        ir.convenience.convert_attributes(given),
        outputs=[ir.Value(name=name) for name in outputs],
        name=outputs[0],
        metadata_props=dict(metadata),
    )


def constant_node(array: Array, name: str, metadata: Mapping[str, str]) -> ir.Node:
    """A node whose output is a constant.

    Args:
        array: The content.
        name: The name of node and output.
        metadata: The node's metadata.

    Returns:
        The node.
    """
    tensor = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape))
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype))
    content = [ir.AttrTensor("value", tensor)]
    return ir.Node(
        "", "Constant", [], content, outputs=[value], name=name, metadata_props=dict(metadata)
    )


def put_first(graph: ir.Graph, node: ir.Node) -> None:
    """Puts a node before all others.

    Args:
        graph: The graph.
        node: The node, which reads nothing.
    """
    first = next(iter(graph), None)
    if first is None:
        graph.append(node)
    else:
        graph.insert_before(first, node)


def add_input(
    graph: ir.Graph, name: str, dtype: ir.DataType, shape: Sequence[int | str | None]
) -> ir.Value:
    """Adds an input to a graph.

    Args:
        graph: The graph.
        name: Its name.
        dtype: Its element type.
        shape: Its shape.

    Returns:
        The input.
    """
    value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))
    graph.inputs.append(value)
    return value


def add_initializer(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """Adds an initializer to a graph.

    Args:
        graph: The graph.
        name: Its name.
        array: Its content.

    Returns:
        The initializer.
    """
    value = ir.Value(
        name=name,
        shape=ir.Shape(array.shape),
        type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        const_value=ir.Tensor(array, name=name),
    )
    graph.register_initializer(value)
    return value
