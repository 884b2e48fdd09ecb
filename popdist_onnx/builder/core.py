"""What every part of the builder stands on: one graph, its values by id, and its opset."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from popdist.nearest import did_you_mean
from popdist_onnx.builder.naming import Ids, debug_name
from popdist_onnx.errors import ValueRangeError, popart_exception
from popdist_onnx.graph.compat import subgraphs
from popdist_onnx.graph.inference import Info, annotate, inference
from popdist_onnx.graph.values import dims, static
from popdist_onnx.lowering import DOMAIN
from popdist_onnx.lowering.apply import refuse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# Placement annotations in a file: as metadata of nodes, where every tool passes them by.
#
# PopART writes them as attributes. In files that it wrote they stay so: names that begin with two
# underscores are exempt from the schemas.


PREFIX = "__"
"""Beginning of every annotation's key."""

VIRTUAL_GRAPH = "__ipu_number"
PIPELINE_STAGE = "__pipeline_stage"
EXECUTION_PHASE = "__execution_phase"
RECOMPUTE = "__recompute_output"
SCHEDULE_PRIORITY = "__schedule_priority"
EXCLUDE_PATTERNS = "__exclude_patterns"
PARTIALS_TYPE = "__partials_type"
MEMORY_PROPORTION = "__available_memory_proportion"
SERIALIZE_MATMUL = "__serialize_matmul"
OUTLINE = "__outline"
INPLACE = "__inplace_preferences"


def written(value: Any) -> str:
    """An annotation's value as metadata hold it.

    Args:
        value: Numbers, texts, and lists or dictionaries of these.

    Returns:
        JSON.
    """
    return json.dumps(value, default=lambda one: one.item())


def read(text: str) -> Any:
    """The inverse of `written`.

    Args:
        text: JSON.

    Returns:
        The value.
    """
    return json.loads(text)


def notes_of(current: Mapping[str, list[Any]]) -> dict[str, str]:
    """The annotations that hold where a node is made.

    Args:
        current: For each key, the values of the contexts around, innermost last.

    Returns:
        The node's metadata.
    """
    return {key: written(values[-1]) for key, values in current.items() if values}


# Operands that do not fit each other, found while the model is built.


_MARK = "[ShapeInferenceError]"


def require_fitting(node: ir.Node, opset: int) -> None:
    """Refuses a node of ``ai.onnx`` whose operands' shapes contradict each other.

    Args:
        node: The node, after inference gave its outputs their shapes.
        opset: The version of ``ai.onnx``.

    Raises:
        ValueRangeError: ONNX's shape inference says so, or an output's dimension is negative.
    """
    shapes = [dims(output) for output in node.outputs]
    if any(isinstance(dim, int) and dim < 0 for shape in shapes for dim in shape or ()):
        raise ValueRangeError(
            "PD510",
            f"{node.op_type} would make '{node.outputs[0].name}' with a negative dimension",
            value=shapes,
            hint="look at the padding, kernel and slice arguments",
        )
    inputs = [value for value in node.inputs if value is not None]
    known = all(value.type is not None and static(value) for value in inputs)
    # Branches and bodies are not inferred on their own.
    plain = not node.domain and not any(True for _ in subgraphs(node))
    if not plain or None not in shapes or not inputs or not known:
        return
    if complaint := _complaint(node, inputs, opset):
        raise ValueRangeError(
            "PD510",
            f"the operands of {node.op_type} do not fit each other: {complaint}",
            value={str(value.name): dims(value) for value in inputs},
        )


def _complaint(node: ir.Node, inputs: Sequence[ir.Value], opset: int) -> str | None:
    infos = {str(value.name): ir.serde.serialize_value(value) for value in inputs}
    outputs = [onnx.ValueInfoProto(name=str(output.name)) for output in node.outputs]
    graph = onnx.helper.make_graph(
        [ir.serde.serialize_node(node)], "node", list(infos.values()), outputs
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        lines = [line for line in str(error).splitlines() if _MARK in line]
        return lines[-1].rpartition(_MARK)[2].strip() if lines else None
    return None


DEFAULT_OPSETS = {"ai.onnx": 10, DOMAIN: 1, "ai.onnx.ml": 1}
"""The versions that PopART's builder takes where the program does not say."""

_SHOWN = 40


class Core:
    """One graph under construction.

    Args:
        parent: The builder around a sub-graph.
        opsets: Versions by domain; the first use of another version fixes those not given.
    """

    def __init__(self, parent: Core | None = None, opsets: Mapping[str, int] | None = None) -> None:
        self._parent = parent
        self._opsets: dict[str, int] = parent._opsets if parent else dict(opsets or {})  # noqa: SLF001
        self._ids: Ids = parent._ids if parent else Ids()  # noqa: SLF001
        self._values: dict[str, ir.Value] = {}
        self._current: dict[str, list[Any]] = parent._current if parent else {}  # noqa: SLF001
        self.graph = ir.Graph([], [], nodes=[], name="BuilderGraph")

    @property
    def onnx_opset(self) -> int:
        """The version of ``ai.onnx`` in use."""
        return self._opsets.get("ai.onnx", DEFAULT_OPSETS["ai.onnx"])

    def use_opset(self, domain: str, version: int) -> None:
        """Fixes a domain's version at its first use.

        Args:
            domain: The domain.
            version: The version.

        Raises:
            popart_exception: Another version is in use.
        """
        if (used := self._opsets.setdefault(domain, version)) != version:
            raise popart_exception(
                "PD502",
                f"cannot use opset {version} of {domain}: this builder uses opset {used} already",
                hint=f'make the builder with Builder(opsets={{"{domain}": {version}}})',
            )

    def value(self, tensor_id: str) -> ir.Value:
        """A tensor by its id.

        Args:
            tensor_id: The id.

        Returns:
            The value, of this graph or of one around it.

        Raises:
            ValueRangeError: There is no such tensor.
        """
        if isinstance(tensor_id, str):
            if tensor_id in self._values:
                return self._values[tensor_id]
            if self._parent is not None:
                return self._parent.value(tensor_id)
        known = list(self._values)
        listed = ", ".join(known[:_SHOWN]) + (", ..." if len(known) > _SHOWN else "")
        raise ValueRangeError(
            "PD500",
            f"Unknown tensor '{tensor_id}'",
            accepted=f"the tensors {listed}" if known else "there are no tensors yet",
            hint=did_you_mean(str(tensor_id), known, shown="'{}'"),
        )

    def add_node(
        self,
        domain: str,
        op_type: str,
        inputs: Sequence[str],
        attributes: Sequence[ir.Attr],
        outputs: int,
        debug_context: object = "",
    ) -> list[str]:
        """Appends a node.

        Args:
            domain: The operator's domain.
            op_type: The operator.
            inputs: Ids; an empty one leaves the input out.
            attributes: Its attributes.
            outputs: How many outputs it has.
            debug_context: A name for the outputs.

        Returns:
            The outputs' ids.

        Raises:
            ValueRangeError: An input does not exist, or the operands do not fit each other.
            NotOnHostError: No host can run the operator.
        """
        if domain == DOMAIN:
            refuse(op_type)
        values = [self.value(one) if one != "" else None for one in inputs]
        stem = debug_name(debug_context) or op_type
        ids = [self._ids.fresh(f"{stem}:{number}") for number in range(outputs)]
        node = ir.Node(
            "" if domain == "ai.onnx" else domain,
            op_type,
            values,
            attributes,
            outputs=[ir.Value(name=one) for one in ids],
            name=ids[0] if ids else stem,
            metadata_props=notes_of(self._current),
        )
        _describe_constant(node)
        annotate(node, self.onnx_opset)
        require_fitting(node, self.onnx_opset)
        self.graph.append(node)
        self._values.update(zip(ids, node.outputs, strict=True))
        return ids


def _describe_constant(node: ir.Node) -> None:
    # Before opset 9, ONNX's own inference says nothing of constants.
    if node.op_type == "Constant" and "value" in node.attributes:
        content = node.attributes["value"].as_tensor()
        node.outputs[0].type = ir.TensorType(content.dtype)
        node.outputs[0].shape = ir.Shape(content.numpy().shape)


# Types and shapes of what loops make, where ONNX's inference stays silent.


_BEFORE_STATE = 2
"""Inputs of a loop before its state: the most turns, and the condition."""


@inference("", "Loop")
def loop_outputs(node: ir.Node) -> list[Info]:
    """A state that leaves the body as it entered the loop keeps its shape.

    ONNX says nothing of it, because a body may change its state's shape from turn to turn.

    Args:
        node: The loop.

    Returns:
        Type and shape of its outputs.
    """
    body = node.attributes["body"].as_graph()
    begun = node.inputs[_BEFORE_STATE:]
    made = body.outputs[1:]
    found: list[Info] = []
    for number, value in enumerate(made):
        shape = dims(value)
        if number >= len(begun):
            found.append((value.dtype, None if shape is None else [None, *shape]))
            continue
        first = begun[number]
        same = first is not None and shape is not None and dims(first) == shape
        found.append((value.dtype, shape if same else None))
    return found
