"""What the builder stands on: one graph, its values by id, and its opset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from popdist.nearest import did_you_mean
from popdist_onnx.builder.annotations import current_notes
from popdist_onnx.builder.naming import Ids, debug_name, require_unreserved
from popdist_onnx.errors import ValueRangeError, popart_exception
from popdist_onnx.graph.compat import subgraphs
from popdist_onnx.graph.inference import annotate
from popdist_onnx.graph.operands import require_operands_of, require_steps
from popdist_onnx.graph.published import misfit, negative_shape
from popdist_onnx.graph.values import dims, static
from popdist_onnx.lowering import DOMAIN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist_onnx.types.tensor_info import TensorInfo

# The published names of what a builder takes where a program asks for no opset.
defaultAiOnnxOpset = 10  # noqa: N816 - published name
defaultAiGraphcoreOpset = 1  # noqa: N816 - published name
defaultAiOnnxMlOpset = 1  # noqa: N816 - published name

DEFAULT_OPSETS = {
    "ai.onnx": defaultAiOnnxOpset,
    DOMAIN: defaultAiGraphcoreOpset,
    "ai.onnx.ml": defaultAiOnnxMlOpset,
}
"""The versions that PopART's builder takes where the program does not say."""

_SHOWN = 40

_MARK = "[ShapeInferenceError]"


class GraphWriter:
    """One graph under construction; a sub-graph shares opsets, ids and notes with its parent.

    Args:
        parent: The writer of the graph around a sub-graph.
        opsets: Versions by domain; the first use of another version fixes those not given.

    Attributes:
        parent: As given.
        opsets: The versions in use, by domain.
        ids: The ids that are taken.
        values: The graph's own tensors by id.
        notes: For each annotation the values of the contexts around, innermost last.
        graph: The graph.
        metadata: Of the model; what a saved model holds beside its graph.
    """

    def __init__(
        self, parent: GraphWriter | None = None, opsets: Mapping[str, int] | None = None
    ) -> None:
        self.parent = parent
        self.opsets: dict[str, int] = parent.opsets if parent else dict(opsets or {})
        self.ids: Ids = parent.ids if parent else Ids()
        self.values: dict[str, ir.Value] = {}
        self.notes: dict[str, list[Any]] = parent.notes if parent else {}
        self.graph = ir.Graph([], [], nodes=[], name="BuilderGraph")
        self.metadata: dict[str, str] = {}

    def continue_graph(self, graph: ir.Graph) -> None:
        """Continues a graph that exists."""
        self.graph = graph
        values = [*graph.inputs, *graph.initializers.values()]
        values += [output for node in graph for output in node.outputs]
        self.values = {str(value.name): value for value in values}
        self.ids.take(self.values)

    @property
    def onnx_opset(self) -> int:
        """The version of ``ai.onnx`` in use."""
        return self.opsets.get("ai.onnx", DEFAULT_OPSETS["ai.onnx"])

    def use_opset(self, domain: str, version: int) -> None:
        """Fixes a domain's version at its first use.

        Raises:
            popart_exception: Another version is in use.
        """
        if (used := self.opsets.setdefault(domain, version)) != version:
            methods = f"aiOnnxOpset{version}" if domain == "ai.onnx" else f"{domain} {version}"
            raise popart_exception(
                "PD502",
                f"Invalid opset '{methods}' selected. Opset for domain {domain} already defined as "
                f"{used}",
                hint=f'make the builder with Builder(opsets={{"{domain}": {version}}})',
            )

    def value(self, tensor_id: object) -> ir.Value:
        """A tensor by its id.

        Args:
            tensor_id: The id.

        Returns:
            The value, of this graph or of one around it.

        Raises:
            ValueRangeError: There is no such tensor.
        """
        if isinstance(tensor_id, str):
            if tensor_id in self.values:
                return self.values[tensor_id]
            if self.parent is not None:
                return self.parent.value(tensor_id)
        known = list(self.values)
        hint = did_you_mean(str(tensor_id), known, shown="'{}'")
        if not isinstance(tensor_id, str):
            hint = "operators with several outputs return a list: give one id, such as ids[0]"
        listed = ", ".join(known[:_SHOWN]) + (", ..." if len(known) > _SHOWN else "")
        raise ValueRangeError(
            "PD500",
            f"Unknown tensor '{tensor_id}'",
            accepted=f"the tensors {listed}" if known else "there are no tensors yet",
            hint=hint,
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
        """
        values = [self.value(one) if one != "" else None for one in inputs]
        stem = debug_name(debug_context) or op_type
        ids = [self.ids.fresh(f"{stem}:{number}") for number in range(outputs)]
        node = ir.Node(
            "" if domain == "ai.onnx" else domain,
            op_type,
            values,
            attributes,
            outputs=[ir.Value(name=one) for one in ids],
            name=ids[0] if ids else stem,
            metadata_props=current_notes(self.notes),
        )
        _describe_constant(node)
        require_steps(node)
        annotate(node, self.onnx_opset)
        require_fitting(node, self.onnx_opset)
        self.graph.append(node)
        self.values.update(zip(ids, node.outputs, strict=True))
        return ids

    def add_input(self, name: str, info: TensorInfo | None) -> ir.Value:
        """Appends an input; without type and shape where the caller of a sub-graph decides them."""
        require_unreserved(name)
        value = ir.Value(name=self.ids.fresh(name))
        if info is not None:
            value.type = ir.TensorType(ir.DataType(info.dataType().onnx))
            value.shape = ir.Shape(info.shape())
        self.graph.inputs.append(value)
        self.values[str(value.name)] = value
        return value


def _describe_constant(node: ir.Node) -> None:
    # Before opset 9, ONNX's own inference says nothing of constants.
    if node.op_type == "Constant" and "value" in node.attributes:
        content = node.attributes["value"].as_tensor()
        node.outputs[0].type = ir.TensorType(content.dtype)
        node.outputs[0].shape = ir.Shape(content.numpy().shape)


def require_fitting(node: ir.Node, opset: int) -> None:
    """Refuses a node of ``ai.onnx`` whose operands' shapes contradict each other.

    Args:
        node: The node, after inference gave its outputs their shapes.
        opset: The version of ``ai.onnx``.

    Raises:
        ValueRangeError: ONNX's shape inference finds it, or an output's dimension is negative.
    """
    shapes = [dims(output) for output in node.outputs]
    if any(isinstance(dim, int) and dim < 0 for shape in shapes for dim in shape or ()):
        raise negative_shape(node, opset)
    if node.op_type == "Transpose" and node.inputs[0] is not None:
        _require_permutation(node, dims(node.inputs[0]), opset)
    require_operands_of(node, opset)
    inputs = [value for value in node.inputs if value is not None]
    known = all(value.type is not None and static(value) for value in inputs)
    # Branches and bodies are not inferred on their own.
    plain = not node.domain and not any(True for _ in subgraphs(node))
    if not plain or None not in shapes or not inputs or not known:
        return
    if complaint := _complaint(node, inputs, opset):
        raise misfit(node, complaint, opset)


def _require_permutation(node: ir.Node, shape: tuple[object, ...] | None, opset: int) -> None:
    """ONNX's inference takes a list of axes of any length."""
    order = node.attributes.get_ints("perm", None)
    if order is not None and shape is not None and sorted(order) != list(range(len(shape))):
        raise misfit(node, f"{list(order)} is not an order of the {len(shape)} axes", opset)


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
