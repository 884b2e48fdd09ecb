"""Which session options fit the exchange of gradients on the host, and which contradict it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.errors import NotOnHostError, popart_exception
from popdist_onnx.optimizers.sgd import SGD
from popdist_onnx.types.enums import MergeVarUpdateType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from popdist_onnx.optimizers.optimizer import Optimizer
    from popdist_onnx.types.session_options import SessionOptions


def check_loss_scaling_options(options: SessionOptions) -> None:
    """Refuses loss scaling that changes by itself.

    Args:
        options: The session's options.

    Raises:
        NotOnHostError: It is asked for.
    """
    if options.automaticLossScalingSettings.enabled:
        raise NotOnHostError(
            "PD547",
            "automatic loss scaling is not carried out",
            hint='make the loss scaling variable, as {"lossScaling": (1024.0, False)}, and change '
            "it with updateOptimizerFromHost; models in float32 need none",
        )


class HostAllReduceOptionError(popart_exception, ValueError):
    """Session options contradict the exchange of gradients on the host."""


def check_host_options(options: SessionOptions, optimizer: Optimizer | None = None) -> None:
    """Refuses combinations of options of a training session that cannot work.

    Args:
        options: The session's options.
        optimizer: The session's optimizer.

    Raises:
        HostAllReduceOptionError: Options contradict each other.
        NotOnHostError: An option needs the memory of an IPU system.
    """
    for what, hint in _contradictions(options, optimizer):
        raise HostAllReduceOptionError("PD547", what, hint=hint)
    if options.hostWeightUpdate:
        raise NotOnHostError(
            "PD547",
            "hostWeightUpdate is not carried out: weights are updated where gradients are summed",
            hint="set hostWeightUpdate = False; a program that makes its own updates can read "
            "gradients as anchors and write weights with writeWeights and weightsFromHost",
        )
    if options.hostAllReduceRemoteBuffer:
        raise NotOnHostError(
            "PD547",
            "hostAllReduceRemoteBuffer needs the remote buffers of an IPU system",
            hint="leave it off: gradients lie in the host's memory already, and their size is not "
            "limited",
        )


def _contradictions(
    options: SessionOptions, optimizer: Optimizer | None
) -> Iterator[tuple[str, str]]:
    if options.hostWeightUpdate and not options.hostAllReduce:
        yield (
            "Host weight update can't be enabled without hostAllReduce",
            "set hostAllReduce = True, or hostWeightUpdate = False",
        )
    if options.hostAllReduce and options.mergeVarUpdate is not MergeVarUpdateType.Off:
        yield (
            "hostAllReduce does not work with MergeVarUpdates",
            "set mergeVarUpdate = MergeVarUpdateType.Off",
        )
    if options.hostWeightUpdate:
        update_weights = "set hostWeightUpdate = False: weights are then updated by the graph"
        if options.enablePipelining:
            yield "Pipelining is not supported with host weight update", update_weights
        if options.getAccumulationFactor() > 1 or options.enableGradientAccumulation:
            yield "Gradient accumulation is not supported with host weight update", update_weights
        if options.hostAllReduceRemoteBuffer:
            yield "Remote buffers are not supported with host weight update", update_weights
        if optimizer is not None and not _is_plain_sgd(optimizer):
            yield (
                f"{_described(optimizer)} is not supported with host weight update",
                "take SGD without momentum, or set hostWeightUpdate = False",
            )
    if options.hostAllReduceRemoteBuffer and options.enableReplicatedGraphs:
        yield (
            "Replicated graphs are not supported with remote buffers of hostAllReduce",
            "set hostAllReduceRemoteBuffer = False",
        )


def _is_plain_sgd(optimizer: Optimizer) -> bool:
    weights = [None, *optimizer.specific_weights()]
    return isinstance(optimizer, SGD) and not any(map(optimizer.has_momentum, weights))


def _described(optimizer: Optimizer) -> str:
    return "SGD with momentum (SGD1)" if isinstance(optimizer, SGD) else optimizer.published
