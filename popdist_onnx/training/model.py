"""Prepares a model for training: fixes its batch size and adds its loss."""

from __future__ import annotations

import json
import logging
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir

from popdist.nearest import did_you_mean
from popdist_onnx.errors import ArgumentError, ValueRangeError, popart_exception
from popdist_onnx.graph.compat import FLOATING, clone, keep_only
from popdist_onnx.graph.exporters import freeze
from popdist_onnx.graph.load import load
from popdist_onnx.graph.names import FROZEN
from popdist_onnx.graph.values import add_initializer, dims, stored
from popdist_onnx.session.pipeline import is_quantized, read_with_shapes
from popdist_onnx.transforms.loss import add_cross_entropy, add_squared_error
from popdist_onnx.types.tensor_info import DataType, InputShapeInfo, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from popdist_onnx.graph.values import Dim
    from popdist_onnx.transforms.loss import Reduction


LABELS = "labels"
"""The input that a loss adds."""


LOSSES = ("cross_entropy", "mse")
"""The losses by name."""

LOSS_KIND = "popdist.loss-kind"
"""Metadata key of models: one of `LOSSES`, or the id of the loss that the model computes."""

_SHOWN = 12

_RANK_OF_SCORES = 2


def with_batch(model: ir.Model, batch_size: int) -> ir.Model:
    """A copy of a model whose inputs have ``batch_size`` as first dimension.

    Raises:
        popart_exception: Another dimension is open, or the first one is another number.
    """
    shapes = InputShapeInfo()
    for value, known in _inputs(model):
        if not known or not all(isinstance(one, int) for one in known[1:]):
            raise popart_exception(
                "PD579",
                f"input {value.name} has no batch dimension, or another one is open as well",
                value=[one or 0 for one in known],
                accepted="an open or fixed number of samples first, fixed dimensions after it",
            )
        if isinstance(known[0], int) and known[0] != batch_size:
            raise popart_exception(
                "PD579",
                f"the model was exported for batches of another size (input {value.name})",
                value=batch_size,
                accepted=str(known[0]),
                hint=f"batch_size={known[0]}, or export it with an open batch dimension",
            )
        shape = [batch_size, *(int(one or 0) for one in known[1:])]
        shapes.add(str(value.name), TensorInfo(DataType.from_onnx(int(value.dtype or 0)), shape))
    return read_with_shapes(model, shapes)


def has_open_batch(model: ir.Model) -> bool:
    """Whether each input leaves the number of samples open."""
    return all(known and not isinstance(known[0], int) for _, known in _inputs(model))


def _inputs(model: ir.Model) -> Iterator[tuple[ir.Value, tuple[Dim, ...]]]:
    """The inputs that are no weights, with what is known of the shapes of tensors."""
    for value in model.graph.inputs:
        if not value.is_initializer():
            yield value, (dims(value) if isinstance(value.type, ir.TensorType) else None) or ()


class Trainable(NamedTuple):
    """A model prepared for training.

    Attributes:
        model: The model.
        loss: The loss's id.
        classes: The number of classes of the labels; None where there are no class labels.
    """

    model: ir.Model
    loss: str
    classes: int | None


def trainable(given: ir.Model, loss: str, *, evaluation: bool = False) -> Trainable:
    """Adds a loss to a copy: ``cross_entropy`` or ``mse`` of `main_output`, or a scalar's id.

    Batch normalisation that was exported for inference is switched to training. Where the model
    ends with a softmax, cross entropy takes the scores before it, as it has a softmax of its own.
    With ``evaluation`` the loss is computed per label, in inference mode.

    Raises:
        popart_exception: There is no such loss, or the model cannot be trained.
    """
    if not evaluation and is_quantized(given):
        from popdist_onnx.transforms.quantization import require_known_kernels

        require_known_kernels(given)
    model = load(given)
    output = main_output(given)
    if not evaluation and any(
        one.op_type == "BatchNormalization" for one in model.graph.all_nodes()
    ):
        from popdist_onnx.transforms.statistics import train_statistics

        train_statistics(model)
    if loss in LOSSES:
        _require_shape(given, _value(model, output))
    reduction: Reduction = "none" if evaluation else "mean"
    classes = None
    if loss == "cross_entropy":
        scores = _scores(_value(model, output))
        known = dims(scores) or ()
        if len(known) < _RANK_OF_SCORES or not isinstance(known[1], int):
            raise popart_exception(
                "PD579",
                "cross entropy needs an output of scores by class",
                value=f"{scores.name} of shape {list(known)}",
                accepted="[samples, classes, ...]",
                hint='loss="mse", or the id of a scalar that the model computes itself',
            )
        classes = known[1]
        add_cross_entropy(model, str(scores.name), LABELS, reduction)
    elif loss == "mse":
        add_squared_error(model, output, LABELS, reduction)
    elif not _has(model, loss):
        raise popart_exception(
            "PD579",
            f"there is no loss '{loss}'",
            accepted=f"{', '.join(LOSSES)}, or the id of a scalar tensor of the model",
            hint=did_you_mean(loss, LOSSES, shown="'{}'"),
        )
    return Trainable(model, "loss" if loss in LOSSES else loss, classes)


def _require_shape(model: ir.Model, output: ir.Value) -> None:
    """Refuses a model whose labels, which are like its output, would have an unknown shape."""
    known = dims(output)
    if known is None or not all(isinstance(one, int) for one in known):
        raise popart_exception(
            "PD579",
            f"the shape of output {output.name} is not known, and labels need the same shape",
            value=None if known is None else ["?" if one is None else one for one in known],
            accepted="an output whose shape follows from the shapes of the inputs",
            hint=_hint_of_classical(model)
            or "fix the open dimensions in the file; onnx.shape_inference shows where shapes end",
        )


def hint_of_weights(model: ir.Model) -> str:
    """Where the weights of a file that has none to train may be."""
    return _hint_of_classical(model) or (
        "a model exported with its parameters as inputs needs them as initializers: "
        "torch.onnx.export(..., export_params=True)"
    )


def _hint_of_classical(model: ir.Model) -> str | None:
    classical = sorted({one.op_type for one in model.graph if one.domain == "ai.onnx.ml"})
    return (
        f"{', '.join(classical)} of ai.onnx.ml hold their coefficients as attributes, which are "
        "not trained: convert a network (for example an MLPClassifier) or a linear model"
        if classical
        else None
    )


def mark_frozen(
    model: ir.Model,
    patterns: str | Iterable[str],
    train: str | Iterable[str] | None = None,
) -> None:
    """Records in a model which weights are not trained; earlier records stay.

    Args:
        model: The model, changed in place.
        patterns: Names or patterns of weights that are not trained.
        train: Names or patterns of the only weights that are trained.

    Raises:
        ValueRangeError: A pattern fits no weight, or all weights are frozen.
    """
    names = list(model.graph.initializers)
    frozen = dict.fromkeys(json.loads(model.metadata_props.get(FROZEN, "[]")))
    listed = _matching("freeze", patterns, names)
    frozen.update(dict.fromkeys(listed))
    if train is not None:
        kept = {*_matching("train", train, names)}
        frozen.update(dict.fromkeys(name for name in names if name not in kept))
    if names and frozen.keys() >= set(names):
        raise ValueRangeError(
            "PD583",
            "freeze covers every weight: no weight is left to train",
            value=listed,
            hint="leave the last layer out",
        )
    if frozen:
        freeze(model, frozen)


def _matching(setting: str, patterns: str | Iterable[str], names: list[str]) -> list[str]:
    """The weights that a setting names."""
    listed = [patterns] if isinstance(patterns, str) else [*patterns]
    if not all(isinstance(pattern, str) for pattern in listed):
        raise ArgumentError(
            "PD583", f"{setting} takes names of weights, or patterns of them", value=listed
        )
    every = []
    for pattern in listed:
        found = [name for name in names if name == pattern or fnmatchcase(name, pattern)]
        if not found:
            raise ValueRangeError(
                "PD583",
                f"{setting}: no weight is called '{pattern}'",
                accepted=", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else ""),
                hint=did_you_mean(pattern, names, shown="'{}'"),
            )
        every += found
    return every


def stated_loss(model: ir.Model) -> str | None:
    """The loss that a model was exported for; None where the model has no such record."""
    return model.metadata_props.get(LOSS_KIND)


def main_output(model: ir.Model) -> str:
    """The output that labels are compared with: the first one of floating-point numbers.

    A classifier of scikit-learn has whole numbers, the labels, before its probabilities.
    """
    outputs = model.graph.outputs
    tensors = [one for one in outputs if isinstance(one.type, ir.TensorType)]
    floats = [one for one in tensors if one.dtype in FLOATING]
    return str((floats or outputs)[0].name)


def without_labels(model: ir.Model) -> ir.Model:
    """What a model with a loss of its own computes of samples alone; a copy, where labels go."""
    rest = clone(model)
    labels = next((value for value in rest.graph.inputs if value.name == LABELS), None)
    if labels is None or labels in keep_only(rest.graph, [_value(rest, main_output(rest))]):
        return model
    rest.graph.inputs.remove(labels)
    return rest


def _value(model: ir.Model, name: str) -> ir.Value:
    return next(value for value in model.graph.outputs if value.name == name)


def _scores(output: ir.Value) -> ir.Value:
    """The input of a model's last softmax over classes; the output where there is no softmax."""
    node = output.producer()
    while node is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None or node.op_type != "Softmax" or node.inputs[0] is None:
        return output
    rank = len(dims(output) or ())
    over_classes = rank > 1 and node.attributes.get_int("axis", -1) % rank == 1
    return node.inputs[0] if over_classes else output


def _has(model: ir.Model, name: str) -> bool:
    return any(value.name == name for node in model.graph for value in node.outputs)


# Weights that a file stores as a node that fills a tensor with one number become initializers.
#
# The model-zoo networks that come with onnx are such files. The output of a node is no weight, so
# that such a model would otherwise train few weights or none.


logger = logging.getLogger("popdist.onnx")

_WEIGHTS = {
    "BatchNormalization": (1, 2, 3, 4),
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gemm": (1, 2),
    "InstanceNormalization": (1, 2),
    "MatMul": (1,),
    "PRelu": (1,),
}
"""The inputs of operators where nothing but a weight is expected."""


def with_stored_fills(model: ir.Model) -> None:
    """Makes weights of layers that ``ConstantOfShape`` nodes fill initializers, in place."""
    fills = [node for node in model.graph if node.op_type == "ConstantOfShape" and _is_weight(node)]
    if not fills:
        return
    logger.warning(
        "%d weights of the model are no initializers but fills of one number; they are stored as "
        "weights, and start from that number",
        len(fills),
    )
    for node in fills:
        (fill,), (shape,) = node.outputs, node.inputs
        lengths = None if shape is None else stored(shape)
        value = node.attributes.get_tensor("value")
        number = np.float32(0) if value is None else value.numpy().reshape(())
        array = np.full(() if lengths is None else tuple(lengths), number)
        name, fill.name = str(fill.name), None
        weight = add_initializer(model.graph, name, array)
        ir.convenience.replace_all_uses_with(fill, weight)
        model.graph.remove(node, safe=True)


def _is_weight(fill: ir.Node) -> bool:
    """Whether the file has the shape of a filled tensor that layers read as weights only."""
    value, shape = fill.outputs[0], fill.inputs[0]
    return (
        shape is not None
        and shape.is_initializer()
        and shape.dtype == ir.DataType.INT64
        and not value.is_graph_output()
        and bool(value.uses())
        and all(index in _WEIGHTS.get(user.op_type, ()) for user, index in value.uses())
    )
