"""Functions of operators that public programs compile, except those over replicas.

The meanings are those of the published sources: `graphcore/examples`, `graphcore/poptorch` and
`graphcore-research/poptorch-experimental-addons`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from popdist_torch.errors import CustomOperatorError
from popdist_torch.ops.custom.registry import host_op
from popdist_torch.ops.running import before_update

if TYPE_CHECKING:
    from collections.abc import Mapping

    from popdist_torch.ops.custom.registry import Call


@host_op("RemapCE", "ai.graphcore")
@host_op("CopyTensor", "ai.graphcore")
def copy(call: Call) -> torch.Tensor:
    """Another layout in an IPU's memory, of the same values."""
    return call.inputs[0].clone()


@host_op("LeakyRelu", "custom.ops")
@host_op("LeakyRelu", "com.acme")
def leaky_relu(call: Call) -> torch.Tensor:
    """``x`` where it is positive, else ``alpha * x``."""
    return functional.leaky_relu(call.inputs[0], float(call.attributes.get("alpha", 0.01)))


@host_op("Cube", "custom.ops")
@host_op("Cube", "com.acme")
def cube(call: Call) -> torch.Tensor:
    """``x ** 3``."""
    return call.inputs[0] ** 3


@host_op("ExpMovAvg", "com.acme")
def exponential_moving_average(call: Call) -> torch.Tensor:
    """Moves an average towards a value, in place, once for each weight update.

    The inputs are the value, the average and the factor of the average. On an IPU this runs after
    the last micro-batch and before the weights change.
    """
    value, average, factor = call.inputs

    def move() -> None:
        with torch.no_grad():
            kept = factor.to(average.dtype)
            average.mul_(kept).add_(value.to(average.dtype) * (1 - kept))

    before_update(average, move)
    return average.detach()


_REDUCTIONS = {"None": 0, "NoReduction": 0, "Mean": 1, "Sum": 2}


@host_op("Ctc", "ai.graphcore")
def ctc(call: Call) -> list[torch.Tensor]:
    """The loss of connectionist temporal classification, and its gradient.

    The inputs are logarithmic probabilities ``[time, batch, classes]``, labels ``[batch, length]``,
    and the lengths of both.
    """
    scores, labels, times, lengths = call.inputs
    reduction = str(call.attributes.get("reduction", "Mean"))
    if reduction not in _REDUCTIONS:
        raise CustomOperatorError(
            "PD363",
            "Ctc does not support this reduction",
            value=reduction,
            accepted=", ".join(_REDUCTIONS),
        )
    rest = (
        labels.long(),
        times.long(),
        lengths.long(),
        int(call.attributes.get("blank", 0)),
        _REDUCTIONS[reduction],
    )
    kind = call.example_outputs[0].dtype if call.example_outputs else scores.dtype
    loss = torch.ctc_loss(scores.float(), *rest).to(kind)
    if len(call.example_outputs) == 1:
        return [loss]
    with torch.enable_grad():
        alone = scores.detach().float().requires_grad_()
        (gradient,) = torch.autograd.grad(torch.ctc_loss(alone, *rest).sum(), alone)
    return [loss, gradient.to(scores.dtype)]


@host_op("AutogradProxy", "ai.graphcore")
def autograd_proxy(call: Call) -> torch.Tensor:
    """The first input forward; gradients go to the second."""
    value, proxy = call.inputs
    return value.detach() + (proxy - proxy.detach())


@host_op("L1Distance", "ai.graphcore")
def l1_distance(call: Call) -> torch.Tensor:
    """The sum of absolute differences of each row of the first and each of the second input."""
    return _distance(call, 1.0)


@host_op("L2Distance", "ai.graphcore")
def l2_distance(call: Call) -> torch.Tensor:
    """The Euclidean distance of each row of the first and each of the second input."""
    return _distance(call, 2.0)


def _distance(call: Call, norm: float) -> torch.Tensor:
    first, second = (_single(one) for one in call.inputs)
    return torch.cdist(first, second, p=norm).to(call.inputs[0].dtype)


def _single(value: torch.Tensor) -> torch.Tensor:
    """At least single precision, as processors have few operators for less."""
    return value if value.dtype == torch.float64 else value.float()


@host_op("StaticSparseMatmul", "ai.graphcore")
def static_sparse_matmul(call: Call) -> torch.Tensor:
    """The product of a constant matrix of blocks, which attributes have, and a dense one."""
    given = call.attributes
    size = int(given["block_size"])
    inside = torch.arange(size)
    rows, columns = (torch.as_tensor(given[name])[:, None, None] for name in ("rows", "cols"))
    shape = (len(rows), size, size)
    places = (part.expand(shape) for part in (rows + inside[:, None], columns + inside))
    (dense,) = call.inputs
    factor = _single(dense)
    matrix = torch.sparse_coo_tensor(
        torch.stack([place.reshape(-1) for place in places]),
        torch.as_tensor(given["values"], dtype=factor.dtype),
        (int(given["n_rows"]), int(given["n_cols"])),
        check_invariants=True,
    )
    if given["mode"] == "sparse_dense":
        product: torch.Tensor = torch.sparse.mm(matrix, factor)
    else:
        product = torch.sparse.mm(matrix.t(), factor.t()).t()
    return product.to(dense.dtype)


@host_op("SimulatedQuant", "ai.graphcore")
def simulated_quantisation(call: Call) -> torch.Tensor:
    """Values of a smaller floating-point format, in the type of the input."""
    result: torch.Tensor = _Quantised.apply(call.inputs[0], call.attributes)  # type: ignore[no-untyped-call]
    return result


class _Quantised(torch.autograd.Function):
    """Quantises what attributes name: the value, its gradient, or both."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, given: Mapping[str, Any]) -> torch.Tensor:
        """Quantises the value, if that is asked for."""
        ctx.given = given
        return _quantised(value, given) if given["fwd"] else value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, None]:
        """Quantises the gradient, passes it on, or stops it."""
        mode = ctx.given["bwd"]
        if mode == "stop":
            return None, None
        return _quantised(gradients[0], ctx.given) if mode == "quantise" else gradients[0], None


def _quantised(value: torch.Tensor, given: Mapping[str, Any]) -> torch.Tensor:
    """The nearest value of a format (ties towards zero), or one of both neighbours at random."""
    mantissa, largest = int(given["mantissa_bits"]), 2 ** (int(given["exponent_bits"]) - 1) - 1
    bound = 2.0**largest * (2 - 2.0**-mantissa)
    clipped = value.double().clamp(-bound, bound)
    exponent = torch.frexp(clipped).exponent - 1
    step = torch.exp2((exponent.clamp(min=-largest) - mantissa).double())  # of subnormals: equal
    steps = clipped.abs() / step
    if given["rounding"] == "stochastic":
        steps = torch.floor(steps + torch.rand_like(steps))
    else:
        steps = torch.ceil(steps - 0.5)
    return torch.copysign(steps * step, clipped).to(value.dtype)


@host_op("Nms", "ai.graphcore")
def non_maximum_suppression(call: Call) -> list[torch.Tensor]:
    """The boxes with the highest scores that overlap no better box of their class.

    The inputs are scores ``[batch, boxes, classes]`` and two corners of each box ``[batch, boxes,
    4]``. The results are the places of the boxes, their scores, corners and classes, in descending
    order of scores, and how many there are; the rest is -1, 0, 0 and the largest number.
    """
    scores, boxes = call.inputs
    most = int(call.attributes.get("numDetections", 100))
    batch, _, classes = scores.shape
    whole = torch.int32
    places = torch.full((batch, most), -1, dtype=whole)
    kinds = torch.full((batch, most), torch.iinfo(torch.int32).max, dtype=whole)
    values, corners = scores.new_zeros(batch, most), boxes.new_zeros(batch, most, 4)
    counts = torch.zeros(batch, dtype=whole)
    for row in range(batch):
        kept = _apart(scores[row], boxes[row], call.attributes)
        counts[row] = count = len(kept)
        places[row, :count], kinds[row, :count] = kept // classes, kept % classes
        values[row, :count] = scores[row].flatten()[kept]
        corners[row, :count] = boxes[row][kept // classes]
    return [places, values, corners, kinds, counts]


def _apart(
    scores: torch.Tensor, boxes: torch.Tensor, attributes: Mapping[str, Any]
) -> torch.Tensor:
    """The places of the scores whose boxes are kept, in descending order."""
    threshold = float(attributes.get("threshold", 0.5))
    lowest = float(attributes.get("scoreThreshold", -torch.inf))
    classes = scores.shape[1]
    order = scores.flatten().argsort(descending=True, stable=True)
    order = order[scores.flatten()[order] > lowest]
    kept: list[torch.Tensor] = []
    while len(order) and len(kept) < int(attributes.get("numDetections", 100)):
        best, order = order[0], order[1:]
        kept.append(best)
        first, others = boxes[best // classes].float(), boxes[order // classes].float()
        low, high = torch.maximum(first[:2], others[:, :2]), torch.minimum(first[2:], others[:, 2:])
        common = (high - low).clamp(min=0).prod(1)
        areas = (others[:, 2:] - others[:, :2]).prod(1) + (first[2:] - first[:2]).prod()
        overlaps = common > threshold * (areas - common)
        order = order[~(overlaps & (order % classes == best % classes))]
    return torch.stack(kept) if kept else order
