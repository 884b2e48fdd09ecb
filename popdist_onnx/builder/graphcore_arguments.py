"""What some operators of ``ai.graphcore`` make of their arguments before a node is written."""

from __future__ import annotations

from typing import Any

from popdist_onnx.errors import ArgumentError
from popdist_onnx.types import InitType, ScatterReduction


def require_init_type(inputs: list[Any], bound: dict[str, Any]) -> None:
    """Checks what ``init`` fills with.

    Args:
        inputs: The node's inputs.
        bound: Its arguments by name.

    Raises:
        ArgumentError: It is no `InitType`.
    """
    del inputs
    if not isinstance(bound["init_type"], InitType):
        raise ArgumentError(
            "PD501", "init takes an InitType", value=bound["init_type"], accepted="NoInit, Zero"
        )


def name_reduction(inputs: list[Any], bound: dict[str, Any]) -> None:
    """Puts the name of a reduction in the place of the member.

    Args:
        inputs: The node's inputs.
        bound: Its arguments by name, changed in place.

    Raises:
        ArgumentError: It is no `ScatterReduction`.
    """
    del inputs
    reduction = bound["reduction"]
    if not isinstance(reduction, ScatterReduction):
        raise ArgumentError(
            "PD501",
            "scatterreduce takes a ScatterReduction",
            value=reduction,
            accepted=", ".join(one.name for one in ScatterReduction),
        )
    bound["reduction"] = reduction.value


def flatten_convolutions(inputs: list[Any], bound: dict[str, Any]) -> None:
    """Writes lists of several convolutions one after the other, as the node's attributes hold them.

    Args:
        inputs: A list of ids for each convolution, changed in place.
        bound: Its arguments by name, changed in place.

    Raises:
        ArgumentError: There is not one list for each convolution.
    """
    groups = list(inputs)
    if not all(isinstance(one, (list, tuple)) for one in groups):
        raise ArgumentError(
            "PD501",
            "multiconv takes a list of lists of ids, one list per convolution",
            value=groups,
            hint="write [[x0, w0], [x1, w1, b1]]",
        )
    for name in ("dilations", "inDilations", "pads", "outPads", "strides"):
        per_convolution = bound[name]
        if not all(isinstance(one, (list, tuple)) for one in per_convolution) or (
            any(per_convolution)
            and not (all(per_convolution) and len(per_convolution) == len(groups))
        ):
            raise ArgumentError(
                "PD501",
                f"multiconv takes for {name} a list of numbers for each convolution, or nothing",
                value=per_convolution,
            )
        bound[name] = [number for one in per_convolution for number in one]
    inputs[:] = [tensor for group in groups for tensor in group]
    bound["inputCounts"] = [len(group) for group in groups]
    bound["num_outputs"] = len(groups)
