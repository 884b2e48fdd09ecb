"""Checks the arguments of a session: their types, and options that contradict each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING

from popdist_onnx.errors import ArgumentError, popart_exception
from popdist_onnx.optimizers.sgd import SGD
from popdist_onnx.types.data_flow import DataFlow
from popdist_onnx.types.enums import MergeVarUpdateType
from popdist_onnx.types.session_options import SessionOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from popdist_onnx.optimizers.optimizer import Optimizer


def options_of(given: object) -> SessionOptions:
    """A copy of a session's options; None gives the defaults.

    Changes that a program makes afterwards, for its next session, are not this one's.

    Raises:
        ArgumentError: The argument is not a `SessionOptions`.
    """
    if given is None:
        return SessionOptions()
    if not isinstance(given, SessionOptions):
        raise ArgumentError(
            "PD572",
            "userOptions is not a SessionOptions object",
            value=type(given).__name__,
            hint="options = SessionOptions(); options.hostAllReduce = True; ...",
        )
    return deepcopy(given)


def require_data_flow(given: object) -> None:
    """Checks a session's data flow.

    Raises:
        ArgumentError: The argument is not a `DataFlow`.
    """
    if not isinstance(given, DataFlow):
        raise ArgumentError(
            "PD572",
            "dataFlow is not a DataFlow object",
            value=type(given).__name__,
            hint='DataFlow(batchesPerStep, {tensorId: AnchorReturnType("All")})',
        )


def require_id(name: str, given: object) -> None:
    """Checks a tensor's id.

    Raises:
        ArgumentError: The id is not a str.
    """
    if not isinstance(given, str):
        raise ArgumentError(
            "PD523", f"{name} takes the id of a tensor, as text", value=type(given).__name__
        )


def require_arrays(name: str, given: object, code: str = "PD571") -> None:
    """Checks a mapping of arrays.

    Raises:
        ArgumentError: The argument is not a mapping of arrays.
    """
    if not isinstance(given, Mapping):
        raise ArgumentError(
            code,
            f"{name} takes arrays by id",
            value=type(given).__name__,
            accepted="a dict from tensor id to numpy array",
        )


def rearranged(given: Sequence[int], wanted: Sequence[int], front: Sequence[int] = ()) -> bool:
    """Whether an array has the wanted lengths in another order, as one that was not transposed.

    Args:
        given: The array's shape.
        wanted: The shape that is wanted.
        front: What may stand in front of it: numbers of batches, for one.

    Returns:
        False too where the last dimensions are those that are wanted, or where lengths differ, as
        in flat arrays and in batches of other sizes.
    """
    found, whole = _proper(given), _proper(wanted)
    row = _proper(wanted[1:])
    unit = row or whole
    if found[-len(unit) :] == unit:
        return False
    for lengths in (_proper(front) + whole, whole, row):
        last = found[-len(lengths) :]
        if len(last) > 1 and last != lengths and sorted(last) == sorted(lengths):
            return True
    return False


def _proper(shape: Sequence[int]) -> list[int]:
    return [length for length in shape if length != 1]


def require_step_io(given: object) -> None:
    """Checks the data object of a step.

    Raises:
        ArgumentError: The object has no interface of a `StepIO`.
    """
    if not all(hasattr(given, name) for name in ("take", "taken", "place", "placed")):
        raise ArgumentError(
            "PD571",
            "a step takes a PyStepIO or a PyStepIOCallback",
            value=type(given).__name__,
            hint="session.run(PyStepIO(inputs, anchors))",
        )


# Session options that contradict the exchange of gradients on the host.


class HostAllReduceOptionError(popart_exception, ValueError):
    """Session options contradict the exchange of gradients on the host."""


def check_host_options(options: SessionOptions, optimizer: Optimizer | None = None) -> None:
    """Refuses options of a training session that contradict each other.

    Raises:
        HostAllReduceOptionError: Options contradict each other.
    """
    for what, hint in _contradictions(options, optimizer):
        raise HostAllReduceOptionError("PD547", what, hint=hint)


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
