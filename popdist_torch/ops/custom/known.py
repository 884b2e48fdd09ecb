"""Functions of operators that public programs compile, except those over replicas.

The meanings are those of the published sources: `graphcore/examples`, `graphcore/poptorch` and
`graphcore-research/poptorch-experimental-addons`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from popdist_torch.errors import CustomOperatorError
from popdist_torch.ops.custom.registry import host_op
from popdist_torch.ops.updates import before_update

if TYPE_CHECKING:
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
    first, second = call.inputs
    return torch.cdist(first, second, p=norm)
