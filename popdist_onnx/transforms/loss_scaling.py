"""Automatic loss scaling: counts large gradients, and changes the loss scale by their share.

The rule is PopART's. Of each tracked gradient, the elements beyond a bin edge are counted; the edge
is a share of the largest number of the gradient's type. After every ``updatePeriod`` weight updates
the loss scale is halved where the share of such elements exceeds a threshold, and doubled
otherwise, to at most 2 ** 15 where the loss or a weight has half precision. The counts are summed
over micro-batches, replicas and instances.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from popdist.nearest import did_you_mean
from popdist_onnx.errors import popart_exception
from popdist_onnx.graph import names
from popdist_onnx.graph.passes import Pass
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.graph.values import static
from popdist_onnx.transforms.autodiff import gradients_of
from popdist_onnx.transforms.loss import loss_of
from popdist_onnx.types.enums import GradientTensorTrackingMethod

if TYPE_CHECKING:
    from popdist_onnx.optimizers.optimizer import Optimizer
    from popdist_onnx.types.session_options import AutomaticLossScalingSettings, SessionOptions

LARGE = f"{names.LOSS_SCALE_COUNT}large"
"""The state that counts elements beyond the bin edge."""

LARGEST = "popdist.loss-scale-largest"
"""Metadata key of models: the largest loss scale, where the loss or a weight has half precision."""

_LARGEST_OF_HALF = 2.0**15

_VIEWS = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Identity", "Expand", "Slice"}
_PRODUCTS = {"Conv", "ConvTranspose", "MatMul", "Gemm"}

_HALF, _DOUBLE = 0.5, 2.0


class CountLargeGradients(Pass):
    """Adds the count of large elements of gradients.

    Needs: gradients, of known shape.
    Leaves: the state `LARGE`, to which every micro-batch adds, and
    `names.LOSS_SCALE_ELEMENTS` in the metadata.

    Args:
        settings: The tracked gradients and the bin edge.
    """

    def __init__(self, settings: AutomaticLossScalingSettings) -> None:
        self.settings = settings

    def change(self, model: ir.Model) -> bool:
        """Adds the count.

        Raises:
            popart_exception: There is no gradient to track.
        """
        graph = model.graph
        watched = [one for one in self._watched(model) if static(one)]
        if not watched:
            raise popart_exception(
                "PD581",
                "[AutomaticLossScale transform] No tracked tensors were found",
                value=self.settings.gradientTensorTrackingMethod.name,
                hint="choose another automaticLossScalingSettings.gradientTensorTrackingMethod",
            )
        tape = Tape(graph, scope="loss_scale/", metadata={names.PASS: "loss-scaling"})
        counts = []
        for gradient in watched:
            tensor = tape.wrap(gradient)
            dtype = tensor.dtype.numpy()
            largest = float(np.finfo(dtype).max) if dtype.kind == "f" else float(np.finfo("f4").max)
            edge = tape.scalar(self.settings.binEdgeLocation * largest, tensor.dtype)
            # A comparison with NaN is false, so that NaN counts as large.
            small = tape.LessOrEqual(tape.Abs(tensor), edge)
            large = tape.Cast(tape.Not(small), to=_INT64)
            counts.append(tape.ReduceSum(large, keepdims=0) if tensor.rank else large)
        count = counts[0]
        for other in counts[1:]:
            count = count + other
        state = tape.state(LARGE, np.zeros((), np.int64))
        graph.outputs.append(tape.rename(state + count, names.updated(LARGE)).value)
        elements = sum(prod(int(dim) for dim in tape.wrap(one).shape) for one in watched)
        model.metadata_props[names.LOSS_SCALE_ELEMENTS] = str(elements)
        trained = [graph.initializers[weight] for weight in gradients_of(model)]
        if ir.DataType.FLOAT16 in {one.dtype for one in (loss_of(model), *trained)}:
            model.metadata_props[LARGEST] = str(_LARGEST_OF_HALF)
        return True

    def _watched(self, model: ir.Model) -> list[ir.Value]:
        made = {str(value.name): value for node in model.graph for value in node.outputs}
        method = self.settings.gradientTensorTrackingMethod
        if method is GradientTensorTrackingMethod.GradientsOfUserSpecifiedTensors:
            for name in self.settings.toTrackTensors:
                if names.gradient(name) not in made:
                    known = [one.removeprefix(names.GRADIENT) for one in made]
                    raise popart_exception(
                        "PD581",
                        f"toTrackTensors: tensor '{name}' has no gradient in the model",
                        value=name,
                        hint=did_you_mean(name, known),
                    )
            return [made[names.gradient(name)] for name in self.settings.toTrackTensors]
        chosen: dict[str, None] = {}
        # What the loss scale itself is says nothing of the gradients.
        scale = names.gradient(str(loss_of(model).name))
        for node in model.graph:
            if method is GradientTensorTrackingMethod.ConvAndMatmulGradients:
                if node.op_type in _PRODUCTS and names.PASS not in node.metadata_props:
                    chosen.update({str(v.name): None for v in node.inputs if v is not None})
            elif node.op_type not in _VIEWS:
                chosen.update({str(v.name): None for v in (*node.inputs, *node.outputs) if v})
        tracked = [names.gradient(name) for name in chosen]
        found = [made[name] for name in tracked if name in made and name != scale]
        # Gradients in single precision have no say beside those in half precision.
        return [one for one in found if one.dtype is ir.DataType.FLOAT16] or found


def count_large_gradients(model: ir.Model, settings: AutomaticLossScalingSettings) -> ir.Model:
    """Adds the count of large gradient elements to a differentiated model, in place.

    Raises:
        popart_exception: There is no gradient to track.
    """
    CountLargeGradients(settings)(model)
    return model


def factor(settings: AutomaticLossScalingSettings, large: float, elements: float) -> float:
    """A half or two: the loss scale's factor if ``large`` of ``elements`` exceed the bin edge."""
    share = large / elements
    return _HALF if share > settings.thresholdUpperCountProportion else _DOUBLE


def require_variable_loss_scale(optimizer: Optimizer, options: SessionOptions) -> None:
    """Refuses optimizers whose loss scale cannot change, and pipelines that do not stop for it.

    Raises:
        popart_exception: The loss scale is constant, the optimizer's state is scaled with it, or a
            pipeline updates without gradient accumulation.
    """
    if options.enablePipelining and not options.enableGradientAccumulation:
        raise popart_exception(
            "PD581",
            "[AutomaticLossScale transform] Automatic loss scaling is not currently supported when "
            "the 'enablePipelining' SessionOption is set to 'true', but the "
            "'enableGradientAccumulation' SessionOption is set to 'false'",
        )
    if optimizer.lossScaling().isConst():
        raise popart_exception(
            "PD581",
            "Automatic loss scaling changes the loss scale. The optimizer must have non-const loss "
            "scaling",
            value=f"lossScaling ({optimizer.getLossScalingVal()}, True)",
            accepted=f"lossScaling ({optimizer.getLossScalingVal()}, False)",
        )
    if optimizer.form().get("scaled_optimizer_state"):
        raise popart_exception(
            "PD581", "automatic loss scaling does not go with scaled_optimizer_state"
        )


_INT64 = 7
