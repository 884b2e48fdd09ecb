"""Adds the update of every weight to the graph: loss scaling, clipping and the optimizer's formula.

States are initializers, and ``UpdatedVar___<state>`` is an output of the graph with the next value.
Constant numbers are written into the graph. The others are inputs of the graph, and `scalar_inputs`
gives their values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from popdist.nearest import did_you_mean
from popdist_onnx.graph import names
from popdist_onnx.graph.passes import Pass
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.optimizers.hyperparameters import (
    CLIP_SCALING,
    LOSS_SCALING_INPUT,
    UPDATE_FACTOR,
    owner,
)
from popdist_onnx.optimizers.optimizer import require_optimizer, scalar_feed
from popdist_onnx.optimizers.values import ClipNormMode, ClipNormSettings, UpdateError
from popdist_onnx.optimizers.weight_update import Numbers, WeightUpdate, compute_type
from popdist_onnx.transforms.accumulate import (
    UPDATE_PHASE,
    require_gradients,
    updaters,
)
from popdist_onnx.types.enums import ReductionType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from popdist_onnx.graph.values import Array
    from popdist_onnx.optimizers.coefficients import Coefficient
    from popdist_onnx.optimizers.optimizer import Optimizer


# Clipping by norm: one factor per group of weights, by which updates multiply gradients.


def clip_factors(numbers: Numbers, gradients: Mapping[str, ir.Value]) -> dict[str, Coefficient]:
    """Writes the clipping factor of every group, and gives the factors by weight.

    The norm is one reduction per weight and a few nodes on scalars. The update multiplies the
    gradient by the factor together with its other factors. A weight in no group has no factor.
    """
    factors = {}
    for group in numbers.optimizer.getClipNormSettings():
        weights = (
            list(gradients)
            if group.mode is ClipNormMode.ClipAllWeights
            else [weight for weight in group.weightIds if weight in gradients]
        )
        if weights:
            factor = _factor(numbers, group, [gradients[weight] for weight in weights])
            factors.update(dict.fromkeys(weights, factor))
    return factors


def _factor(numbers: Numbers, group: ClipNormSettings, gradients: list[ir.Value]) -> Coefficient:
    tape = numbers.tape
    computed = [compute_type(one.dtype or ir.DataType.FLOAT) for one in gradients]
    wide = ir.DataType.DOUBLE if ir.DataType.DOUBLE in computed else ir.DataType.FLOAT
    table = numbers.table(wide)
    squares = []
    for gradient, dtype in zip(gradients, computed, strict=True):
        tensor = tape.wrap(gradient)
        if gradient.dtype != dtype:
            tensor = numbers.cast(tensor, dtype)
        squares.append(table.read(tape.ReduceSumSquare(tensor, keepdims=0)).operand())
    total = tape.Sum(*squares) if len(squares) > 1 else squares[0]
    norm = table.read(tape.Sqrt(total)) * numbers.scalar(CLIP_SCALING, None, wide)
    return group.maxNorm / norm.larger(group.maxNorm)


DIVISOR = "popdist.gradient-divisor"
"""Metadata key of models: the number of micro-batches that a gradient is the mean of."""


class ScaleLoss(Pass):
    """Multiplies the gradient of the loss by the loss scaling, and divides it by the replicas.

    Needs: the seed of the loss gradient where there is something to scale.
    Leaves: the same names; every gradient is scaled.

    Args:
        optimizer: The optimizer with the loss scaling.
        reduction: How gradients combine over replicas; a mean divides the loss gradient.
        replicas: The number of replicas that a mean is taken over.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        reduction: ReductionType = ReductionType.Sum,
        replicas: int = 1,
    ) -> None:
        self.optimizer = require_optimizer(optimizer)
        self.replicas = replicas if reduction is ReductionType.Mean else 1

    def change(self, model: ir.Model) -> bool:
        """Scales the seed; false where the factor is one."""
        graph, scaling = model.graph, self.optimizer.lossScaling()
        if scaling.isConst() and scaling.val() == self.replicas:
            return False
        seed = _seed(graph)
        before = seed.outputs[0]
        one = np.asarray(seed.attributes["value"].value.numpy())
        if scaling.isConst():
            content = one * one.dtype.type(scaling.val() / self.replicas)
            seed.attributes["value"] = ir.AttrTensor("value", ir.Tensor(content))
            return True
        tape = Tape(graph, scope="loss_scaling/", metadata={names.PASS: "optimizer"})
        numbers = Numbers(tape, self.optimizer, 1)
        readers = list(before.uses())
        dtype, name = before.dtype or ir.DataType.FLOAT, str(before.name)
        before.name = f"{name}/unscaled"
        computed = compute_type(dtype)
        scale = numbers.input(f"{LOSS_SCALING_INPUT}{dtype.name}", computed)
        with tape.at(next((node for node in graph if before in node.inputs), None)):
            if names.LOSS_SCALE_ELEMENTS in model.metadata_props:
                scale = scale * numbers.input(UPDATE_FACTOR, computed)
                tape.rename(scale, names.FINAL_LOSS_SCALE)
            wide = tape.wrap(before) if dtype == computed else tape.Cast(before, to=int(computed))
            scaled = wide * (scale / float(self.replicas) if self.replicas > 1 else scale)
            scaled = scaled if dtype == computed else tape.Cast(scaled, to=int(dtype))
        for reader, index in readers:
            reader.replace_input_with(index, scaled.value)
        for index, output in enumerate(graph.outputs):
            if output is before:
                graph.outputs[index] = scaled.value
        scaled.value.name = name
        return True


class GrowUpdates(Pass):
    """Adds clipping and the update of every weight that has a gradient.

    Needs: ``Gradient___w`` values, of the loss that `ScaleLoss` has scaled.
    Leaves: ``UpdatedVar___w`` and ``UpdatedVar___<state>`` as outputs of the graph, made by nodes
    marked ``popdist.phase = update``.

    Args:
        optimizer: The optimizer.
        reduction: How gradients combine over micro-batches; a mean divides their sum.
        accumulation: The number of micro-batches of one replica per update.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        reduction: ReductionType = ReductionType.Sum,
        accumulation: int = 1,
    ) -> None:
        self.optimizer = require_optimizer(optimizer)
        self.divisor = accumulation if reduction is ReductionType.Mean else 1

    def requires(self, model: ir.Model) -> None:
        """Checks that gradients exist, and the weights that the optimizer names.

        Raises:
            UpdateError: There are no gradients, there are updates already, or the optimizer names a
                weight that does not exist.
        """
        require_gradients(model)
        if any(names.updated(weight) in _names(model.graph.outputs) for weight in updaters(model)):
            raise UpdateError("PD545", "the model's weights are updated already")
        self._require_known("settings", self.optimizer.specific_weights(), model)
        for group in self.optimizer.getClipNormSettings():
            self._require_known("clipping", group.weightIds, model)

    def change(self, model: ir.Model) -> bool:
        """Adds the updates."""
        once = Tape(model.graph, scope="optimizer/", metadata=UPDATE_PHASE)
        numbers = Numbers(once, self.optimizer, self.divisor)
        read = updaters(model)
        clips = clip_factors(numbers, read)
        for weight, gradient in read.items():
            once.scope = f"update/{weight}/"
            stored = model.graph.initializers[weight]
            self.optimizer.write(
                WeightUpdate(numbers, self.optimizer, stored, gradient, clips.get(weight))
            )
        model.metadata_props[DIVISOR] = str(self.divisor)
        if names.LOSS_SCALE_ELEMENTS in model.metadata_props:
            self._name_inverse_scales(once)
        return True

    def _name_inverse_scales(self, tape: Tape) -> None:
        """Names the numbers that are divided by the automatic loss scale, as published."""
        tape.scope = "loss_scaling/"
        scaled = {one.prefix for one in self.optimizer.scalars() if "lossScaling" in one.settings}
        own = (owner(str(one.name)) for one in tape.graph.inputs)
        read = [
            value
            for value, parts in zip(list(tape.graph.inputs), list(own), strict=True)
            if parts is not None and parts[0] in scaled
        ]
        for number, value in enumerate(read):
            tape.rename(tape.Identity(value), f"{names.FINAL_INVERSE_LOSS_SCALE}{number}")

    def ensures(self, model: ir.Model) -> None:
        """Checks that every weight with a gradient has an update."""
        missing = [
            w for w in updaters(model) if names.updated(w) not in _names(model.graph.outputs)
        ]
        if missing:
            raise UpdateError("PD545", "weights have a gradient, but no update", value=missing)

    def _require_known(self, what: str, weights: Iterable[str], model: ir.Model) -> None:
        known = list(model.graph.initializers)
        for weight in weights:
            if weight not in model.graph.initializers:
                raise UpdateError(
                    "PD544",
                    f"the optimizer has {what} for a weight that the model does not have",
                    value=weight,
                    accepted=", ".join(updaters(model)),
                    hint=did_you_mean(weight, known),
                )


def grow_updates(
    model: ir.Model,
    optimizer: Optimizer,
    reduction: ReductionType = ReductionType.Sum,
    accumulation: int = 1,
    replicas: int = 1,
) -> ir.Model:
    """Scales the loss and adds the updates, in place; see `ScaleLoss` and `GrowUpdates`.

    Raises:
        UpdateError: There are no gradients, there are updates already, a weight that the optimizer
            names does not exist, or a state in the model does not fit.
    """
    grow = GrowUpdates(optimizer, reduction, accumulation)
    # Checked before the loss is scaled, so that a refused model is not changed.
    grow.requires(model)
    ScaleLoss(optimizer, reduction, replicas)(model)
    grow(model)
    return model


def scale_loss(
    model: ir.Model,
    optimizer: Optimizer,
    reduction: ReductionType = ReductionType.Sum,
    replicas: int = 1,
) -> ir.Model:
    """Scales the gradients of a model that has no weights to update, in place."""
    ScaleLoss(optimizer, reduction, replicas)(model)
    return model


def scalar_inputs(model: ir.Model, optimizer: Optimizer, grown: float = 1.0) -> dict[str, Array]:
    """The content of the inputs that carry an optimizer's non-constant numbers.

    Args:
        model: A model with this optimizer's updates.
        optimizer: The optimizer, or a valid replacement.
        grown: What automatic loss scaling has multiplied the optimizer's loss scaling by.

    Returns:
        Arrays without dimensions by input.
    """
    divisor = float(model.metadata_props.get(DIVISOR, "1"))
    feeds = {str(v.name): scalar_feed(optimizer, v, divisor, grown) for v in model.graph.inputs}
    return {name: feed for name, feed in feeds.items() if feed is not None}


def _seed(graph: ir.Graph) -> ir.Node:
    for node in graph:
        if node.metadata_props.get(names.ROLE) == names.LOSS_SEED:
            return node
    raise UpdateError(
        "PD545",
        "the gradient of the loss is not known, so the loss cannot be scaled",
        accepted=f"a Constant node with metadata {names.ROLE} = {names.LOSS_SEED}",
        hint="the loss needs its gradient first (autodiff(model)), or lossScaling 1 without a mean "
        "over replicas",
    )


def _names(values: Iterable[ir.Value]) -> set[str]:
    return {str(value.name) for value in values}
