"""Layers: several convolutions at once, LSTM, dropout with a mask of its own shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.errors import NotOnHostError
from popdist_onnx.graph import extents
from popdist_onnx.graph.names import ORIGIN
from popdist_onnx.lowering.registry import Operation, lowering

if TYPE_CHECKING:
    import onnx_ir as ir

    from popdist_onnx.graph.tensor import Tensor


@lowering("MultiConv")
def multi_conv(op: Operation) -> list[Tensor]:
    """One ``Conv`` for each; there is nothing to gain from planning them together."""
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
        bias = tape.Concat(given, extents.zeros(given), axis=1)
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
        raise op.misfit(
            "takes a shape that can be broadcast to the input's", value=shape, accepted=str(x.dims)
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
    """The input: the graph that runs is that of one replica; see `require_one_replica`."""
    return op.tape.Identity(*op.inputs)


def require_one_replica(graph: ir.Graph, replicas: int) -> None:
    """Refuses operators that sum over replicas, where a session has several.

    Args:
        graph: The graph.
        replicas: Replicas of the whole job.

    Raises:
        NotOnHostError: The graph has such an operator, and there are several replicas.
    """
    if replicas == 1:
        return
    for node in graph.all_nodes():
        if node.op_type == "ReplicatedAllReduce":
            raise NotOnHostError(
                "PD503",
                f"replicatedallreduce '{node.outputs[0].name}' cannot sum over {replicas} replicas:"
                " replicas run one after the other",
                hint="anchor the tensor and sum it in the program, or use one replica",
            )
