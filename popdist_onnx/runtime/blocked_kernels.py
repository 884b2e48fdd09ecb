"""Which convolutions ONNX Runtime's blocked kernels take, and how tensors are laid out for them.

Where weights are constants, ONNX Runtime reorders them once and computes convolutions on channels
in blocks (``com.microsoft.nchwc``), up to twice as fast. It never does so for weights that change,
as they do in training; the kernels take them all the same. A block has as many channels as a vector
register has numbers, which nobody says: what ONNX Runtime makes of a small model shows it.
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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_onnx.graph.tensor import Tensor

DOMAIN = "com.microsoft.nchwc"
_PROBE_CHANNELS = 64


@cache
def block_length() -> int | None:
    """How many channels make a block on this machine.

    Returns:
        The number; None where ONNX Runtime has no blocked kernels.
    """
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
    # One channel is filled up to a whole block.
    lengths = {tensor.name: tensor.dims[0] for tensor in rewritten.graph.initializer}
    for found in rewritten.graph.node:
        if found.domain == DOMAIN and found.op_type == "Conv":
            return int(lengths[found.input[1]])
    return None


def blocked(x: Tensor) -> Tensor:
    """Images with their channels in blocks.

    Args:
        x: ``[N, C, H, W]``, where C is a number of whole blocks.

    Returns:
        The same numbers as ``[N, C / block, H, W, block]``, under the shape of ``x``.
    """
    return _typed(x.tape.custom(DOMAIN, "ReorderInput", 1, x)[0], x.shape)


def unblocked(y: Tensor) -> Tensor:
    """Images as ONNX lays them out.

    Args:
        y: Blocked images.

    Returns:
        The same numbers as ``[N, C, H, W]``.
    """
    return _typed(y.tape.custom(DOMAIN, "ReorderOutput", 1, y, channels=y.shape[1])[0], y.shape)


def blocked_weights(w: Tensor, length: int) -> Tensor:
    """Weights as blocked convolutions read them.

    Args:
        w: ``[M, C, H, W]``.
        length: Of a block.

    Returns:
        The same numbers as ``[M / block, C / block, H, W, block of C, block of M]``.
    """
    outputs, inputs, *kernel = w.shape
    split = [outputs // length, length, inputs // length, length, *kernel]
    return _reordered(w, split, [0, 2, 4, 5, 3, 1], w.shape)


def blocked_mirrored_weights(w: Tensor, length: int) -> Tensor:
    """Weights of the convolution that passes gradients back through another one.

    Args:
        w: The other's weights ``[M, C, H, W]``.
        length: Of a block.

    Returns:
        Blocked weights ``[C, M, H, W]``, mirrored along both axes of the kernel.
    """
    inputs, outputs, *kernel = w.shape
    far = -(1 << 31)
    mirrored = w.tape.Slice(w, [-1, -1], [far, far], [2, 3], [-1, -1]) if max(kernel) > 1 else w
    split = [inputs // length, length, outputs // length, length, *kernel]
    return _reordered(mirrored, split, [2, 0, 4, 5, 1, 3], [outputs, inputs, *kernel])


def blocked_batch(g: Tensor, length: int) -> Tensor:
    """Images as the weights of a convolution whose channels are the batch.

    Args:
        g: ``[N, M, H, W]``.
        length: Of a block.

    Returns:
        Blocked weights ``[M, N, H, W]``.
    """
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
    """A convolution of blocked images by blocked weights.

    Args:
        x: Blocked images.
        w: Blocked weights.
        bias: One number per output channel.
        strides: Steps between windows.
        dilations: Steps between elements of a window.
        pads: Padding as ONNX writes it.
        size: Height and width of what comes out.

    Returns:
        Blocked images.
    """
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
    """The domain is ONNX Runtime's own, so nobody else knows what comes out."""
    tensor.value.shape = ir.Shape(shape)
    tensor.value.type = ir.TensorType(ir.DataType.FLOAT)
    return tensor
