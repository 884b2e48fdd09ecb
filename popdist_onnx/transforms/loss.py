"""Marks a tensor as the loss, and adds a loss to a model that has none."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Literal

import onnx_ir as ir

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.compat import FLOATING
from popdist_onnx.graph.names import LOSS
from popdist_onnx.graph.passes import Pass
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.graph.values import dims

if TYPE_CHECKING:
    from collections.abc import Iterator

    from popdist_onnx.graph.tensor import Tensor

Reduction = Literal["mean", "sum", "none"]
"""What becomes of the losses of single labels; with ``none`` they stay apart."""


class SetLoss(Pass):
    """Records the loss in the model's metadata.

    Needs: the tensor exists, is a scalar (one element at most) and holds floating-point numbers, or
    the model has no weights.
    Leaves: ``metadata_props["popdist.loss"]``.

    Args:
        loss: The tensor's name.
    """

    def __init__(self, loss: str) -> None:
        self.loss = loss

    def requires(self, model: ir.Model) -> None:
        """Checks that the tensor exists and can be a loss.

        Raises:
            popart_exception: There is no such tensor, or it is not a scalar.
        """
        found = {str(value.name): value for value in _values(model.graph)}
        value = found.get(self.loss)
        if value is None:
            near = difflib.get_close_matches(self.loss, found, n=3)
            raise popart_exception(
                "PD523",
                f"Could not find loss tensor '{self.loss}' in the model",
                accepted="a tensor of the graph, as " + ", ".join(near or list(found)[-3:]),
            )
        known = dims(value)
        if known is not None and any(dim != 1 for dim in known):
            raise popart_exception(
                "PD523",
                f"Loss tensor, '{self.loss}', must be a scalar tensor",
                value=f"shape {list(known)}",
                accepted="one element",
                hint="reduce it, for example with builder.aiGraphcore.identityloss([...])",
            )
        trains = any(one.dtype in FLOATING for one in model.graph.initializers.values())
        if trains and value.dtype is not None and value.dtype not in FLOATING:
            raise popart_exception(
                "PD523",
                f"Loss tensor, '{self.loss}', must hold floating-point numbers",
                value=value.dtype.name,
            )

    def change(self, model: ir.Model) -> bool:
        """Records the loss; false where the same loss was recorded before."""
        changed = model.metadata_props.get(LOSS) != self.loss
        model.metadata_props[LOSS] = self.loss
        return changed


def set_loss(model: ir.Model, loss: str) -> ir.Model:
    """Sets the tensor that is the loss.

    Raises:
        popart_exception: There is no such tensor, or it is not a scalar.
    """
    SetLoss(loss)(model)
    return model


def loss_of(model: ir.Model) -> ir.Value:
    """The loss that `set_loss` recorded.

    Raises:
        popart_exception: No loss was set.
    """
    name = model.metadata_props.get(LOSS)
    if name is None:
        raise popart_exception(
            "PD523", "the model has no loss", hint="name it: set_loss(model, tensor)"
        )
    return next(value for value in _values(model.graph) if value.name == name)


def add_cross_entropy(
    model: ir.Model, logits: str, labels: str = "labels", reduction: Reduction = "mean"
) -> ir.Model:
    """Adds the loss of a classifier: cross entropy of the softmax over the second axis.

    Args:
        model: The model, changed in place; afterwards its loss is the output ``loss``.
        logits: The tensor of scores, shape ``[batch, classes, ...]``.
        labels: Name of the input that is added, int64 class numbers of shape ``[batch, ...]``.
        reduction: Mean or sum over the labels, or none.

    Returns:
        The same model.
    """
    tape = Tape(model.graph)
    scores = tape.wrap(_value(model.graph, logits))
    known = scores.dims or (None, None)
    wanted = tape.input(labels, ir.DataType.INT64, [known[0], *known[2:]])
    made = tape.many("SoftmaxCrossEntropyLoss", ["loss"], scores, wanted, reduction=reduction)
    return _finished(model, made[0], scalar=reduction != "none")


def add_squared_error(
    model: ir.Model, output: str, target: str = "target", reduction: Reduction = "mean"
) -> ir.Model:
    """Adds the loss of a regression: squared differences.

    Args:
        model: The model, changed in place; afterwards its loss is the output ``loss``.
        output: The tensor to compare.
        target: Name of the input that is added, of the same type and shape.
        reduction: Mean or sum over all elements, or none.

    Returns:
        The same model.
    """
    tape = Tape(model.graph)
    made = tape.wrap(_value(model.graph, output))
    wanted = tape.input(target, made.dtype, made.lengths)
    error = made - wanted
    if reduction == "none":
        return _finished(model, tape.many("Mul", ["loss"], error, error)[0], scalar=False)
    reduce = "ReduceMean" if reduction == "mean" else "ReduceSum"
    return _finished(model, tape.many(reduce, ["loss"], error * error, keepdims=0)[0])


def add_sum(model: ir.Model, output: str, reduction: Reduction = "mean") -> ir.Model:
    """Makes the mean or sum of a tensor the loss, for models that compute their loss themselves.

    Args:
        model: The model, changed in place; afterwards its loss is the output ``loss``.
        output: The tensor.
        reduction: Mean or sum over all elements.

    Returns:
        The same model.
    """
    tape = Tape(model.graph)
    reduce = "ReduceMean" if reduction == "mean" else "ReduceSum"
    value = _value(model.graph, output)
    return _finished(model, tape.many(reduce, ["loss"], value, keepdims=0)[0])


def _finished(model: ir.Model, loss: Tensor, *, scalar: bool = True) -> ir.Model:
    model.graph.outputs.append(loss.value)
    return set_loss(model, loss.name) if scalar else model


def _value(graph: ir.Graph, name: str) -> ir.Value:
    found = {str(value.name): value for value in _values(graph)}
    if name not in found:
        raise popart_exception(
            "PD523",
            f"the model has no tensor '{name}'",
            accepted=", ".join(str(value.name) for value in graph.outputs),
        )
    return found[name]


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs
