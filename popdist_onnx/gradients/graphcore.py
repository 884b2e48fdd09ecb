"""Operators of ``ai.graphcore`` whose own gradient is leaner than that of their lowering.

All others are lowered before autodiff and differentiated as ``ai.onnx`` operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from popdist_onnx.gradients.activations import gelu
from popdist_onnx.gradients.losses import one_hot
from popdist_onnx.gradients.normalization import channels, normalized_gradient, over_channels
from popdist_onnx.gradients.registry import At, Edges, gradient, no_gradient
from popdist_onnx.graph import shape_ops
from popdist_onnx.lowering.ctc import ctc_gradient
from popdist_onnx.lowering.layers import grouped, ungrouped
from popdist_onnx.lowering.registry import DOMAIN, Operation

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tensor

_SMALLEST = {ir.DataType.FLOAT16: 6.104e-5}
"""What the backward half of `Nll` takes for smaller probabilities; 1e-10 for other types."""


no_gradient("Detach", domain=DOMAIN, reason="it stops gradients: that is what it is for")


@gradient("Gelu", domain=DOMAIN)
def _gelu(at: At) -> Edges:
    return gelu(at, at.get("approximate", "tanh"))


@gradient("GeluErf", domain=DOMAIN)
def _gelu_erf(at: At) -> Edges:
    return gelu(at, "none")


@gradient("Log1p", domain=DOMAIN)
def _log1p(at: At) -> Tensor:
    return at.g / (at.x + 1.0)


@gradient("Expm1", domain=DOMAIN)
def _expm1(at: At) -> Tensor:
    return at.g * at.tape.Exp(at.x)


@gradient("Atan2", domain=DOMAIN, broadcasts=True)
def _atan2(at: At) -> list[Tensor]:
    """``(x dy - y dx) / (x^2 + y^2)``, and zero at the origin, as in torch.

    Both are divided by the larger one first, so that no square vanishes or overflows.
    """
    tape, y, x = at.tape, at.input(0), at.input(1)
    larger = tape.Max(tape.Abs(y), tape.Abs(x))
    one = tape.scalar(1, x.dtype)
    length = tape.Where(tape.Equal(larger, 0.0), one, larger)
    v, u = y / length, x / length
    squares = u * u + v * v
    scaled = at.g / length / tape.Where(tape.Equal(larger, 0.0), one, squares)
    return [u * scaled, -(v * scaled)]


@gradient("ReplicatedAllReduce", domain=DOMAIN)
def _replicated_all_reduce(at: At) -> Tensor:
    """Each replica's input is in the sums of all: the sum of their gradients."""
    settings = {name: one.value for name, one in at.node.attributes.items()}
    return at.tape.custom(DOMAIN, "ReplicatedAllReduce", 1, at.g, **settings)[0]


@gradient("FakeQuantize", domain=DOMAIN, inputs=(0,))
def _fake_quantize(at: At) -> Tensor:
    """Straight through where the number is in range, zero outside; scales are settings."""
    return at.tape.Where(at.output(1), at.g, at.tape.scalar(0, at.g.dtype))


@gradient("Nll", domain=DOMAIN, inputs=(0,))
def _nll(at: At) -> Edges:
    """Through a softmax, softmax - onehot; else -onehot / max(p, 1e-10); per row, times its share.

    Source: PopART's patterns SoftmaxGradDirect and NlllWithSoftmaxGradDirect; its Nll clamps the
    probability in the backward half at another value than in the forward half.
    """
    tape, scores = at.tape, at.x
    share, index = _rows(at)
    logarithmic = bool(at.get("inputIsLogProbability", 0))
    producer = scores.value.producer()
    source = "LogSoftmax" if logarithmic else "Softmax"
    if producer is not None and producer.op_type == source and _fusible(at, producer):
        probabilities = tape.Exp(scores) if logarithmic else scores
        (before,) = producer.inputs
        return (
            {before: (probabilities - one_hot(index, scores, axis=-1)) * share} if before else None
        )
    hot = one_hot(index, scores, axis=-1) * -share
    if logarithmic:
        return hot
    return hot / tape.Max(scores, _SMALLEST.get(scores.dtype, 1e-10))


def _fusible(at: At, producer: ir.Node) -> bool:
    last = producer.attributes.get_int("axis", -1) % at.x.rank == at.x.rank - 1
    return last and at.x.value not in at.kept


def _rows(at: At) -> tuple[Tensor, Tensor]:
    """Each row's share of the gradient, to be broadcast over classes, and its class."""
    tape, g, reduction = at.tape, at.g, at.get("reduction", "Mean")
    index = tape.Cast(at.input(1), to=ir.DataType.INT64)
    ignored = at.node.attributes.get("ignoreIndex")
    counted = None
    if ignored is not None:
        counted = tape.Cast(tape.Not(tape.Equal(index, ignored.as_int())), to=at.x.dtype)
    if reduction == "Mean":
        rows = shape_ops.count(index) if counted is None else tape.ReduceSum(counted, keepdims=0)
        if isinstance(rows, int | float):
            g = g / rows
        else:
            g = g / tape.Max(tape.Cast(rows, to=at.x.dtype), 1.0)
    if counted is not None:
        g = g * counted
    return (tape.Unsqueeze(g, [-1]) if g.dims else g), index


@gradient("Ctc", domain=DOMAIN, inputs=(0,))
def _ctc(at: At) -> Tensor:
    return ctc_gradient(Operation(at.tape, at.node), at.g)


@gradient("GroupNormalization", domain=DOMAIN)
def _group_normalization(at: At) -> list[Tensor | None]:
    """The node's second and third outputs are the statistics."""
    tape, x, scale = at.tape, at.x, at.input(1)
    groups = at.get("num_groups", 1)
    op = Operation(tape, at.node)
    mean, inverse = (tape.Reshape(at.output(one), [-1, groups, 1]) for one in (1, 2))
    n = (grouped(op, x, groups) - mean) * inverse
    h = grouped(op, at.g * channels(scale, x.rank), groups)
    edge = normalized_gradient(h, n, inverse, [2])
    # The statistics are outputs of their own: d mean = 1/m, d inverse = -inverse^2 n / m.
    if at.gradients[1] is not None:
        edge += tape.Reshape(at.g_of(1), [-1, groups, 1]) / shape_ops.count(n, [2])
    if at.gradients[2] is not None:
        flow = tape.Reshape(at.g_of(2), [-1, groups, 1]) * inverse * inverse
        edge -= n * flow / shape_ops.count(n, [2])
    return [
        ungrouped(op, edge, x, groups),
        over_channels(at.g * ungrouped(op, n, x, groups)) if at.wants(1) else None,
        over_channels(at.g) if at.wants(2) else None,
    ]
