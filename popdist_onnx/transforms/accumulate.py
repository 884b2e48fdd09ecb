"""Gradient accumulation: sums over micro-batches that the update reads.

The pass divides the graph into two parts. Nodes without ``popdist.phase = update`` run for every
micro-batch and end in ``UpdatedVar___Accum___w = Accum___w + Gradient___w``. The others run once
per update and begin with ``FinalReducedGradient___w``, the finished sum. The runtime sets
``Accum___w`` to zero before the first micro-batch of every update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from popdist_onnx.graph import names
from popdist_onnx.graph.names import LOSS, reserved_prefix
from popdist_onnx.graph.passes import Pass
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.optimizers.values import UpdateError
from popdist_onnx.optimizers.weight_update import compute_type
from popdist_onnx.transforms.autodiff import gradients_of, variables, why_no_gradient
from popdist_onnx.types.tensor_info import DataType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from popdist_onnx.graph.tensor import Tensor

ACCUMULATION = "popdist.accumulation"
"""Metadata key of models: the number of micro-batches per weight update."""

_SHOWN = 3

UPDATE_PHASE = {names.PASS: "optimizer", names.PHASE: "update"}
"""Metadata of nodes that run once per weight update."""


class AccumulateGradients(Pass):
    """Adds up each weight's gradient in a state tensor.

    Needs: ``Gradient___w`` for every weight that is to be trained.
    Leaves: state ``Accum___w`` (zeros), and ``FinalReducedGradient___w`` for the update to read.

    Args:
        factor: The number of micro-batches per weight update, local replicas included.
        kept_as: Element type of the sums; UNDEFINED takes the weight's.
    """

    def __init__(self, factor: int, kept_as: DataType = DataType.UNDEFINED) -> None:
        self.factor = factor
        self.kept_as = kept_as

    def requires(self, model: ir.Model) -> None:
        """Checks that gradients exist and are not accumulated yet.

        Raises:
            UpdateError: There are no gradients, or they are accumulated already.
        """
        require_gradients(model)
        if self.factor < 1:
            raise UpdateError(
                "PD545",
                "the accumulation factor is a positive whole number",
                value=self.factor,
                accepted="1 or more",
            )
        if ACCUMULATION in model.metadata_props:
            raise UpdateError(
                "PD545", "the model's gradients are accumulated already", value=self.factor
            )

    def change(self, model: ir.Model) -> bool:
        """Adds the sums."""
        graph = model.graph
        found = gradients_of(model)
        every = Tape(graph, scope="accumulate/", metadata={names.PASS: "accumulate"})
        nodes: list[ir.Node | None] = list(graph)
        following = dict(zip([None, *nodes], [*nodes, None], strict=True))
        for weight, gradient in found.items():
            # Directly after the gradient, so that a sum is finished as early as possible.
            with every.at(following[gradient.producer()]):
                self._add(every, weight, gradient)
        once = Tape(graph, scope="accumulate/", metadata=UPDATE_PHASE)
        for weight in found:
            finished = _output(graph, names.updated(names.ACCUMULATOR + weight))
            once.many("Identity", [names.FINAL_GRADIENT + weight], finished)
        model.metadata_props[ACCUMULATION] = str(self.factor)
        return True

    def _add(self, tape: Tape, weight: str, gradient: ir.Value) -> None:
        stored = tape.graph.initializers[weight]
        dtype = self._dtype(stored)
        computed = compute_type(dtype)
        name = names.ACCUMULATOR + weight
        total = tape.state(name, np.zeros(tape.wrap(stored).shape, dtype.numpy()))
        added = _in(tape, total.value, computed) + _in(tape, gradient, computed)
        if dtype != computed:
            added = tape.Cast(added, to=int(dtype))
        tape.graph.outputs.append(tape.rename(added, names.updated(name)).value)

    def _dtype(self, weight: ir.Value) -> ir.DataType:
        own = weight.dtype or ir.DataType.FLOAT
        return own if self.kept_as is DataType.UNDEFINED else ir.DataType(self.kept_as.onnx)


def accumulate(model: ir.Model, factor: int, kept_as: DataType = DataType.UNDEFINED) -> ir.Model:
    """Adds up each weight's gradient over micro-batches, in place; see `AccumulateGradients`.

    Raises:
        UpdateError: The model has no gradients, or they are accumulated already.
    """
    AccumulateGradients(factor, kept_as)(model)
    return model


def updaters(model: ir.Model) -> Mapping[str, ir.Value]:
    """By weight, the gradient that the update reads: the accumulated one where there is one."""
    made = {str(value.name): value for node in model.graph for value in node.outputs}
    return {
        weight: made.get(names.FINAL_GRADIENT + weight, gradient)
        for weight, gradient in gradients_of(model).items()
    }


def require_gradients(model: ir.Model) -> None:
    """Refuses a model without gradients.

    Raises:
        UpdateError: The model has no gradients.
    """
    if gradients_of(model):
        return
    weights = [*variables(model.graph)] or [
        value for name, value in model.graph.initializers.items() if not reserved_prefix(name)
    ]
    if any(node.op_type == "DequantizeLinear" for node in model.graph):
        from popdist_onnx.transforms.quantization import KEEP_FLOATS

        hint = f"the model's weights are stored as whole numbers: {KEEP_FLOATS}"
    elif weights and LOSS in model.metadata_props:
        hint = "; ".join(f"{w.name}: {why_no_gradient(model, w)}" for w in weights[:_SHOWN])
    else:
        hint = "weights are initializers, as builder.addInitializedInputTensor makes them"
    if not any(True for _ in variables(model.graph)):
        hint += (
            "; tensors that ConstantOfShape nodes fill become weights with "
            "model = popdist_onnx.graph.load.read(file), and then "
            "popdist_onnx.training.model.with_stored_fills(model)"
        )
    raise UpdateError(
        "PD545",
        "no weight of the model has a gradient",
        accepted=f"values named {names.GRADIENT}<weight>",
        hint=hint,
    )


def _in(tape: Tape, value: ir.Value, dtype: ir.DataType) -> Tensor:
    tensor = tape.wrap(value)
    return tensor if value.dtype == dtype else tape.Cast(tensor, to=int(dtype))


def _output(graph: ir.Graph, name: str) -> ir.Value:
    return next(value for value in graph.outputs if value.name == name)
