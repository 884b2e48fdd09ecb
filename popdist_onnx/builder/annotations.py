"""The builder's methods that place work on IPUs: kept with each node, without effect here."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import onnx

from popdist_onnx.builder.attributes import plain_attribute
from popdist_onnx.builder.core import (
    EXCLUDE_PATTERNS,
    EXECUTION_PHASE,
    INPLACE,
    MEMORY_PROPORTION,
    OUTLINE,
    PARTIALS_TYPE,
    PIPELINE_STAGE,
    PREFIX,
    RECOMPUTE,
    SCHEDULE_PRIORITY,
    SERIALIZE_MATMUL,
    VIRTUAL_GRAPH,
    Core,
    read,
    written,
)
from popdist_onnx.errors import ArgumentError, ValueRangeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import onnx_ir as ir


# The builder's methods that read and write attributes of nodes, found by their outputs.


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


class Annotations(NodeAttributes):
    """Annotations of nodes that exist, or of all that are made in a context."""

    def virtualGraph(self, *arguments: Any) -> Any:
        """Says which IPU computes: a node that exists, or all that are made in a context.

        Write ``virtualGraph(id, v)``, or ``with virtualGraph(v):``.

        Args:
            *arguments: The value, after the ids of the outputs where the node exists already.

        Returns:
            A context manager, or None where ids were given.
        """
        return self._annotate("virtualGraph", VIRTUAL_GRAPH, arguments)

    def pipelineStage(self, *arguments: Any) -> Any:
        """Says which pipeline stage computes; arguments as for `virtualGraph`."""
        return self._annotate("pipelineStage", PIPELINE_STAGE, arguments)

    def executionPhase(self, *arguments: Any) -> Any:
        """Says which execution phase computes; arguments as for `virtualGraph`."""
        return self._annotate("executionPhase", EXECUTION_PHASE, arguments)

    def schedulePriority(self, *arguments: Any) -> Any:
        """Says how early to compute; arguments as for `virtualGraph`."""
        return self._annotate("schedulePriority", SCHEDULE_PRIORITY, arguments)

    def recomputeOutput(self, *arguments: Any) -> Any:
        """Says whether an output is computed again; arguments as for `virtualGraph`."""
        return self._annotate("recomputeOutput", RECOMPUTE, arguments)

    def recomputeOutputInBackwardPass(self, ids: Iterable[str] | str, value: int = 1) -> None:
        """Says whether an output is computed again in backward.

        Args:
            ids: The outputs of a node.
            value: A `RecomputeType`, or 0 or 1.
        """
        self._note(ids, RECOMPUTE, int(value))

    def getRecomputeOutputInBackwardPass(self, ids: Iterable[str] | str) -> bool:
        """Whether an output is computed again in backward.

        Args:
            ids: The outputs of a node.

        Returns:
            What was said of it.
        """
        return bool(self._find(self._node(ids), RECOMPUTE))

    def checkpointOutput(self, ids: Iterable[str], debugContext: object = "") -> list[str]:
        """Marks tensors that backward keeps; a host keeps all of them.

        Args:
            ids: The tensors.
            debugContext: Ignored.

        Returns:
            The same ids.
        """
        del debugContext
        kept = list(ids)
        for tensor in kept:
            if self.value(tensor).producer() is not None:
                self._note(tensor, RECOMPUTE, 0)
        return kept

    def hasVirtualGraph(self, ids: Iterable[str] | str) -> bool:
        """Whether it was said which IPU computes a node."""
        return self.nodeHasAttribute(VIRTUAL_GRAPH, ids)

    def getVirtualGraph(self, ids: Iterable[str] | str) -> int:
        """The IPU that computes a node."""
        return self.getInt64NodeAttribute(VIRTUAL_GRAPH, ids)

    def hasPipelineStage(self) -> bool:
        """Whether a context of `pipelineStage` is open."""
        return bool(self._current.get(PIPELINE_STAGE))

    def getPipelineStage(self) -> int:
        """The stage of the innermost context of `pipelineStage`.

        Raises:
            ValueRangeError: None is open.
        """
        if not self.hasPipelineStage():
            raise ValueRangeError("PD505", "no pipeline stage is set here")
        return int(self._current[PIPELINE_STAGE][-1])

    def excludePatterns(self, ids: Iterable[str] | str, patterns: Iterable[str]) -> None:
        """Names patterns that leave a node alone."""
        self._note(ids, EXCLUDE_PATTERNS, list(patterns))

    def setPartialsType(self, ids: Iterable[str] | str, partialsType: str) -> None:
        """Says in which type partial sums are kept."""
        self._note(ids, PARTIALS_TYPE, partialsType)

    def getPartialsType(self, ids: Iterable[str] | str) -> str:
        """What `setPartialsType` said; ``FLOAT`` if nothing."""
        return str(self._find(self._node(ids), PARTIALS_TYPE) or "FLOAT")

    def setAvailableMemoryProportion(self, ids: Iterable[str] | str, proportion: float) -> None:
        """Says which share of a tile's memory an operator may use.

        Args:
            ids: The outputs of a node.
            proportion: The share.

        Raises:
            ValueRangeError: It does not lie between 0 and 1.
        """
        if not 0 < proportion <= 1:
            raise ValueRangeError(
                "PD501", "a memory proportion lies between 0 and 1", value=proportion
            )
        self._note(ids, MEMORY_PROPORTION, float(proportion))

    def setSerializeMatMul(
        self,
        ids: Iterable[str] | str,
        mode: str,
        factor: int = 0,
        keep_precision: bool = False,
    ) -> None:
        """Says along which dimension a matmul is computed piece by piece.

        Args:
            ids: The outputs of a node.
            mode: ``none``, ``input_channels``, ``reducing_dim`` or ``output_channels``.
            factor: The number of pieces.
            keep_precision: Whether partial results keep their precision.

        Raises:
            ValueRangeError: There is no such mode.
        """
        modes = ("none", "input_channels", "reducing_dim", "output_channels")
        if mode not in modes:
            raise ValueRangeError(
                "PD501", "no such way to serialise a matmul", value=mode, accepted=", ".join(modes)
            )
        self._note(ids, SERIALIZE_MATMUL, [mode, factor, keep_precision])

    def setInplacePreferences(
        self, ids: Iterable[str] | str, preferences: Mapping[str, float]
    ) -> None:
        """Says which in-place variants of an operator are liked."""
        self._note(ids, INPLACE, dict(preferences))

    def outlineAttributes(self, attributes: Mapping[str, Any]) -> Any:
        """Attributes that tell parts apart whose code would be shared.

        Args:
            attributes: Values by key.

        Returns:
            A context manager.
        """
        return self._meanwhile(OUTLINE, {key: str(one) for key, one in attributes.items()})

    def _annotate(self, method: str, key: str, arguments: tuple[Any, ...]) -> Any:
        match arguments:
            case (value,):
                return self._meanwhile(key, int(value))
            case (ids, value):
                return self._note(ids, key, int(value))
            case _:
                raise ArgumentError(
                    "PD501",
                    f"{method} takes a value, or ids and a value",
                    value=arguments,
                    hint=f"write `with builder.{method}(0):` or `builder.{method}(id, 0)`",
                )

    @contextmanager
    def _meanwhile(self, key: str, value: Any) -> Iterator[None]:
        self._current.setdefault(key, []).append(value)
        try:
            yield
        finally:
            self._current[key].pop()

    def _note(self, ids: Iterable[str] | str, key: str, value: Any) -> None:
        self._node(ids).metadata_props[key] = written(value)
