"""What the gradients of RNN, GRU and LSTM share: directions, lengths, gates.

Forward kernels give only the outputs, so gates are calculated again, for all steps at once, from
the outputs of the steps before. Only what truly depends on the step after runs in a loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from popdist_onnx.gradients.activations import ACTIVATIONS, Activation
from popdist_onnx.graph import shape_ops
from popdist_onnx.graph.tensor import Tape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from popdist_onnx.gradients.registry import At
    from popdist_onnx.graph.tensor import Tensor


_DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


@dataclass
class Direction:
    """One direction of a recurrent node, as if it were the only one and ran forwards.

    Attributes:
        at: The node.
        index: Which direction.
        reverse: Whether it runs from the end.
        x: Input, ``[T, N, I]``.
        y: Output, ``[T, N, H]``.
        g: Gradient of the output.
        w: Input weights, ``[gates * H, I]``.
        r: Recurrent weights, ``[gates * H, H]``.
        activations: Functions of this direction.
        edges: Gradients found so far, by the node's input.
    """

    at: At
    index: int
    reverse: bool
    x: Tensor
    y: Tensor
    g: Tensor
    w: Tensor
    r: Tensor
    activations: list[Activation]
    edges: dict[int, Tensor] = field(default_factory=dict)

    @property
    def tape(self) -> Tape:
        """Where nodes go."""
        return self.at.tape

    @property
    def hidden(self) -> int:
        """Length of the state."""
        return int(self.at.get("hidden_size", 0) or self.r.shape[1])

    def own(self, index: int) -> Tensor | None:
        """This direction's part of an optional input with directions first.

        Args:
            index: Which input.

        Returns:
            Its part without the direction's axis; None where the input is left out.
        """
        whole = self.at.optional(index)
        return None if whole is None else pick(whole, self.index, 0)

    def state(self, index: int) -> Tensor:
        """A first state, zeros where it is left out.

        Args:
            index: Which input.

        Returns:
            The state, ``[N, H]``.
        """
        found = self.own(index)
        return shape_ops.zeros(pick(self.y, 0, 0)) if found is None else found

    def last_gradient(self, output: int) -> Tensor:
        """The gradient of a last state, zeros where it is not read.

        Args:
            output: Which output.

        Returns:
            The gradient, ``[N, H]``.
        """
        if output < len(self.at.gradients) and self.at.gradients[output] is not None:
            return pick(self.at.g_of(output), self.index, 0)
        return shape_ops.zeros(pick(self.y, 0, 0))

    def before(self, first: Tensor, sequence: Tensor) -> Tensor:
        """What each step started from.

        Args:
            first: The first state, ``[N, H]``.
            sequence: The state after each step, ``[T, N, H]``.

        Returns:
            The state before each step.
        """
        tape = self.tape
        return tape.Concat(tape.Unsqueeze(first, [0]), tape.Slice(sequence, [0], [-1], [0]), axis=0)

    def mask(self) -> Tensor | None:
        """Which steps count, ``[T, N, 1]``; None where all do."""
        lengths = self.at.optional(4)
        if lengths is None:
            return None
        tape = self.tape
        steps = np.arange(self.x.shape[0], dtype=np.int32).reshape(-1, 1, 1)
        return tape.constant(steps) < tape.Reshape(lengths, [1, -1, 1])

    def flat(self, tensor: Tensor) -> Tensor:
        """Steps and samples as rows of one matrix.

        Args:
            tensor: ``[T, N, F]``.

        Returns:
            ``[T * N, F]``.
        """
        return self.tape.Reshape(tensor, [-1, tensor.shape[2]])

    def unflat(self, matrix: Tensor, length: int) -> Tensor:
        """Undoes `flat`.

        Args:
            matrix: ``[T * N, F]``.
            length: F.

        Returns:
            ``[T, N, F]``.
        """
        return self.tape.Reshape(matrix, [*self.x.shape[:2], length])


def pick(tensor: Tensor, index: int, axis: int) -> Tensor:
    """One element of an axis, without the axis.

    Args:
        tensor: The tensor.
        index: Which element.
        axis: The axis.

    Returns:
        The element.
    """
    return tensor.tape.Gather(tensor, np.asarray(index, np.int64), axis=axis)


def differentiate(
    at: At, one_direction: Callable[[Direction], None], inputs: int
) -> list[Tensor | None]:
    """Differentiates each direction and puts the directions together again.

    Args:
        at: The node.
        one_direction: Fills a direction's ``edges``; that of the input in the direction's order.
        inputs: How many inputs the operator has.

    Returns:
        The gradients of the inputs.
    """
    if at.get("layout", 0):
        raise at.refused("layout 1", "transpose the input and use layout 0")
    if at.node.attributes.get("clip") is not None:
        raise at.refused("clip", "leave clip out")
    if not at.x.static:
        raise at.refused("its shapes are not known", "export the model with fixed shapes")
    at.with_outputs(1)
    ways = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    done = []
    for index, reverse in enumerate(ways[at.get("direction", "forward")]):
        done.append(_direction(at, index, reverse=reverse))
        one_direction(done[-1])
    return [_joined(at, done, index) for index in range(inputs)]


def _direction(at: At, index: int, *, reverse: bool) -> Direction:
    turned = _turn if reverse else _leave
    names: list[str] = list(at.get("activations", ()))
    each = len(_DEFAULTS[at.node.op_type])
    names = names[index * each : (index + 1) * each] or _DEFAULTS[at.node.op_type]
    alphas: Sequence[float] = at.get("activation_alpha", ())
    betas: Sequence[float] = at.get("activation_beta", ())
    return Direction(
        at=at,
        index=index,
        reverse=reverse,
        x=turned(at, at.x),
        y=turned(at, pick(at.y, index, 1)),
        g=turned(at, pick(at.g, index, 1)),
        w=pick(at.input(1), index, 0),
        r=pick(at.input(2), index, 0),
        activations=[
            _activation(at, name, _nth(alphas, index * each + i), _nth(betas, index * each + i))
            for i, name in enumerate(names)
        ],
    )


def _nth(numbers: Sequence[float], index: int) -> float | None:
    return numbers[index] if index < len(numbers) else None


def _activation(at: At, name: str, alpha: float | None, beta: float | None) -> Activation:
    found = {known.lower(): make for known, make in ACTIVATIONS.items()}.get(name.lower())
    if found is None:
        raise at.refused(f"its activation {name!r}", f"known are {', '.join(ACTIVATIONS)}")
    return found(alpha, beta)


def _leave(at: At, sequence: Tensor) -> Tensor:
    del at
    return sequence


def _turn(at: At, sequence: Tensor) -> Tensor:
    """Each sequence from its own end."""
    lengths = at.optional(4)
    if lengths is None:
        return at.tape.Slice(sequence, [-1], [int(np.iinfo(np.int64).min)], [0], [-1])
    long = at.tape.Cast(lengths, to=7)
    return at.tape.ReverseSequence(sequence, long, time_axis=0, batch_axis=1)


def _joined(at: At, done: Sequence[Direction], index: int) -> Tensor | None:
    if not at.wants(index):
        return None
    parts = [one.edges[index] for one in done if index in one.edges]
    if not parts:
        return None
    if index == 0:
        turned = [
            _turn(at, part) if one.reverse else part for one, part in zip(done, parts, strict=True)
        ]
        return turned[0] if len(turned) == 1 else turned[0] + turned[1]
    stacked: list[Any] = [at.tape.Unsqueeze(part, [0]) for part in parts]
    return stacked[0] if len(stacked) == 1 else at.tape.Concat(*stacked, axis=0)


# Loops over time: `Scan` nodes whose body is written by a function.


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
        inner.input(f"{name}/state_{i}", one.dtype, one.lengths) for i, one in enumerate(states)
    ]
    seen = [
        inner.input(f"{name}/element_{i}", one.dtype, one.lengths[1:])
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
        one.value.shape = ir.Shape([lead, *element.lengths])
    return made[: len(states)], made[len(states) :]
