"""The table of gradient rules, and what a rule gets to see.

A rule is a function of one node, seen from its gradient: it returns the gradient that flows to the
node's first input, or a list with one entry per input (None where none flows). The module with the
rules of a family is imported when a model has one of its operators.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import onnx_ir as ir

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph import shape_ops
from popdist_onnx.graph.names import OPSET, ORIGIN

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from popdist_onnx.graph.tensor import Tape, Tensor


T = TypeVar("T")

Edges: TypeAlias = "Tensor | Sequence[Tensor | None] | Mapping[ir.Value, Tensor] | None"
"""What a rule returns: the first input's gradient, those of all inputs, or those of any values."""

RuleFunction: TypeAlias = "Callable[[At], Edges]"
"""A rule: from a node, seen from its gradient, to gradients of its inputs."""


@dataclass(frozen=True)
class Rule:
    """How an operator's gradient is made.

    Attributes:
        function: The rule; None where the gradient is zero wherever it exists.
        broadcasts: Whether inputs are broadcast, so that gradients are summed back.
        inputs: The inputs that gradients flow to; None where they flow to all.
        reason: For operators without gradient: why.
    """

    function: RuleFunction | None
    broadcasts: bool = False
    inputs: Collection[int] | None = None
    reason: str = ""


FAMILIES = {
    "": {
        "activations": "Celu Elu Gelu HardSigmoid HardSwish LeakyRelu LogSoftmax LpNormalization "
        "Mish PRelu Relu Selu Shrink Sigmoid Softmax Softplus Softsign ThresholdedRelu",
        "arithmetic": "Add Clip Div Dropout Max Mean Min Mod Mul Pow Sub Sum Where",
        "control_flow": "If Loop Scan",
        "convolution": "Conv ConvTranspose",
        "elementary": "Abs Acos Acosh And ArgMax ArgMin Asin Asinh Atan Atanh Bernoulli BitShift "
        "BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BlackmanWindow Cast CastLike Ceil Constant "
        "ConstantOfShape ConvInteger Cos Cosh DequantizeLinear DynamicQuantizeLinear Equal Erf Exp "
        "EyeLike Floor Greater GreaterOrEqual HammingWindow HannWindow Hardmax Identity IsInf "
        "IsNaN Less LessOrEqual Log MatMulInteger Multinomial Neg NonMaxSuppression NonZero Not Or "
        "QLinearConv QLinearMatMul QuantizeLinear RandomNormal RandomNormalLike RandomUniform "
        "RandomUniformLike Range Reciprocal Round Shape Sign Sin Sinh Size Sqrt Tan Tanh Unique "
        "Xor",
        "gru": "GRU RNN",
        "indexing": "Compress Gather GatherElements GatherND OneHot ScatterElements ScatterND TopK",
        "layout": "Col2Im Concat DepthToSpace Expand Flatten Pad Reshape ReverseSequence Slice "
        "SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze",
        "losses": "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
        "lstm": "LSTM",
        "normalization": "BatchNormalization GroupNormalization InstanceNormalization LRN "
        "LayerNormalization MeanVarianceNormalization RMSNormalization",
        "pooling": "AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool "
        "MaxUnpool",
        "products": "DFT Det Einsum Gemm MatMul",
        "reductions": "CumSum ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean "
        "ReduceMin ReduceProd ReduceSum ReduceSumSquare",
        "sampling": "AffineGrid GridSample Resize RoiAlign",
    },
    "ai.graphcore": {
        "graphcore": "Atan2 Ctc Detach Expm1 FakeQuantize Gelu GeluErf GroupNormalization Log1p "
        "Nll ReplicatedAllReduce",
    },
}
"""The operators with a rule, by domain and by the module of this folder that registers it."""

_HOMES = {
    (domain, op_type): family
    for domain, families in FAMILIES.items()
    for family, op_types in families.items()
    for op_type in op_types.split()
}

_RULES: dict[tuple[str, str], Rule] = {}
"""Rules by domain and operator, of the modules that are imported."""


def gradient(
    *op_types: str,
    domain: str = "",
    broadcasts: bool = False,
    inputs: Collection[int] | None = None,
) -> Callable[[RuleFunction], RuleFunction]:
    """Registers a rule.

    Args:
        *op_types: The operators that it is for.
        domain: Their domain.
        broadcasts: Whether inputs are broadcast against each other.
        inputs: The inputs that gradients flow to; None for all floating-point ones.

    Returns:
        A decorator.
    """

    def register(function: RuleFunction) -> RuleFunction:
        for op_type in op_types:
            _RULES[domain, op_type] = Rule(function, broadcasts, inputs)
        return function

    return register


def no_gradient(*op_types: str, reason: str, domain: str = "") -> None:
    """Registers operators that no gradient flows through."""
    for op_type in op_types:
        _RULES[domain, op_type] = Rule(None, reason=reason)


Reverse: TypeAlias = (
    "Callable[[ir.Graph, Sequence[tuple[ir.Value, Tensor]], Sequence[ir.Value]],"
    " Mapping[ir.Value, Tensor]]"
)
"""Differentiates a sub-graph; see `At`."""


def _no_reverse(
    graph: ir.Graph, seeds: Sequence[tuple[ir.Value, Tensor]], sources: Sequence[ir.Value]
) -> Mapping[ir.Value, Tensor]:
    raise NotImplementedError(graph.name, seeds, sources)


@dataclass
class At:
    """A node, seen from its gradient.

    Attributes:
        tape: Where the gradient is written.
        node: The node.
        gradients: The gradient of each output; None where nothing that leads to the loss reads it.
        wanted: Whether each input's gradient is needed.
        kept: Values whose own gradient was asked for, which rules over several nodes must not skip.
        reached: All values whose gradient is needed.
        reverse: Writes the gradients of a graph inside of the node: from the graph, gradients of
            its values, and the values whose gradients are wanted, to these gradients.
    """

    tape: Tape
    node: ir.Node
    gradients: Sequence[Tensor | None]
    wanted: Sequence[bool]
    kept: Collection[ir.Value] = field(default=())
    reached: Collection[ir.Value] = field(default=())
    reverse: Reverse = field(default=_no_reverse)

    @property
    def g(self) -> Tensor:
        """The gradient of the first output; zeros where only others are read."""
        return self.g_of(0)

    def g_of(self, index: int) -> Tensor:
        """The gradient of an output; zeros where it is not read."""
        found = self.gradients[index]
        return shape_ops.zeros(self.output(index)) if found is None else found

    @property
    def x(self) -> Tensor:
        """The first input."""
        return self.input(0)

    @property
    def y(self) -> Tensor:
        """The first output."""
        return self.output(0)

    def input(self, index: int) -> Tensor:
        """An input that exists."""
        value = self.node.inputs[index]
        if value is None:
            raise IndexError(f"{self.node.name} has no input {index}")
        return self.tape.wrap(value)

    def optional(self, index: int) -> Tensor | None:
        """An input that may be left out.

        Args:
            index: Which one.

        Returns:
            The input, or None.
        """
        if index >= len(self.node.inputs) or self.node.inputs[index] is None:
            return None
        return self.input(index)

    def output(self, index: int) -> Tensor:
        """An output."""
        return self.tape.wrap(self.node.outputs[index])

    def with_outputs(self, count: int) -> None:
        """Writes the node again where it lacks some of its first outputs."""
        node, tape = self.node, self.tape
        present = [bool(output.name) for output in node.outputs[:count]]
        if sum(present) == count:
            return
        settings = {name: one.value for name, one in node.attributes.items()}
        number = max(count, len(node.outputs))
        with tape.at(node, f"{node.name or node.op_type}/", node.metadata_props):
            made = tape.custom(node.domain, node.op_type, number, *node.inputs, **settings)
            tape.substitute(node, made[: len(node.outputs)])
        self.node = made[0].value.producer() or node
        self.gradients = [*self.gradients, *[None] * (number - len(self.gradients))]

    def wants(self, index: int) -> bool:
        """Whether an input's gradient is needed."""
        return index < len(self.wanted) and self.wanted[index]

    def get(self, name: str, default: T) -> T:
        """An attribute."""
        attribute = self.node.attributes.get(name)
        if attribute is None:
            return default
        value: T = attribute.value
        return value

    def known(self, index: int) -> Any:
        """The content of an input that must be a constant.

        Raises:
            popart_exception: The content is known only at run time.
        """
        content = self.input(index).constant
        if content is None:
            raise self.refused(f"its input {self.node.inputs[index].name!r} is no constant")  # type: ignore[union-attr]
        return content

    def refused(self, why: str, hint: str | None = None) -> popart_exception:
        """The error for a node whose gradient cannot be made."""
        return popart_exception(
            "PD525", f"there is no gradient of {described(self.node)}: {why}", hint=hint
        )


def rule_of(node: ir.Node) -> Rule | None:
    """The rule for a node.

    Args:
        node: The node.

    Returns:
        The rule, or None where there is none.
    """
    return find_rule(node.domain, node.op_type)


def find_rule(domain: str, op_type: str) -> Rule | None:
    """The rule for an operator, from the module of its family.

    Args:
        domain: Its domain.
        op_type: The operator.

    Returns:
        The rule, or None where there is none.
    """
    family = _HOMES.get((domain, op_type))
    if family is not None and (domain, op_type) not in _RULES:
        import_module(f"popdist_onnx.gradients.{family}")
    return _RULES.get((domain, op_type))


def differentiable(domain: str) -> frozenset[str]:
    """The operators of a domain that have a rule."""
    return frozenset(op_type for ruled, op_type in _HOMES if ruled == domain)


def described(node: ir.Node) -> str:
    """A node, as messages name it.

    Args:
        node: The node.

    Returns:
        Its name, operator and opset, as they were in the file.
    """
    graph = node.graph if isinstance(node.graph, ir.Graph) else None
    opset: object = None
    if graph is not None:
        written = graph.meta.get(OPSET) if node.domain == "" else None
        opset = written or graph.opset_imports.get(node.domain)
    kind = node.metadata_props.get(ORIGIN) or f"{node.op_type}-{opset or '?'}"
    domain = node.domain or "ai.onnx"
    return f"node {node.name or node.outputs[0].name!r} ({domain} {kind})"


# Which element types ONNX Runtime's CPU kernels train in, by operator.
#
# Float32 always works. Float16 works where a kernel exists, or where the runtime casts to float32
# around one, which it does for all but the operators below. Of bfloat16 it has hardly any kernels,
# and it does not cast: cast to float32 around the operators, or train in float32.


WITHOUT_FLOAT64 = frozenset(
    {
        *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh", "Tan", "Erf", "Celu"),
        *("AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool"),
        *("Conv", "ConvTranspose", "Det", "GridSample"),
        *("InstanceNormalization", "LRN", "MeanVarianceNormalization"),
        *("GRU", "LSTM", "RNN"),
        *("Mean", "NonZero", "Hardmax", "Atan2", "MultiConv", "GeluErf"),
    }
)
"""Operators that the runtime cannot train in float64 (ONNX Runtime 1.31, tried one by one)."""

WITHOUT_FLOAT16 = frozenset({"Celu", "GridSample", "MeanVarianceNormalization"})
"""Operators that the runtime cannot train in float16."""
