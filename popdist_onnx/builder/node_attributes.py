"""The builder's methods that read and write attributes of nodes, found by their outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx

from popdist_onnx.builder.annotation_keys import PREFIX, read, written
from popdist_onnx.builder.attributes import plain_attribute
from popdist_onnx.builder.core import Core
from popdist_onnx.errors import ValueRangeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx_ir as ir


class NodeAttributes(Core):
    """Attributes of nodes.

    What an operator's schema does not have (placement annotations, a program's own notes) is kept
    as metadata; these methods do not tell the difference.
    """

    def addNodeAttribute(self, name: str, value: Any, nodeOutputNames: Iterable[str]) -> None:
        """Gives a node an attribute.

        Args:
            name: The attribute.
            value: A number, text, array, sub-graph builder, or a list of numbers or texts.
            nodeOutputNames: The ids of the node's outputs.

        Raises:
            ValueRangeError: There is no such node, or it has the attribute already.
        """
        node = self._node(nodeOutputNames)
        if self._find(node, name) is not None:
            raise ValueRangeError(
                "PD505",
                f"Node already has an attribute '{name}'",
                value=node.outputs[0].name,
                hint="remove it first with removeNodeAttribute",
            )
        attribute = plain_attribute(name, value)
        if _known(node, name, self.onnx_opset):
            node.attributes[name] = attribute
        else:
            node.metadata_props[name] = written(value)

    def nodeHasAttribute(self, name: str, nodeOutputNames: Iterable[str]) -> bool:
        """Whether a node has an attribute.

        Args:
            name: The attribute.
            nodeOutputNames: The ids of the node's outputs.

        Returns:
            True if it has.
        """
        return self._find(self._node(nodeOutputNames), name) is not None

    def getAllNodeAttributeNames(self, nodeOutputNames: Iterable[str]) -> list[str]:
        """The attributes of a node.

        Args:
            nodeOutputNames: The ids of the node's outputs.

        Returns:
            Their names.
        """
        node = self._node(nodeOutputNames)
        return [*node.attributes, *node.metadata_props]

    def removeNodeAttribute(self, name: str, nodeOutputNames: Iterable[str]) -> None:
        """Takes an attribute from a node.

        Args:
            name: The attribute.
            nodeOutputNames: The ids of the node's outputs.

        Raises:
            ValueRangeError: There is no such node or attribute.
        """
        node = self._node(nodeOutputNames)
        self._require(node, name)
        node.attributes.pop(name, None)
        node.metadata_props.pop(name, None)

    def getInt64NodeAttribute(self, name: str, nodeOutputNames: Iterable[str]) -> int:
        """An attribute that is a whole number."""
        return int(self._typed(name, nodeOutputNames, int))

    def getInt64VectorNodeAttribute(self, name: str, nodeOutputNames: Iterable[str]) -> list[int]:
        """An attribute that is a list of whole numbers."""
        return list(self._typed(name, nodeOutputNames, int, many=True))

    def getFloatNodeAttribute(self, name: str, nodeOutputNames: Iterable[str]) -> float:
        """An attribute that is a number."""
        return float(self._typed(name, nodeOutputNames, float))

    def getFloatVectorNodeAttribute(self, name: str, nodeOutputNames: Iterable[str]) -> list[float]:
        """An attribute that is a list of numbers."""
        return list(self._typed(name, nodeOutputNames, float, many=True))

    def getStringNodeAttribute(self, name: str, nodeOutputNames: Iterable[str]) -> str:
        """An attribute that is a text."""
        return str(self._typed(name, nodeOutputNames, str))

    def getStringVectorNodeAttribute(self, name: str, nodeOutputNames: Iterable[str]) -> list[str]:
        """An attribute that is a list of texts."""
        return list(self._typed(name, nodeOutputNames, str, many=True))

    def getBoolNodeAttribute(self, name: str, nodeOutputNames: Iterable[str]) -> bool:
        """An attribute that is a switch."""
        return bool(self._typed(name, nodeOutputNames, int))

    def _typed(self, name: str, outputs: Iterable[str], kind: type, *, many: bool = False) -> Any:
        node = self._node(outputs)
        value = self._require(node, name)
        members = value if isinstance(value, (list, tuple)) else [value]
        if isinstance(value, (list, tuple)) != many or not all(
            isinstance(one, kind) for one in members
        ):
            raise ValueRangeError(
                "PD505",
                f"attribute '{name}' is of another type",
                value=value,
                accepted=f"a list of {kind.__name__}" if many else kind.__name__,
            )
        return value

    def _require(self, node: ir.Node, name: str) -> Any:
        value = self._find(node, name)
        if value is None:
            have = [*node.attributes, *node.metadata_props]
            raise ValueRangeError(
                "PD505",
                f"Node does not have an attribute '{name}'",
                value=node.outputs[0].name,
                accepted=", ".join(have) or "it has none",
            )
        return value

    @staticmethod
    def _find(node: ir.Node, name: str) -> Any:
        if name in node.attributes:
            return node.attributes[name].value
        text = node.metadata_props.get(name)
        return None if text is None else read(text)

    def _node(self, outputs: Iterable[str] | str) -> ir.Node:
        wanted = {outputs} if isinstance(outputs, str) else set(outputs)
        producers = [self.value(one).producer() for one in wanted]
        node = producers[0] if producers else None
        if node is None or any(one is not node for one in producers):
            raise ValueRangeError(
                "PD504",
                "Could not find a node with these outputs",
                value=sorted(wanted),
                hint="give the ids that one operator's method returned",
            )
        return node


def _known(node: ir.Node, name: str, opset: int) -> bool:
    if name.startswith(PREFIX):
        return False
    if node.domain not in ("", "ai.onnx"):
        return True
    return name in onnx.defs.get_schema(node.op_type, opset, "").attributes
