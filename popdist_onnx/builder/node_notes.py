"""Attributes and annotations of nodes that exist; a node is found by the ids of its outputs.

What an operator's schema does not have (placement annotations, a program's own notes) is kept as
metadata; readers do not tell the difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx

from popdist_onnx.builder.annotations import PREFIX, read, written
from popdist_onnx.builder.attributes import plain_attribute
from popdist_onnx.builder.naming import Pushed
from popdist_onnx.errors import ArgumentError, ValueRangeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx_ir as ir

    from popdist_onnx.builder.graph_writer import GraphWriter


class NodeNotes:
    """Reads and writes what is said of nodes.

    Args:
        writer: The graph.
    """

    def __init__(self, writer: GraphWriter) -> None:
        self._writer = writer

    def add(self, name: str, value: Any, outputs: Iterable[str] | str) -> None:
        """Gives a node an attribute; an error where it has one of that name."""
        node = self._node(outputs)
        if _found(node, name) is not None:
            raise ValueRangeError(
                "PD505",
                f"Node already has attribute {name}.",
                value=node.outputs[0].name,
                hint="remove it first with removeNodeAttribute",
            )
        attribute = plain_attribute(name, value)
        if _in_schema(node, name, self._writer.onnx_opset):
            node.attributes[name] = attribute
        else:
            node.metadata_props[name] = written(value)

    def names(self, outputs: Iterable[str] | str) -> list[str]:
        """Names of a node's attributes and annotations."""
        node = self._node(outputs)
        return [*node.attributes, *node.metadata_props]

    def remove(self, name: str, outputs: Iterable[str] | str) -> None:
        """Takes an attribute from a node that has it."""
        node = self._node(outputs)
        if _found(node, name) is None:
            raise ValueRangeError(
                "PD505",
                f"Cannot remove attribute {name} as it does not exist.",
                value=node.outputs[0].name,
            )
        node.attributes.pop(name, None)
        node.metadata_props.pop(name, None)

    def find(self, name: str, outputs: Iterable[str] | str) -> Any:
        """The value of an attribute or annotation; None where the node has none of that name."""
        return _found(self._node(outputs), name)

    def typed(
        self, name: str, outputs: Iterable[str] | str, kind: type, *, many: bool = False
    ) -> Any:
        """The value of an attribute that has to be of a type, or a list of that type."""
        value = _required(self._node(outputs), name)
        is_list = isinstance(value, (list, tuple))
        members = value if is_list else [value]
        if is_list != many or not all(isinstance(one, kind) for one in members):
            raise ValueRangeError(
                "PD505",
                f"attribute '{name}' is of another type",
                value=value,
                accepted=f"a list of {kind.__name__}" if many else kind.__name__,
            )
        return value

    def annotate(self, outputs: Iterable[str] | str, key: str, value: Any) -> None:
        """Sets an annotation of a node, in place of an earlier one."""
        self._node(outputs).metadata_props[key] = written(value)

    def meanwhile(self, key: str, value: Any) -> Pushed:
        """Annotates every node that is made in the context."""
        return Pushed(self._writer.notes.setdefault(key, []), value)

    def placed(self, method: str, key: str, arguments: tuple[Any, ...]) -> Any:
        """Both forms of a placement: of what is made meanwhile (value), of a node (ids, value)."""
        match arguments:
            case (value,):
                return self.meanwhile(key, int(value))
            case (ids, value):
                return self.annotate(ids, key, int(value))
            case _:
                raise ArgumentError(
                    "PD501",
                    f"{method} takes a value, or ids and a value",
                    value=arguments,
                    hint=f"write `with builder.{method}(0):` or `builder.{method}(id, 0)`",
                )

    def current(self, key: str) -> list[Any]:
        """The values of the contexts that are open for an annotation, innermost last."""
        return self._writer.notes.get(key, [])

    def _node(self, outputs: Iterable[str] | str) -> ir.Node:
        wanted = {outputs} if isinstance(outputs, str) else set(outputs)
        producers = [self._writer.value(one).producer() for one in wanted]
        node = producers[0] if producers else None
        if node is None or any(one is not node for one in producers):
            raise ValueRangeError(
                "PD504",
                "Could not find a node with these outputs",
                value=sorted(wanted),
                hint="give the ids that one operator's method returned",
            )
        return node


def _found(node: ir.Node, name: str) -> Any:
    if name in node.attributes:
        return node.attributes[name].value
    text = node.metadata_props.get(name)
    return None if text is None else read(text)


def _required(node: ir.Node, name: str) -> Any:
    value = _found(node, name)
    if value is None:
        have = [*node.attributes, *node.metadata_props]
        raise ValueRangeError(
            "PD505",
            f"Node does not have an attribute {name}.",
            value=node.outputs[0].name,
            accepted=", ".join(have) or "it has none",
        )
    return value


def _in_schema(node: ir.Node, name: str, opset: int) -> bool:
    if name.startswith(PREFIX):
        return False
    if node.domain not in ("", "ai.onnx"):
        return True
    return name in onnx.defs.get_schema(node.op_type, opset, "").attributes
