"""Loops over time: `Scan` nodes whose body is written by a function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from popdist_onnx.graph.tape import Tape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from popdist_onnx.graph.tensor import Tensor


def scan(
    tape: Tape,
    step: Callable[[Tape, Sequence[Tensor], Sequence[Tensor]], tuple[list[Tensor], list[Tensor]]],
    states: Sequence[Tensor],
    sequences: Sequence[Tensor],
    *,
    backwards: bool = False,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Runs a step for every element of the first axis.

    Args:
        tape: Where the node goes.
        step: Writes one step: from states and elements to next states and what the step gives. It
            may read tensors from outside.
        states: The first states.
        sequences: What is looped over.
        backwards: Whether to begin at the end; what steps give is still in the sequences' order.

    Returns:
        The last states, and what the steps gave, along a new first axis.
    """
    name = tape.fresh("Scan")
    body = ir.Graph([], [], nodes=[], name=name)
    inner = Tape(body, scope=f"{name}/", metadata=tape.metadata, opset=tape.opset)
    held = [
        inner.input(f"{name}/state_{i}", one.dtype, one.dims or ()) for i, one in enumerate(states)
    ]
    seen = [
        inner.input(f"{name}/element_{i}", one.dtype, (one.dims or ())[1:])
        for i, one in enumerate(sequences)
    ]
    following, given = step(inner, held, seen)
    # An output of the body must be a node's own, not an input or a value from outside.
    outputs = [inner.Identity(one) for one in (*following, *given)]
    body.outputs.extend(one.value for one in outputs)
    way = int(backwards)
    made = tape.many(
        "Scan",
        len(outputs),
        *states,
        *sequences,
        body=body,
        num_scan_inputs=len(sequences),
        scan_input_directions=[way] * len(sequences),
        scan_output_directions=[way] * len(given),
    )
    for one, state in zip(made, states, strict=False):
        one.value.type, one.value.shape = state.value.type, state.value.shape
    lead = (sequences[0].dims or (None,))[0]
    for one, element in zip(made[len(states) :], given, strict=True):
        one.value.type = element.value.type
        one.value.shape = ir.Shape([lead, *(element.dims or ())])
    return made[: len(states)], made[len(states) :]
