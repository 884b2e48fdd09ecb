"""The builder's methods that place work on IPUs: kept with each node, without effect here."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from popdist_onnx.builder import annotation_keys as keys
from popdist_onnx.builder.node_attributes import NodeAttributes
from popdist_onnx.errors import ArgumentError, ValueRangeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


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
        return self._annotate("virtualGraph", keys.VIRTUAL_GRAPH, arguments)

    def pipelineStage(self, *arguments: Any) -> Any:
        """Says which pipeline stage computes; arguments as for `virtualGraph`."""
        return self._annotate("pipelineStage", keys.PIPELINE_STAGE, arguments)

    def executionPhase(self, *arguments: Any) -> Any:
        """Says which execution phase computes; arguments as for `virtualGraph`."""
        return self._annotate("executionPhase", keys.EXECUTION_PHASE, arguments)

    def schedulePriority(self, *arguments: Any) -> Any:
        """Says how early to compute; arguments as for `virtualGraph`."""
        return self._annotate("schedulePriority", keys.SCHEDULE_PRIORITY, arguments)

    def recomputeOutput(self, *arguments: Any) -> Any:
        """Says whether an output is computed again; arguments as for `virtualGraph`."""
        return self._annotate("recomputeOutput", keys.RECOMPUTE, arguments)

    def recomputeOutputInBackwardPass(self, ids: Iterable[str] | str, value: int = 1) -> None:
        """Says whether an output is computed again in backward.

        Args:
            ids: The outputs of a node.
            value: A `RecomputeType`, or 0 or 1.
        """
        self._note(ids, keys.RECOMPUTE, int(value))

    def getRecomputeOutputInBackwardPass(self, ids: Iterable[str] | str) -> bool:
        """Whether an output is computed again in backward.

        Args:
            ids: The outputs of a node.

        Returns:
            What was said of it.
        """
        return bool(self._find(self._node(ids), keys.RECOMPUTE))

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
                self._note(tensor, keys.RECOMPUTE, 0)
        return kept

    def hasVirtualGraph(self, ids: Iterable[str] | str) -> bool:
        """Whether it was said which IPU computes a node."""
        return self.nodeHasAttribute(keys.VIRTUAL_GRAPH, ids)

    def getVirtualGraph(self, ids: Iterable[str] | str) -> int:
        """The IPU that computes a node."""
        return self.getInt64NodeAttribute(keys.VIRTUAL_GRAPH, ids)

    def hasPipelineStage(self) -> bool:
        """Whether a context of `pipelineStage` is open."""
        return bool(self._current.get(keys.PIPELINE_STAGE))

    def getPipelineStage(self) -> int:
        """The stage of the innermost context of `pipelineStage`.

        Raises:
            ValueRangeError: None is open.
        """
        if not self.hasPipelineStage():
            raise ValueRangeError("PD505", "no pipeline stage is set here")
        return int(self._current[keys.PIPELINE_STAGE][-1])

    def excludePatterns(self, ids: Iterable[str] | str, patterns: Iterable[str]) -> None:
        """Names patterns that leave a node alone."""
        self._note(ids, keys.EXCLUDE_PATTERNS, list(patterns))

    def setPartialsType(self, ids: Iterable[str] | str, partialsType: str) -> None:
        """Says in which type partial sums are kept."""
        self._note(ids, keys.PARTIALS_TYPE, partialsType)

    def getPartialsType(self, ids: Iterable[str] | str) -> str:
        """What `setPartialsType` said; ``FLOAT`` if nothing."""
        return str(self._find(self._node(ids), keys.PARTIALS_TYPE) or "FLOAT")

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
        self._note(ids, keys.MEMORY_PROPORTION, float(proportion))

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
        self._note(ids, keys.SERIALIZE_MATMUL, [mode, factor, keep_precision])

    def setInplacePreferences(
        self, ids: Iterable[str] | str, preferences: Mapping[str, float]
    ) -> None:
        """Says which in-place variants of an operator are liked."""
        self._note(ids, keys.INPLACE, dict(preferences))

    def outlineAttributes(self, attributes: Mapping[str, Any]) -> Any:
        """Attributes that tell parts apart whose code would be shared.

        Args:
            attributes: Values by key.

        Returns:
            A context manager.
        """
        return self._meanwhile(keys.OUTLINE, {key: str(one) for key, one in attributes.items()})

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
        self._node(ids).metadata_props[key] = keys.written(value)
