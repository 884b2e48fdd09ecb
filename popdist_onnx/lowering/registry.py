"""The registry of lowerings, and the `Operation` that each lowering gets.

A module with lowerings is imported when a model has one of its operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from popdist_onnx.errors import ValueRangeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx_ir as ir

    from popdist_onnx.graph.tensor import Tape, Tensor


DOMAIN = "ai.graphcore"
"""The domain of PopART's own operators."""


@dataclass(frozen=True)
class Operation:
    """One node with typed access to its inputs and attributes.

    Args:
        tape: Writes the nodes that replace the node.
        node: The node.
    """

    tape: Tape
    node: ir.Node

    @property
    def inputs(self) -> list[Tensor]:
        """The inputs that are present."""
        return [self.tape.wrap(value) for value in self.node.inputs if value is not None]

    def optional(self, index: int) -> Tensor | None:
        """An optional input; None where it is absent."""
        if index >= len(self.node.inputs) or (value := self.node.inputs[index]) is None:
            return None
        return self.tape.wrap(value)

    def number(self, name: str, default: int) -> int:
        """An integer attribute."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else int(attribute.as_int())

    def real(self, name: str, default: float) -> float:
        """A floating-point attribute."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else float(attribute.as_float())

    def numbers(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """An attribute of integers; without default it must be present.

        Raises:
            ValueRangeError: The attribute is missing.
        """
        attribute = self.node.attributes.get(name)
        if attribute is not None:
            return [int(number) for number in attribute.as_ints()]
        if default is None:
            raise self.misfit(f"needs the attribute {name}")
        return list(default)

    def text(self, name: str, default: str) -> str:
        """An attribute of text."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else str(attribute.as_string())

    def misfit(
        self, what: str, *, value: object = None, accepted: str | None = None
    ) -> ValueRangeError:
        """The error for operands or attributes; ``what`` continues "<operator> of <output>"."""
        output = self.node.outputs[0].name if self.node.outputs else self.node.name
        return ValueRangeError(
            "PD510",
            f"{self.node.op_type} of '{output}' {what}",
            value=value,
            accepted=accepted,
        )


Lowering: TypeAlias = "Callable[[Operation], Tensor | Sequence[Tensor]]"
"""Writes what takes a node's place, and returns a tensor for each of the node's outputs."""

FAMILIES = {
    "calls": "Abort Call PackedDataBlock PrintTensor",
    "ctc": "Ctc CtcBeamSearchDecoder",
    "elementwise": "Atan2 BitwiseAnd BitwiseNot BitwiseOr BitwiseXnor BitwiseXor Detach Expm1 "
    "FakeQuantize Fmod Gelu GeluErf IncrementMod Log1p NearbyInt Nop NormalizeImage Remainder "
    "Round Scale ScaledAdd Swish TensorRemap",
    "indices": "Bucketize EmbeddingGather GroupedGather ScatterReduce SequenceSlice Sort",
    "layers": "GroupNormalization IdentityLoss L1 LSTM MultiConv Nll ReplicatedAllReduce "
    "ShapedDropout",
    "shapes": "DepthToSpace DynamicAdd DynamicSlice DynamicUpdate DynamicZero Init ReduceMedian "
    "Reshape Reverse Slice Subsample",
}
"""The operators by the module of this folder that registers their lowering."""

OPERATORS = {
    op_type: family for family, op_types in FAMILIES.items() for op_type in op_types.split()
}
"""The same, by operator."""

_LOWERINGS: dict[str, Lowering] = {}
"""Lowerings by operator, of the modules that are imported."""


def lowering(*op_types: str) -> Callable[[Lowering], Lowering]:
    """Registers a function as the lowering of operators of ``ai.graphcore``."""

    def register(function: Lowering) -> Lowering:
        _LOWERINGS.update(dict.fromkeys(op_types, function))
        return function

    return register


def lowering_of(op_type: str) -> Lowering:
    """The lowering of an operator of `OPERATORS`."""
    if op_type not in _LOWERINGS:
        import_module(f"popdist_onnx.lowering.{OPERATORS[op_type]}")
    return _LOWERINGS[op_type]
