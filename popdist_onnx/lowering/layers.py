"""Layers, losses and group normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from popdist_onnx.errors import NotOnHostError, ValueRangeError
from popdist_onnx.graph import shape_ops
from popdist_onnx.graph.names import ORIGIN
from popdist_onnx.graph.published import wrong_length
from popdist_onnx.lowering.registry import DOMAIN, Operation, lowering

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Operand, Tensor


@lowering("MultiConv")
def multi_conv(op: Operation) -> list[Tensor]:
    """One ``Conv`` for each; a host gains nothing from planning them together."""
    inputs = iter(op.inputs)
    places = {name: iter(op.numbers(name, [])) for name in _CONV_SETTINGS}
    outputs = []
    for count in op.numbers("inputCounts"):
        operands = [next(inputs) for _ in range(count)]
        spatial = operands[0].rank - 2
        settings = {
            name: [next(numbers, default) for _ in range(spatial * sides)]
            for (name, (sides, default)), numbers in zip(
                _CONV_SETTINGS.items(), places.values(), strict=True
            )
        }
        if any(one != 1 for one in settings.pop("inDilations")) or any(settings.pop("outPads")):
            raise NotOnHostError(
                "PD503",
                "multiconv with inDilations or outPads has no counterpart in ai.onnx",
                hint="use aiOnnx.convtranspose for dilated inputs, aiOnnx.pad for padded outputs",
            )
        outputs.append(op.tape.Conv(*operands, **settings))
    for name, numbers in places.items():
        sides = _CONV_SETTINGS[name][0]
        if left := len(list(numbers)):
            length = spatial * sides + left
            raise ValueRangeError("PD510", wrong_length(name, length, spatial * sides))
    return outputs


_CONV_SETTINGS = {
    "dilations": (1, 1),
    "pads": (2, 0),
    "strides": (1, 1),
    "inDilations": (1, 1),
    "outPads": (2, 0),
}


@lowering("LSTM")
def lstm(op: Operation) -> tuple[Tensor, Tensor]:
    """PopART's LSTM: sequence (or its last output) and cell state.

    Inputs: x ``[T, N, I]``, weights ``[4, I + H, H]``, biases ``[4, H]``, initial output and cell
    state ``[2, N, H]``; the gates come in the order forget, input, candidate, output.
    """
    tape = op.tape
    x, weights = op.inputs[:2]
    biases, state = op.optional(2), op.optional(3)
    _steps, batch, features = x.shape
    gates, rows, hidden = weights.shape
    if gates != 4 or rows != features + hidden:  # noqa: PLR2004 - gates of an LSTM
        raise op.misfit(
            "takes weights of shape [4, inputs + hidden, hidden]",
            value=weights.dims,
            accepted=f"[4, {features} + hidden, hidden]",
        )
    # ONNX wants input, output, forget, candidate, each as rows of one matrix.
    order = tape.ints(1, 3, 0, 2)
    turned = tape.Transpose(tape.Gather(weights, order, axis=0), perm=[0, 2, 1])
    flat = tape.Reshape(turned, [1, 4 * hidden, rows])
    w = tape.Slice(flat, [0], [features], [2])
    r = tape.Slice(flat, [features], [rows], [2])
    bias = None
    if biases is not None:
        given = tape.Reshape(tape.Gather(biases, order, axis=0), [1, 4 * hidden])
        bias = tape.Concat(given, shape_ops.zeros(given), axis=1)
    h0 = c0 = None
    if state is not None:
        h0 = tape.Slice(state, [0], [1], [0])
        c0 = tape.Slice(state, [1], [2], [0])
    full, last, cell = tape.many("LSTM", 3, x, w, r, bias, None, h0, c0, hidden_size=hidden)
    if op.number("outputFullSequence", 1):
        sequence = tape.Squeeze(full, [1])
    else:
        sequence = tape.Reshape(last, [batch, hidden])
    return sequence, tape.Reshape(cell, [batch, hidden])


@lowering("ShapedDropout")
def shaped_dropout(op: Operation) -> Tensor:
    """Dropout of a tensor of ones, which is broadcast over the input; it drops in training only."""
    tape = op.tape
    (x,) = op.inputs
    shape = op.numbers("shape")
    if len(shape) > x.rank or any(
        length not in (1, dim)
        for length, dim in zip(reversed(shape), reversed(x.shape), strict=False)
    ):
        raise ValueRangeError(
            "PD510",
            "ShapedDropout: incompatible input tensor and dropout shape. It is configured with "
            f"shape {shape} which is not broadcastable to the input tensor with shape "
            f"{list(x.shape)}.",
        )
    ratio = tape.constant(np.asarray(op.real("ratio", 0.5), np.float32))
    ones = tape.constant(np.ones(shape, x.dtype.numpy()))
    mask = tape.Dropout(ones, ratio)
    dropout = mask.value.producer()
    if dropout is not None:
        # Like Dropout before opset 12, which has no mode: the kind of session decides.
        dropout.metadata_props[ORIGIN] = "Dropout-10"
    return x * mask


@lowering("ReplicatedAllReduce")
def replicated_all_reduce(op: Operation) -> Tensor:
    """The input: the graph has one replica; where there are others, the runtime sums over them."""
    return op.tape.Identity(*op.inputs)


# Losses: rows or elements, and how they are reduced.


SMALLEST_PROBABILITY = {ir.DataType.FLOAT16: 6.104e-5}
"""What `nll` takes for smaller probabilities, by type; see `smallest_probability`."""


def smallest_probability(dtype: ir.DataType) -> float:
    """The lower bound of probabilities in the negative log likelihood (PopART's value)."""
    return SMALLEST_PROBABILITY.get(dtype, 1e-7)


def reduced(op: Operation, elements: Tensor, count: Operand = None) -> Tensor:
    """Applies the attribute ``reduction``; a mean divides by ``count``, by default by elements.

    Raises:
        ValueRangeError: There is no such reduction.
    """
    match op.text("reduction", "Mean"):
        case "Sum":
            return op.tape.ReduceSum(elements, keepdims=0)
        case "Mean" if count is None:
            return op.tape.ReduceMean(elements, keepdims=0)
        case "Mean":
            return op.tape.ReduceSum(elements, keepdims=0) / count
        case "None" | "NoReduction":
            return elements
        case other:
            raise op.misfit("has no such reduction", value=other, accepted="Sum, Mean, None")


@lowering("Nll")
def nll(op: Operation) -> Tensor:
    """``-ln max(p[label], eps)``, or ``-x[label]`` for log probabilities."""
    tape = op.tape
    probabilities, labels = op.inputs
    require_labels(op, probabilities, labels)
    classes = probabilities.dims[-1] if probabilities.dims else None
    index = tape.Cast(labels, to=ir.DataType.INT64)
    ignored = None
    if "ignoreIndex" in op.node.attributes:
        ignored = tape.Equal(index, op.number("ignoreIndex", 0))
        index = tape.Where(ignored, tape.scalar(0), index)
    if isinstance(classes, int):
        # GatherElements counts negative indices from the end. A negative label is an error, so it
        # becomes an index beyond the end.
        index = tape.Where(index < 0, tape.scalar(classes), index)
    picked = tape.GatherElements(probabilities, tape.Unsqueeze(index, [-1]), axis=-1)
    rows = tape.Squeeze(picked, [-1])
    if not op.number("inputIsLogProbability", 0):
        rows = tape.Log(tape.Max(rows, smallest_probability(rows.dtype)))
    rows = -rows
    if ignored is None:
        return reduced(op, rows)
    counted = tape.ReduceSum(tape.Cast(tape.Not(ignored), to=rows.dtype), keepdims=0)
    return reduced(op, tape.Where(ignored, tape.scalar(0, rows.dtype), rows), tape.Max(counted, 1))


def require_labels(op: Operation, probabilities: Tensor, labels: Tensor) -> None:
    """Checks that labels are integers, one per row of probabilities.

    Raises:
        ValueRangeError: They do not fit.
    """
    if labels.dtype.is_floating_point():
        raise op.misfit("takes labels of a fixed-point type", value=labels.dtype.name)
    if probabilities.dims is None or labels.dims is None:
        return
    rows = probabilities.dims[:-1]
    fits = len(rows) == len(labels.dims) and all(
        row == label or not (isinstance(row, int) and isinstance(label, int))
        for row, label in zip(rows, labels.dims, strict=True)
    )
    if not fits:
        raise op.misfit(
            "takes one label per row of probabilities",
            value={"probabilities": probabilities.dims, "labels": labels.dims},
            accepted=f"labels of shape {list(rows)}",
        )


@lowering("L1")
def l1(op: Operation) -> Tensor:
    """``lambda * |x|``."""
    (x,) = op.inputs
    if x.dims == ():
        raise op.misfit("takes a tensor with at least one dimension")
    return reduced(op, op.tape.Abs(x) * op.real("lambda", 1.0))


@lowering("IdentityLoss")
def identity_loss(op: Operation) -> Tensor:
    """The input itself, reduced."""
    (x,) = op.inputs
    return reduced(op, x)


# Group normalisation.


STRIDED = "stridedChannelGrouping"
"""Attribute of a node whose groups take every n-th channel; see `stride_groups`."""


@lowering("GroupNormalization")
def group_normalization(op: Operation) -> tuple[Tensor, Tensor, Tensor]:
    """``(x - mean) * invStd * scale + bias``, and mean and invStd of each sample's groups.

    Inputs are x ``[N, C, ...]``, scale ``[C]`` and bias ``[C]``; mean and invStd have shape
    ``[N * groups]``.
    """
    tape = op.tape
    x, scale, bias = op.inputs
    groups = op.number("num_groups", 1)
    epsilon = op.real("epsilon", 1e-5)
    channels = channel_count(op, x, groups)
    for name, one in (("scale", scale), ("bias", bias)):
        if one.static and one.shape != (channels,):
            raise op.misfit(
                f"takes a {name} with one number per channel",
                value=list(one.shape),
                accepted=f"[{channels}]",
            )
    if x.rank == 2 and groups == 1:  # noqa: PLR2004 - samples and channels only
        y, mean, inv_std = tape.many(
            "LayerNormalization", 3, x, scale, bias, axis=1, epsilon=epsilon
        )
        # The kernel's statistics of half-precision tensors are in single precision.
        mean, inv_std = (tape.Reshape(tape.Cast(one, to=x.dtype), [-1]) for one in (mean, inv_std))
        return y, mean, inv_std
    by_group = grouped(op, x, groups)
    mean = tape.ReduceMean(by_group, [2], keepdims=1)
    centred = by_group - mean
    variance = tape.ReduceMean(centred * centred, [2], keepdims=1)
    inv_std = tape.Reciprocal(tape.Sqrt(variance + epsilon))
    normal = ungrouped(op, centred * inv_std, x, groups)
    along = [1, channels, *[1] * (x.rank - 2)]
    y = normal * tape.Reshape(scale, along) + tape.Reshape(bias, along)
    return y, tape.Reshape(mean, [-1]), tape.Reshape(inv_std, [-1])


def channel_count(op: Operation, x: Tensor, groups: int) -> int:
    """The number of channels, checked against the number of groups.

    Raises:
        ValueRangeError: The channels do not divide into groups.
    """
    channels = x.dims[1] if x.dims is not None and x.rank > 1 else None
    if not isinstance(channels, int):
        raise op.misfit("takes a tensor with samples and channels", value=x.dims)
    if groups < 1 or channels % groups:
        raise op.misfit(
            f"cannot divide {channels} channels into {groups} groups",
            accepted=f"a divisor of {channels}",
        )
    return channels


def grouped(op: Operation, x: Tensor, groups: int) -> Tensor:
    """A tensor ``[N, C, ...]`` as ``[N, groups, elements of a group]``."""
    if op.number(STRIDED, 0):
        split = op.tape.Reshape(x, [0, -1, groups, _positions(x)])
        x = op.tape.Transpose(split, perm=[0, 2, 1, 3])
    return op.tape.Reshape(x, [0, groups, -1])


def ungrouped(op: Operation, by_group: Tensor, x: Tensor, groups: int) -> Tensor:
    """The inverse of `grouped`."""
    if op.number(STRIDED, 0):
        channels = channel_count(op, x, groups)
        split = op.tape.Reshape(by_group, [0, groups, channels // groups, _positions(x)])
        by_group = op.tape.Transpose(split, perm=[0, 2, 1, 3])
    return shape_ops.shaped(by_group, x)


def _positions(x: Tensor) -> int:
    return int(np.prod([dim if isinstance(dim, int) else -1 for dim in x.lengths[2:]]))


def stride_groups(graph: ir.Graph) -> None:
    """Makes every group normalisation take each n-th channel into a group, in place.

    The session option ``groupNormStridedChannelGrouping`` asks for this grouping.
    """
    import onnx_ir as ir

    for node in graph.all_nodes():
        if (node.domain, node.op_type) == (DOMAIN, "GroupNormalization"):
            node.attributes[STRIDED] = ir.AttrInt64(STRIDED, 1)
