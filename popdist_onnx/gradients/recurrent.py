"""What the gradients of RNN, GRU and LSTM share: directions, lengths, gates.

Forward kernels give only the outputs. The gates of small layers are calculated again, for all steps
at once, from the outputs of the steps before. In large layers those products would take a third of
the step: there the forward pass is written as a loop that also gives what the gradient reads, in
place of the kernel. Only what truly depends on the step after runs in a loop of the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import onnx_ir as ir

from popdist_onnx.gradients.activations import ACTIVATIONS, Activation
from popdist_onnx.graph import shape_ops
from popdist_onnx.graph.tensor import Tape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from popdist_onnx.gradients.registry import At, Edges
    from popdist_onnx.graph.tensor import Tensor


_DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}

LEAST_PRODUCTS = 1 << 19
"""Multiplications of one gate in one step above which calculating gates again takes longer than
the forward kernel saves."""


Step: TypeAlias = (
    "Callable[[Tape, Sequence[Tensor], Sequence[Tensor]], tuple[list[Tensor], list[Tensor]]]"
)
"""Writes one step of a loop: from states and elements to next states and what the step gives."""


class Forward(NamedTuple):
    """One direction's forward pass as a loop.

    Inside of the loop, and of the gradient's, features come before samples: products are weights
    times states then, whose kernel reads the weights as they lie in memory. It takes two thirds of
    the time of states times weights, for which the weights are copied in every step.

    Attributes:
        y: Output, ``[T, N, H]``, in the direction's order.
        last: The states after the last step, ``[N, H]``.
        kept: What the gradient reads, each ``[T, H, N]``.
    """

    y: Tensor
    last: tuple[Tensor, ...]
    kept: tuple[Tensor, ...]

    @classmethod
    def of(cls, one: Direction, step: Step, first: Sequence[Tensor]) -> Forward:
        """Writes the loop.

        Args:
            one: The direction.
            step: From the states and the input, ``[N, I]``, to the next states, the output and what
                the gradient reads.
            first: The first states, ``[N, H]``.

        Returns:
            The forward pass.
        """
        states = [one.tape.Transpose(state, perm=[1, 0]) for state in first]
        last, (y, *kept) = scan(one.tape, step, states, [one.x])
        turned = [one.tape.Transpose(state, perm=[1, 0]) for state in last]
        return cls(y, tuple(turned), tuple(kept))


@dataclass
class Direction:
    """One direction of a recurrent node, as if it were the only one and ran forwards.

    Attributes:
        at: The node.
        index: Which direction.
        reverse: Whether it runs from the end.
        x: Input, ``[T, N, I]``.
        w: Input weights, ``[gates * H, I]``.
        r: Recurrent weights, ``[gates * H, H]``.
        activations: Functions of this direction.
        forward: The forward pass, where it was written as a loop.
        edges: Gradients found so far, by the node's input.
    """

    at: At
    index: int
    reverse: bool
    x: Tensor
    w: Tensor
    r: Tensor
    activations: list[Activation]
    forward: Forward | None = None
    edges: dict[int, Tensor] = field(default_factory=dict)

    @property
    def tape(self) -> Tape:
        """Where nodes go."""
        return self.at.tape

    @property
    def hidden(self) -> int:
        """Length of the state."""
        return int(self.at.get("hidden_size", 0) or self.r.shape[1])

    @cached_property
    def y(self) -> Tensor:
        """Output, ``[T, N, H]``."""
        if self.forward is not None:
            return self.forward.y
        return self.turned(pick(self.at.y, self.index, 1))

    @cached_property
    def g(self) -> Tensor:
        """Gradient of the output."""
        found = self.at.gradients[0]
        return shape_ops.zeros(self.y) if found is None else self.turned(pick(found, self.index, 1))

    def turned(self, sequence: Tensor) -> Tensor:
        """A sequence in the direction's order, or one in the direction's order as it was.

        Args:
            sequence: Steps first.

        Returns:
            Each sample's sequence from its own end, where the direction runs from there.
        """
        return _turn(self.at, sequence) if self.reverse else sequence

    def own(self, index: int) -> Tensor | None:
        """This direction's part of an optional input with directions first.

        Args:
            index: Which input.

        Returns:
            Its part without the direction's axis; None where the input is left out.
        """
        whole = self.at.optional(index)
        return None if whole is None else pick(whole, self.index, 0)

    @property
    def features(self) -> int:
        """The axis of features of a step inside of the gradient's loop; see `Forward`."""
        return 1 if self.forward is None else 0

    def across(self, tape: Tape, tensor: Tensor) -> Tensor:
        """A step's tensor on its way into the gradient's loop, or out of it.

        Args:
            tape: Where the node goes.
            tensor: The tensor.

        Returns:
            The tensor, transposed where the axes are in another order inside of the loop.
        """
        return tensor if self.forward is None else tape.Transpose(tensor, perm=[1, 0])

    def product_with(self, weights: Tensor) -> Callable[[Tape, Tensor], Tensor]:
        """What takes the gradient of sums back to a state inside of the gradient's loop.

        Args:
            weights: Recurrent weights, ``[sums, H]``.

        Returns:
            A function that writes the product, given where to and the gradient of the sums.
        """
        if self.forward is None:
            return lambda tape, sums: tape.MatMul(sums, weights)
        turned = self.tape.Transpose(weights, perm=[1, 0])
        return lambda tape, sums: tape.MatMul(turned, sums)

    def state(self, index: int) -> Tensor:
        """A first state, zeros where it is left out.

        Args:
            index: Which input.

        Returns:
            The state, ``[N, H]``.
        """
        found = self.own(index)
        return self._zeros() if found is None else found

    def last_gradient(self, output: int) -> Tensor:
        """The gradient of a last state, zeros where it is not read.

        Args:
            output: Which output.

        Returns:
            The gradient, ``[N, H]``.
        """
        found = self.at.gradients[output] if output < len(self.at.gradients) else None
        return self._zeros() if found is None else pick(found, self.index, 0)

    def _zeros(self) -> Tensor:
        content = ir.Tensor(np.zeros(1, self.x.dtype.numpy()))
        return self.tape.ConstantOfShape(
            self.tape.ints(self.x.shape[1], self.hidden), value=content
        )

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
    """A slice at an index of an axis, with the axis squeezed."""
    if tensor.dims is not None and tensor.dims[axis] == 1:
        return tensor.tape.Squeeze(tensor, [axis])  # which copies nothing
    return tensor.tape.Gather(tensor, np.asarray(index, np.int64), axis=axis)


def differentiate(
    at: At,
    one_direction: Callable[[Direction], None],
    inputs: int,
    forward: Callable[[Direction], Forward] | None = None,
) -> Edges:
    """Differentiates each direction and puts the directions together again.

    Args:
        at: The node.
        one_direction: Fills a direction's ``edges``; that of the input in the direction's order.
        inputs: How many inputs the operator has.
        forward: Writes a direction's forward pass as a loop; None where the kernel stays.

    Returns:
        The gradients of the inputs.
    """
    if at.get("layout", 0):
        raise at.refused("layout 1", "transpose the input and use layout 0")
    if at.node.attributes.get("clip") is not None:
        raise at.refused("clip", "leave clip out")
    if not at.x.static:
        raise at.refused("its shapes are not known", "export the model with fixed shapes")
    ways = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    way = ways[at.get("direction", "forward")]
    if forward is None or not _pays(at):
        at.with_outputs(1)
        done = [_direction(at, index, reverse=reverse) for index, reverse in enumerate(way)]
        for one in done:
            one_direction(one)
        return [_joined(at, done, index) for index in range(inputs)]
    node, read = at.node, list(at.node.inputs)
    with at.tape.at(node, f"{node.name or node.op_type}/", node.metadata_props):
        done = [_direction(at, index, reverse=reverse) for index, reverse in enumerate(way)]
        for one in done:
            one.forward = forward(one)
        made = _outputs(done, len(node.outputs))
    for one in done:
        one_direction(one)
    edges: dict[ir.Value, Tensor] = {}
    for index, value in enumerate(read):
        edge = _joined(at, done, index) if index < inputs else None
        if value is not None and edge is not None:
            edges[value] = edges[value] + edge if value in edges else edge
    at.tape.substitute(node, made)
    return edges


def _pays(at: At) -> bool:
    """Whether a loop that keeps the gates takes less than the kernel and the gates once more."""
    if at.optional(4) is not None:
        return False
    (_, samples, length), hidden = at.x.shape, at.input(2).shape[2]
    return samples * hidden * (length + hidden) >= LEAST_PRODUCTS


def _outputs(done: Sequence[Direction], count: int) -> list[Tensor]:
    """The outputs of the node whose directions were written as loops."""
    forwards = [one.forward for one in done if one.forward is not None]
    parts = [[one.turned(made.y) for one, made in zip(done, forwards, strict=True)]]
    parts += [[made.last[index] for made in forwards] for index in range(count - 1)]
    return [_stacked(part, axis=int(index == 0)) for index, part in enumerate(parts)]


def _direction(at: At, index: int, *, reverse: bool) -> Direction:
    names: list[str] = list(at.get("activations", ()))
    each = len(_DEFAULTS[at.node.op_type])
    names = names[index * each : (index + 1) * each] or _DEFAULTS[at.node.op_type]
    alphas: Sequence[float] = at.get("activation_alpha", ())
    betas: Sequence[float] = at.get("activation_beta", ())
    return Direction(
        at=at,
        index=index,
        reverse=reverse,
        x=_turn(at, at.x) if reverse else at.x,
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
    ones = [one for one in done if index in one.edges]
    if not ones:
        return None
    if index == 0:
        turned = [one.turned(one.edges[index]) for one in ones]
        return turned[0] if len(turned) == 1 else turned[0] + turned[1]
    return _stacked([one.edges[index] for one in ones], axis=0)


def _stacked(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Tensors along a new axis."""
    tape = parts[0].tape
    stacked = [tape.Unsqueeze(part, [axis]) for part in parts]
    return stacked[0] if len(stacked) == 1 else tape.Concat(*stacked, axis=axis)


# Loops over time: `Scan` nodes whose body is written by a function.


def scan(
    tape: Tape,
    step: Step,
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
    outputs: list[Tensor] = []
    for one in (*following, *given):
        node, known = one.value.producer(), {other.value for other in outputs}
        # An output of the body is a node's own, not an input or a value from outside, and is there
        # once.
        own = node is not None and node.graph is body and one.value not in known
        outputs.append(one if own else inner.Identity(one))
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
