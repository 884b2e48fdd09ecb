"""A model made ready for training: its batch size fixed, its loss added."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from popdist.nearest import did_you_mean
from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.load import load, read
from popdist_onnx.graph.load import save as to_proto
from popdist_onnx.graph.tensor import dims
from popdist_onnx.session.pipeline import read_with_shapes
from popdist_onnx.transforms.loss import add_cross_entropy, add_squared_error
from popdist_onnx.transforms.statistics import train_statistics
from popdist_onnx.types import DataType, InputShapeInfo, TensorInfo

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

LABELS = "labels"
"""The input that a loss adds."""

LOSSES = ("cross_entropy", "mse")
"""The losses by name."""

_RANK_OF_SCORES = 2


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


class Trainable(NamedTuple):
    """A model made ready for training.

    Attributes:
        proto: The model.
        loss: The loss's id.
        classes: How many classes its labels tell apart; None where it has no class labels.
    """

    proto: onnx.ModelProto
    loss: str
    classes: int | None


def trainable(proto: onnx.ModelProto, loss: str) -> Trainable:
    """Adds what training needs and inference does not.

    Batch normalisation that was exported for inference is switched to training. Where the model
    ends with a softmax, cross entropy takes the scores before it, as it has a softmax of its own.

    Args:
        proto: The model, with known shapes.
        loss: ``cross_entropy`` or ``mse`` of the first output, or the id of a scalar of the model.

    Returns:
        The model with its loss.

    Raises:
        popart_exception: There is no such loss.
    """
    model = train_statistics(load(proto))
    classes = None
    if loss == "cross_entropy":
        scores = _scores(model.graph.outputs[0])
        known = dims(scores) or ()
        if len(known) < _RANK_OF_SCORES or not isinstance(known[1], int):
            raise popart_exception(
                "PD579",
                "cross entropy needs a first output of scores by class",
                value=f"{scores.name} of shape {list(known)}",
                accepted="[samples, classes, ...]",
                hint='loss="mse", or the id of a scalar that the model computes itself',
            )
        classes = known[1]
        add_cross_entropy(model, str(scores.name), LABELS)
    elif loss == "mse":
        add_squared_error(model, str(model.graph.outputs[0].name), LABELS)
    elif not _has(model, loss):
        raise popart_exception(
            "PD579",
            f"there is no loss '{loss}'",
            accepted=f"{', '.join(LOSSES)}, or the id of a scalar tensor of the model",
            hint=did_you_mean(loss, LOSSES, shown="'{}'"),
        )
    return Trainable(to_proto(model), "loss" if loss in LOSSES else loss, classes)


def _scores(output: ir.Value) -> ir.Value:
    """What a model's last softmax over classes is made of; the output where it has none."""
    node = output.producer()
    if node is None or node.op_type != "Softmax" or node.inputs[0] is None:
        return output
    rank = len(dims(output) or ())
    over_classes = rank > 1 and node.attributes.get_int("axis", -1) % rank == 1
    return node.inputs[0] if over_classes else output


def _has(model: ir.Model, name: str) -> bool:
    return any(value.name == name for node in model.graph for value in node.outputs)
