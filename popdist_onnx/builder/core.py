"""What every part of the builder stands on: one graph, its values by id, and its opset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from popdist.nearest import did_you_mean
from popdist_onnx.builder.annotation_keys import notes_of
from popdist_onnx.builder.mismatches import require_fitting
from popdist_onnx.builder.naming import Ids, debug_name
from popdist_onnx.errors import ValueRangeError, popart_exception
from popdist_onnx.graph.inference import annotate
from popdist_onnx.lowering import DOMAIN
from popdist_onnx.lowering.apply import refuse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
