"""LSTM: gates input, output, forget, candidate (i, o, f, c), with peepholes P.

i = f(a_i + P_i C'), f = f(a_f + P_f C'), c = g(a_c), C = f C' + i c, o = f(a_o + P_o C),
H = o h(C), where a = W x + R H' + b, and ' marks the step before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.gradients.recurrent import Direction, Forward, differentiate, scan
from popdist_onnx.gradients.registry import At, Edges, gradient
from popdist_onnx.graph import shape_ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_onnx.graph.tensor import Tape, Tensor

_X, _W, _R, _B, _H0, _C0, _P = 0, 1, 2, 3, 5, 6, 7


@gradient("LSTM", inputs=(_X, _W, _R, _B, _H0, _C0, _P))
def _lstm(at: At) -> Edges:
    return differentiate(at, _one_direction, 8, None if at.optional(_P) is not None else _forward)


def _one_direction(one: Direction) -> None:
    tape = one.tape
    before = cells = None
    previous = one.before(one.state(_H0), one.y)
    if one.forward is None:
        before, cells, factors = _calculated_again(one, previous)
    else:
        factors = list(one.forward.kept)
    product = one.product_with(one.r)
    peepholes = one.own(_P)
    p_i, p_o, p_f = _peepholes(one)
    mask = one.mask()

    def step(
        inner: Tape, states: Sequence[Tensor], elements: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        d_h, d_c = states
        g, k_o, k_c, k_i, k_f, k_g, f, *counted = elements
        total_h = one.across(inner, g) + d_h
        d_o = total_h * k_o
        total_c = d_c + total_h * k_c
        if p_o is not None:
            total_c = total_c + d_o * p_o
        d_i, d_f, d_g = total_c * k_i, total_c * k_f, total_c * k_g
        sums = inner.Concat(d_i, d_o, d_f, d_g, axis=one.features)
        next_h, next_c = product(inner, sums), total_c * f
        if p_i is not None and p_f is not None:
            next_c = next_c + d_i * p_i + d_f * p_f
        if counted:
            sums = inner.Where(counted[0], sums, inner.scalar(0, sums.dtype))
            next_h = inner.Where(counted[0], next_h, d_h)
            next_c = inner.Where(counted[0], next_c, d_c)
        return [next_h, next_c], [one.across(inner, sums)]

    first = [one.across(tape, one.last_gradient(output)) for output in (1, 2)]
    sequences = [one.g, *factors, *([] if mask is None else [mask])]
    (d_h0, d_c0), (d_sums,) = scan(tape, step, first, sequences, backwards=True)
    flat = one.flat(d_sums)
    d_bias = tape.ReduceSum(flat, [0], keepdims=0)
    one.edges = {
        _X: one.unflat(tape.MatMul(flat, one.w), one.x.shape[2]),
        _W: tape.Gemm(flat, one.flat(one.x), transA=1),
        _R: tape.Gemm(flat, one.flat(previous), transA=1),
        _B: tape.Concat(d_bias, d_bias, axis=0),
        _H0: one.across(tape, d_h0),
        _C0: one.across(tape, d_c0),
    }
    if peepholes is not None and before is not None and cells is not None:
        d_i, d_o, d_f, _ = tape.many("Split", 4, d_sums, axis=2, num_outputs=4)
        pairs = [d_i * before, d_o * cells, d_f * before]
        one.edges[_P] = tape.ReduceSum(tape.Concat(*pairs, axis=2), [0, 1], keepdims=0)


def _forward(one: Direction) -> Forward:
    """The forward pass of a direction without peepholes, and what its gradient reads."""
    bias = _bias(one)
    beside = None if bias is None else one.tape.Unsqueeze(bias, [1])

    def step(
        inner: Tape, states: Sequence[Tensor], elements: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        (previous, before), (x,) = states, elements
        sums = inner.Gemm(one.r, previous, inner.Gemm(one.w, x, beside, transB=1))
        a_i, a_o, a_f, a_c = inner.many("Split", 4, sums, axis=0, num_outputs=4)
        gate, candidate, output = one.activations
        i, o, c = gate.value(a_i), gate.value(a_o), candidate.value(a_c)
        f = 1 - i if _coupled(one) else gate.value(a_f)
        cell = f * before + i * c
        squashed = output.value(cell)
        y = o * squashed
        factors = _factors(one, (a_i, a_o, a_f, a_c), (i, o, f, c), before, cell, squashed)
        return [y, cell], [inner.Transpose(y, perm=[1, 0]), *factors]

    return Forward.of(one, step, [one.state(_H0), one.state(_C0)])


def _calculated_again(one: Direction, previous: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Cell states before and after each step, and `_factors`, from the outputs of the kernel."""
    tape, size = one.tape, one.hidden
    gate, candidate, output = one.activations
    from_inputs = tape.Gemm(one.flat(one.x), one.w, _bias(one), transB=1)
    sums = tape.Gemm(one.flat(previous), one.r, from_inputs, transB=1)
    a_i, a_o, a_f, a_c = tape.many("Split", 4, one.unflat(sums, 4 * size), axis=2, num_outputs=4)
    p_i, p_o, p_f = _peepholes(one)
    c = candidate.value(a_c)
    cells = _cells(one, a_i, a_f, c, p_i, p_f)
    before = one.before(one.state(_C0), cells)
    if p_i is not None and p_f is not None and p_o is not None:
        a_i, a_f, a_o = a_i + p_i * before, a_f + p_f * before, a_o + p_o * cells
    i, o = gate.value(a_i), gate.value(a_o)
    f = 1 - i if _coupled(one) else gate.value(a_f)
    squashed = output.value(cells)
    sums_and_gates = (a_i, a_o, a_f, a_c), (i, o, f, c)
    return before, cells, _factors(one, *sums_and_gates, before, cells, squashed)


def _bias(one: Direction) -> Tensor | None:
    """The sum of both biases, ``[4 H]``."""
    bias = one.own(_B)
    if bias is None:
        return None
    input_bias, recurrent_bias = one.tape.many("Split", 2, bias, num_outputs=2)
    return input_bias + recurrent_bias


def _coupled(one: Direction) -> bool:
    return bool(one.at.get("input_forget", 0))


def _peepholes(one: Direction) -> Sequence[Tensor | None]:
    peepholes = one.own(_P)
    if peepholes is None:
        return None, None, None
    return one.tape.many("Split", 3, peepholes, num_outputs=3)


def _factors(
    one: Direction,
    sums: Sequence[Tensor],
    gates: Sequence[Tensor],
    before: Tensor,
    cell: Tensor,
    squashed: Tensor,
) -> list[Tensor]:
    """What a unit of dH or dC does to each sum and to the cell before: of one step, or of all."""
    (a_i, a_o, a_f, a_c), (i, o, f, c) = sums, gates
    gate, candidate, output = one.activations
    coupled = _coupled(one)
    return [
        gate.times_slope(squashed, a_o, o),
        output.times_slope(o, cell, squashed),
        gate.times_slope(c - before if coupled else c, a_i, i),
        shape_ops.zeros(f) if coupled else gate.times_slope(before, a_f, f),
        candidate.times_slope(i, a_c, c),
        f,
    ]


def _cells(
    one: Direction,
    a_i: Tensor,
    a_f: Tensor,
    c: Tensor,
    p_i: Tensor | None,
    p_f: Tensor | None,
) -> Tensor:
    """The cell state after each step, which the forward kernel does not give."""
    tape, gate, coupled = one.tape, one.activations[0], _coupled(one)
    if p_i is None or p_f is None:
        i = gate.value(a_i)
        f = 1 - i if coupled else gate.value(a_f)

        def linear(
            _: Tape, states: Sequence[Tensor], elements: Sequence[Tensor]
        ) -> tuple[list[Tensor], list[Tensor]]:
            cell = elements[0] * states[0] + elements[1]
            return [cell], [cell]

        _, (cells,) = scan(tape, linear, [one.state(_C0)], [f, i * c])
        return cells

    def peeping(
        _: Tape, states: Sequence[Tensor], elements: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        (cell,), (a_i, a_f, c) = states, elements
        # The step's own tensors come first: they say where nodes go.
        i = gate.value(a_i + cell * p_i)
        f = 1 - i if coupled else gate.value(a_f + cell * p_f)
        following = f * cell + i * c
        return [following], [following]

    _, (cells,) = scan(tape, peeping, [one.state(_C0)], [a_i, a_f, c])
    return cells
