"""A model made ready for training: its batch size fixed, its loss added."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.load import load, read
from popdist_onnx.graph.load import save as to_proto
from popdist_onnx.session.pipeline import read_with_shapes
from popdist_onnx.transforms.loss import add_cross_entropy, add_squared_error
from popdist_onnx.transforms.statistics import train_statistics
from popdist_onnx.types import DataType, InputShapeInfo, TensorInfo

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

LABELS = "labels"
"""The input that a loss adds."""

_LOSSES = {"cross_entropy": add_cross_entropy, "mse": add_squared_error}


def with_batch(source: object, batch_size: int) -> onnx.ModelProto:
    """Fixes the open first dimension of a model's inputs.

    Args:
        source: The model.
        batch_size: Samples of a micro-batch.

    Returns:
        A copy of the model.

    Raises:
        popart_exception: Another dimension is open, or the first one is another number.
    """
    proto = read(source)  # type: ignore[arg-type]
    initializers = {tensor.name for tensor in proto.graph.initializer}
    shapes = InputShapeInfo()
    for value in proto.graph.input:
        if value.name in initializers:
            continue
        dims = value.type.tensor_type.shape.dim
        rest = [d.dim_value if d.HasField("dim_value") else None for d in dims[1:]]
        if not dims or None in rest:
            raise popart_exception(
                "PD579",
                f"input {value.name} has no batch dimension, or another one is open as well",
                value=[d.dim_param or d.dim_value for d in dims],
                accepted="an open or fixed number of samples first, fixed dimensions after it",
            )
        if dims[0].HasField("dim_value") and dims[0].dim_value != batch_size:
            raise popart_exception(
                "PD579",
                f"the model was exported for batches of another size (input {value.name})",
                value=batch_size,
                accepted=str(dims[0].dim_value),
                hint=f"batch_size={dims[0].dim_value}, or export it with an open batch dimension",
            )
        dtype = DataType.from_onnx(value.type.tensor_type.elem_type)
        shapes.add(value.name, TensorInfo(dtype, [batch_size, *(int(d or 0) for d in rest)]))
    return read_with_shapes(proto, shapes)


def trainable(proto: onnx.ModelProto, loss: str) -> tuple[onnx.ModelProto, str]:
    """Adds what training needs and inference does not.

    Batch normalisation that was exported for inference is switched to training.

    Args:
        proto: The model, with known shapes.
        loss: ``cross_entropy`` or ``mse`` of the first output, or the id of a scalar of the model.

    Returns:
        The model, and the loss's id.

    Raises:
        popart_exception: There is no such loss.
    """
    model = train_statistics(load(proto))
    if loss in _LOSSES:
        _LOSSES[loss](model, str(model.graph.outputs[0].name), LABELS)
        loss = "loss"
    elif not _has(model, loss):
        raise popart_exception(
            "PD579",
            f"there is no loss '{loss}'",
            accepted=f"{', '.join(_LOSSES)}, or the id of a scalar tensor of the model",
        )
    return to_proto(model), loss


def _has(model: ir.Model, name: str) -> bool:
    return any(value.name == name for node in model.graph for value in node.outputs)
