"""Computes convolutions of a training graph by the formulas that are fastest on this processor.

Images whose channels divide into blocks go to ONNX Runtime's blocked kernels, with the weights laid
out again in every step. So do the gradients of images where the stride is one, and the gradients of
weights where the batch divides into blocks. All other gradients of weights become matrix products.
The rewritten graph fits this machine only, so that files keep the graph before the rewrite.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from popdist_onnx.gradients.convolution import WEIGHT_GRADIENT, is_narrow, products
from popdist_onnx.gradients.windows import Windows
from popdist_onnx.graph import names
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.graph.values import operand, static
from popdist_onnx.runtime.small_maps import (
    convolution,
    gradient_of_images,
    gradient_of_weights,
    is_small,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from popdist_onnx.graph.tensor import Tensor


# Blocked layouts of images and weights (``com.microsoft.nchwc``).
#
# ONNX Runtime uses its blocked kernels itself where weights are constants. In training the weights
# change, so the layout is written here. A block has as many channels as a vector register has
# numbers; ONNX Runtime publishes no such number, and `block_length` compiles a small model to find
# it.


DOMAIN = "com.microsoft.nchwc"
_PROBE_CHANNELS = 64


@cache
def block_length() -> int | None:
    """Channels in a block on this machine; None where there are no blocked kernels."""
    shape = [1, _PROBE_CHANNELS, 8, 8]
    data = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    made = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 1, 6, 6])
    weights = onnx.numpy_helper.from_array(np.ones((1, _PROBE_CHANNELS, 3, 3), np.float32), "w")
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3])
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "probe", [data], [made], [weights]),
        opset_imports=[onnx.helper.make_opsetid("", 13)],
        ir_version=8,
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # it warns that what it writes fits this machine only
    with TemporaryDirectory(prefix="popdist-onnx-") as folder:
        options.optimized_model_filepath = str(Path(folder) / "probe.onnx")
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        rewritten = onnx.load(options.optimized_model_filepath)
    # One channel is padded to a whole block.
    lengths = {tensor.name: tensor.dims[0] for tensor in rewritten.graph.initializer}
    for found in rewritten.graph.node:
        if found.domain == DOMAIN and found.op_type == "Conv":
            return int(lengths[found.input[1]])
    return None


def blocked(x: Tensor) -> Tensor:
    """Images ``[N, C, H, W]`` as ``[N, C / block, H, W, block]``, under the shape of ``x``."""
    return _typed(x.tape.custom(DOMAIN, "ReorderInput", 1, x)[0], x.shape)


def unblocked(y: Tensor) -> Tensor:
    """Blocked images in ONNX's layout ``[N, C, H, W]``."""
    return _typed(y.tape.custom(DOMAIN, "ReorderOutput", 1, y, channels=y.shape[1])[0], y.shape)


def blocked_weights(w: Tensor, length: int) -> Tensor:
    """Weights ``[M, C, H, W]`` as ``[M / block, C / block, H, W, block of C, block of M]``."""
    outputs, inputs, *kernel = w.shape
    split = [outputs // length, length, inputs // length, length, *kernel]
    return _reordered(w, split, [0, 2, 4, 5, 3, 1], w.shape)


def blocked_mirrored_weights(w: Tensor, length: int) -> Tensor:
    """Weights ``[M, C, H, W]`` as blocked ``[C, M, H, W]``, mirrored, for gradients of images."""
    inputs, outputs, *kernel = w.shape
    far = -(1 << 31)
    mirrored = w.tape.Slice(w, [-1, -1], [far, far], [2, 3], [-1, -1]) if max(kernel) > 1 else w
    split = [inputs // length, length, outputs // length, length, *kernel]
    return _reordered(mirrored, split, [2, 0, 4, 5, 1, 3], [outputs, inputs, *kernel])


def blocked_batch(g: Tensor, length: int) -> Tensor:
    """Images ``[N, M, H, W]`` as blocked weights ``[M, N, H, W]``; the batch becomes channels."""
    batch, channels, *size = g.shape
    split = [batch // length, length, channels // length, *size, length]
    return _reordered(blocked(g), split, [2, 0, 3, 4, 1, 5], [channels, batch, *size])


def blocked_convolution(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    *,
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    size: Sequence[int],
) -> Tensor:
    """A convolution of blocked operands; ``size`` is the output's height and width."""
    made = x.tape.custom(
        DOMAIN,
        "Conv",
        1,
        x,
        w,
        bias,
        kernel_shape=w.shape[2:],
        strides=strides,
        dilations=dilations,
        pads=pads,
    )[0]
    return _typed(made, [x.shape[0], w.shape[0], *size])


def _reordered(
    tensor: Tensor, split: Sequence[int], order: Sequence[int], shape: Sequence[int]
) -> Tensor:
    tape = tensor.tape
    parts = tape.Transpose(tape.Reshape(tensor, tape.ints(*split)), perm=order)
    return tape.Reshape(parts, tape.ints(*shape))


def _typed(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Sets type and shape: shape inference does not know ONNX Runtime's own domain."""
    tensor.value.shape = ir.Shape(shape)
    tensor.value.type = ir.TensorType(ir.DataType.FLOAT)
    return tensor


_IMAGES = 4
_LEAST_WIDTH = 3
"""Windows of fewer columns give the kernel too little to do at a time where they are its output."""


def choose_convolutions(model: ir.Model, block: int | None) -> None:
    """Rewrites convolutions in place, without blocked kernels where ``block`` is None."""
    graph = model.graph
    tape = Tape(graph)
    for node in list(graph):
        if node.op_type not in ("Conv", "ConvTranspose") or node.domain not in ("", "ai.onnx"):
            continue
        if node.metadata_props.get(names.ROLE) == WEIGHT_GRADIENT:
            _weight_gradient(tape, node, block)
        elif not _is_plain(node):
            continue
        elif (windows := _small(node)) is not None:
            _as_products(tape, node, windows)
        elif block is not None and _is_blockable(node, block):
            _rewrite(tape, node, block)
    if any(node.domain == DOMAIN for node in graph):
        graph.opset_imports[DOMAIN] = 1


def _is_plain(node: ir.Node) -> bool:
    """Whether a convolution has known shapes, one group and explicit padding."""
    values = [*node.inputs[:2], node.outputs[0]]
    return (
        all(v is not None and v.dtype == ir.DataType.FLOAT and static(v) for v in values)
        and node.attributes.get_int("group", 1) == 1
        and node.attributes.get_string("auto_pad", "NOTSET") == "NOTSET"
        and "output_shape" not in node.attributes
    )


def _is_blockable(node: ir.Node, block: int) -> bool:
    """Whether blocked kernels compute a plain convolution."""
    images, weights = (_shape(value) for value in node.inputs[:2])
    fits = (
        len(images) == _IMAGES
        and all(channels % block == 0 for channels in weights[:2])
        and max(weights[2:]) > 1
    )
    if node.op_type == "Conv" or not fits:
        return fits
    return (
        all(stride == 1 for stride in _ints(node, "strides"))
        and not any(node.attributes.get_ints("output_padding", []))
        and all(pad <= far for pad, far in zip(_pads(node), _reach(node, weights) * 2, strict=True))
    )


def _small(node: ir.Node) -> Windows | None:
    """The windows of a plain convolution over maps that are smaller than its weights."""
    images, results = _shape(node.inputs[0]), _shape(node.outputs[0])
    if node.op_type == "ConvTranspose":
        images, results = results, images
    if not is_small(images, results):
        return None
    rank = len(images) - 2
    pads = node.attributes.get_ints("pads", [0] * (2 * rank))
    return Windows(
        kernel=_shape(node.inputs[1])[2:],
        strides=tuple(node.attributes.get_ints("strides", [1] * rank)),
        dilations=tuple(node.attributes.get_ints("dilations", [1] * rank)),
        before=tuple(pads[:rank]),
        after=tuple(pads[rank:]),
    )


def _as_products(tape: Tape, node: ir.Node, windows: Windows) -> None:
    with _at(tape, node):
        x, w = (tape.wrap(value) for value in node.inputs[:2])  # type: ignore[arg-type]
        third = operand(node, 2)
        bias = None if third is None else tape.wrap(third)
        shape = _shape(node.outputs[0])
        if node.op_type == "Conv":
            made = convolution(x, w, bias, windows, shape)
        else:
            made = gradient_of_images(x, w, windows, shape)
            if bias is not None:
                made = made + tape.Reshape(bias, [-1, *[1] * windows.rank])
        tape.substitute(node, [made])


def _rewrite(tape: Tape, node: ir.Node, block: int) -> None:
    with _at(tape, node):
        x, w = (tape.wrap(value) for value in node.inputs[:2])  # type: ignore[arg-type]
        third = operand(node, 2)
        dilations, pads = _ints(node, "dilations"), _pads(node)
        if node.op_type == "Conv":
            weights = blocked_weights(w, block)
        else:
            weights = blocked_mirrored_weights(w, block)
            pads = [far - pad for far, pad in zip(_reach(node, w.shape) * 2, pads, strict=True)]
        made = blocked_convolution(
            blocked(x),
            weights,
            None if third is None else tape.wrap(third),
            strides=_ints(node, "strides"),
            dilations=dilations,
            pads=pads,
            size=_shape(node.outputs[0])[2:],
        )
        tape.substitute(node, [unblocked(made)])


def _weight_gradient(tape: Tape, node: ir.Node, block: int | None) -> None:
    """Replaces a weight gradient; the node's inputs are transposed images, its output is cut."""
    turned = [value.producer() for value in node.inputs[:2] if value is not None]
    (cut,) = node.outputs[0].consumers()
    (last,) = cut.outputs[0].consumers()
    result = last.outputs[0]
    sources = [None if one is None else one.inputs[0] for one in turned]
    if any(value is None or not static(value) for value in (*sources, result)):
        return
    if len(_shape(result)) != _IMAGES:
        # The formula was chosen where the gradient was written.
        return
    shape, pads = _shape(result), _pads(node)
    windows = Windows(
        kernel=shape[2:],
        # Strides and dilations change places.
        strides=_ints(node, "dilations"),
        dilations=_ints(node, "strides"),
        before=tuple(pads[:2]),
        after=tuple(pads[2:]),
    )
    with _at(tape, last):
        x, g = (tape.wrap(value) for value in sources)  # type: ignore[arg-type]
        if x.dtype == ir.DataType.FLOAT and is_small(x.shape, g.shape):
            made = gradient_of_weights(x, g, shape, windows)
        elif block is not None and _is_blockable_gradient(x, g, windows, block):
            made = _by_blocks(x, g, shape, windows, block)
        else:
            made = products(x, g, shape, windows, 1)
        tape.substitute(last, [made])
    for one in (cut, node, *turned):
        if one is not None and not any(output.uses() for output in one.outputs):
            tape.graph.remove(one, safe=True)


def _is_blockable_gradient(x: Tensor, g: Tensor, windows: Windows, block: int) -> bool:
    return (
        x.dtype == ir.DataType.FLOAT
        and x.shape[0] % block == 0
        and g.shape[1] % block == 0
        and windows.kernel[1] >= _LEAST_WIDTH
        and not is_narrow((g.shape[1], x.shape[1]), windows)
    )


def _by_blocks(
    x: Tensor, g: Tensor, shape: tuple[int, ...], windows: Windows, block: int
) -> Tensor:
    """A weight gradient as a blocked convolution whose channels are the batch."""
    tape = x.tape
    # The kernel computes padding element by element, which would be most of so small an output.
    padded = tape.Pad(x, [0, 0, *windows.before, 0, 0, *windows.after]) if windows.padded else x
    strides, dilations = windows.dilations, windows.strides
    size = [
        (length - (count - 1) * dilation - 1) // stride + 1
        for length, count, stride, dilation in zip(
            padded.shape[2:], g.shape[2:], strides, dilations, strict=True
        )
    ]
    made = blocked_convolution(
        blocked(tape.Transpose(padded, perm=[1, 0, 2, 3])),
        blocked_batch(g, block),
        None,
        strides=strides,
        dilations=dilations,
        pads=[0] * 4,
        size=size,
    )
    whole = unblocked(made)
    if size != list(shape[2:]):
        whole = tape.Slice(whole, [0, 0], list(shape[2:]), [2, 3])
    return tape.Transpose(whole, perm=[1, 0, 2, 3])


def _at(tape: Tape, node: ir.Node) -> AbstractContextManager[Tape]:
    metadata = {key: v for key, v in node.metadata_props.items() if key != names.ROLE}
    return tape.at(node, scope=f"{node.name or node.outputs[0].name}/", metadata=metadata)


def _shape(value: ir.Value | None) -> tuple[int, ...]:
    assert value is not None  # noqa: S101 - asked for static shapes before
    assert value.shape is not None  # noqa: S101 - as above
    return tuple(int(length) for length in value.shape if isinstance(length, int))


def _ints(node: ir.Node, name: str) -> tuple[int, ...]:
    return tuple(node.attributes.get_ints(name, [1, 1]))


def _reach(node: ir.Node, weights: Sequence[int]) -> list[int]:
    """The distance between the first and the last element of a window, per axis."""
    return [(n - 1) * step for n, step in zip(weights[2:], _ints(node, "dilations"), strict=True)]


def _pads(node: ir.Node) -> list[int]:
    return list(node.attributes.get_ints("pads", [0] * 4))
