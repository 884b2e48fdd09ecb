"""Prepares a model for training: fixes its batch size and adds its loss."""

from __future__ import annotations

import json
import logging
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from popdist.nearest import did_you_mean
from popdist_onnx.errors import ArgumentError, ValueRangeError, popart_exception
from popdist_onnx.graph.compat import FLOATING, inputs_of
from popdist_onnx.graph.load import load, read
from popdist_onnx.graph.load import save as to_proto
from popdist_onnx.graph.names import FROZEN
from popdist_onnx.graph.values import dims
from popdist_onnx.runtime.wiring import names_read
from popdist_onnx.session.pipeline import is_quantized, read_with_shapes
from popdist_onnx.transforms.loss import add_cross_entropy, add_squared_error
from popdist_onnx.types.tensor_info import DataType, InputShapeInfo, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from popdist_onnx.transforms.loss import Reduction


LABELS = "labels"
"""The input that a loss adds."""


LOSSES = ("cross_entropy", "mse")
"""The losses by name."""

LOSS_KIND = "popdist.loss-kind"
"""Metadata key of models: one of `LOSSES`, or the id of the loss that the model computes."""

_SHOWN = 12

_RANK_OF_SCORES = 2


def with_batch(source: object, batch_size: int) -> onnx.ModelProto:
    """A copy of a model whose inputs have ``batch_size`` as first dimension.

    Raises:
        popart_exception: Another dimension is open, or the first one is another number.
    """
    proto = ir.to_proto(read(source))  # type: ignore[arg-type]  # bridge
    shapes = InputShapeInfo()
    for value in inputs_of(proto.graph):
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
    return ir.to_proto(read_with_shapes(proto, shapes))  # bridge


def has_open_batch(proto: onnx.ModelProto) -> bool:
    """Whether each input leaves the number of samples open."""
    dims = [value.type.tensor_type.shape.dim for value in inputs_of(proto.graph)]
    return all(one and not one[0].HasField("dim_value") for one in dims)


class Trainable(NamedTuple):
    """A model prepared for training.

    Attributes:
        proto: The model.
        loss: The loss's id.
        classes: The number of classes of the labels; None where there are no class labels.
    """

    proto: onnx.ModelProto
    loss: str
    classes: int | None


def trainable(proto: onnx.ModelProto, loss: str, *, evaluation: bool = False) -> Trainable:
    """Adds a loss: ``cross_entropy`` or ``mse`` of `main_output`, or the id of a scalar.

    Batch normalisation that was exported for inference is switched to training. Where the model
    ends with a softmax, cross entropy takes the scores before it, as it has a softmax of its own.
    With ``evaluation`` the loss is computed per label, in inference mode.

    Raises:
        popart_exception: There is no such loss, or the model cannot be trained.
    """
    if not evaluation and is_quantized(ir.from_proto(proto)):  # bridge
        from popdist_onnx.transforms.quantization import require_known_kernels

        require_known_kernels(ir.from_proto(proto))  # bridge
    model = load(proto)
    if not evaluation and any(
        one.op_type == "BatchNormalization" for one in model.graph.all_nodes()
    ):
        from popdist_onnx.transforms.statistics import train_statistics

        train_statistics(model)
    if loss in LOSSES:
        _require_shape(proto, _value(model, main_output(proto)))
    reduction: Reduction = "none" if evaluation else "mean"
    classes = None
    if loss == "cross_entropy":
        scores = _scores(_value(model, main_output(proto)))
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
        add_squared_error(model, main_output(proto), LABELS, reduction)
    elif not _has(model, loss):
        raise popart_exception(
            "PD579",
            f"there is no loss '{loss}'",
            accepted=f"{', '.join(LOSSES)}, or the id of a scalar tensor of the model",
            hint=did_you_mean(loss, LOSSES, shown="'{}'"),
        )
    return Trainable(to_proto(model), "loss" if loss in LOSSES else loss, classes)


def _require_shape(proto: onnx.ModelProto, output: ir.Value) -> None:
    """Refuses a model whose labels, which are like its output, would have an unknown shape."""
    known = dims(output)
    if known is None or not all(isinstance(one, int) for one in known):
        raise popart_exception(
            "PD579",
            f"the shape of output {output.name} is not known, and labels need the same shape",
            value=None if known is None else ["?" if one is None else one for one in known],
            accepted="an output whose shape follows from the shapes of the inputs",
            hint=_hint_of_classical(proto)
            or "fix the open dimensions in the file; onnx.shape_inference shows where shapes end",
        )


def hint_of_weights(proto: onnx.ModelProto) -> str:
    """Where the weights of a file that has none to train may be."""
    return _hint_of_classical(proto) or (
        "a model exported with its parameters as inputs needs them as initializers: "
        "torch.onnx.export(..., export_params=True)"
    )


def _hint_of_classical(proto: onnx.ModelProto) -> str | None:
    classical = sorted({one.op_type for one in proto.graph.node if one.domain == "ai.onnx.ml"})
    return (
        f"{', '.join(classical)} of ai.onnx.ml hold their coefficients as attributes, which are "
        "not trained: convert a network (for example an MLPClassifier) or a linear model"
        if classical
        else None
    )


def mark_frozen(
    proto: onnx.ModelProto,
    patterns: str | Iterable[str],
    train: str | Iterable[str] | None = None,
) -> None:
    """Records in a model which weights are not trained; earlier records stay.

    Args:
        proto: The model.
        patterns: Names or patterns of weights that are not trained.
        train: Names or patterns of the only weights that are trained.

    Raises:
        ValueRangeError: A pattern fits no weight, or all weights are frozen.
    """
    names = [tensor.name for tensor in proto.graph.initializer]
    properties = {prop.key: prop.value for prop in proto.metadata_props}
    frozen = dict.fromkeys(json.loads(properties.get(FROZEN, "[]")))
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
        onnx.helper.set_model_props(proto, properties | {FROZEN: json.dumps(list(frozen))})


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


def stated_loss(proto: onnx.ModelProto) -> str | None:
    """The loss that a model was exported for; None where the model has no such record."""
    return next((one.value for one in proto.metadata_props if one.key == LOSS_KIND), None)


def main_output(proto: onnx.ModelProto) -> str:
    """The output that labels are compared with: the first one of floating-point numbers.

    A classifier of scikit-learn has whole numbers, the labels, before its probabilities.
    """
    outputs = proto.graph.output
    floats = [one for one in outputs if one.type.tensor_type.elem_type in FLOATING]
    return str((floats or outputs)[0].name)


def without_labels(proto: onnx.ModelProto) -> onnx.ModelProto:
    """What a model with a loss of its own computes of samples alone; a copy, where labels go."""
    if all(value.name != LABELS for value in proto.graph.input):
        return proto
    output = main_output(proto)
    needed, kept = {output}, []
    for node in reversed(proto.graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(names_read(node))
    if LABELS in needed:
        return proto
    rest = onnx.ModelProto()
    rest.CopyFrom(proto)
    graph = rest.graph
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend(kept[::-1])
    graph.input.extend(one for one in proto.graph.input if one.name != LABELS)
    graph.output.extend(one for one in proto.graph.output if one.name == output)
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


def with_stored_fills(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Makes weights of layers that ``ConstantOfShape`` nodes fill initializers, in a copy."""
    graph = proto.graph
    shapes = {one.name: one for one in graph.initializer if one.data_type == onnx.TensorProto.INT64}
    users: dict[str, list[bool]] = {}
    for node in graph.node:
        for index, name in enumerate(node.input):
            users.setdefault(name, []).append(index in _WEIGHTS.get(node.op_type, ()))
    outputs = {value.name for value in graph.output}
    fills = [
        node
        for node in graph.node
        if node.op_type == "ConstantOfShape"
        and node.input[0] in shapes
        and node.output[0] not in outputs
        and all(users.get(node.output[0], [False]))
    ]
    return _stored(proto, fills, shapes) if fills else proto


def _stored(
    proto: onnx.ModelProto, fills: list[onnx.NodeProto], shapes: Mapping[str, onnx.TensorProto]
) -> onnx.ModelProto:
    logger.warning(
        "%d weights of the model are no initializers but fills of one number; they are stored as "
        "weights, and start from that number",
        len(fills),
    )
    stored = onnx.ModelProto()
    stored.CopyFrom(proto)
    names = {node.output[0] for node in fills}
    kept = [node for node in stored.graph.node if not names & set(node.output)]
    del stored.graph.node[:]
    stored.graph.node.extend(kept)
    for node in fills:
        shape = tuple(numpy_helper.to_array(shapes[node.input[0]]))
        values = [numpy_helper.to_array(one.t) for one in node.attribute if one.name == "value"]
        number = values[0].reshape(()) if values else np.float32(0)
        content = np.full(shape, number)
        stored.graph.initializer.append(numpy_helper.from_array(content, node.output[0]))
    return stored
