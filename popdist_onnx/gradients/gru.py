"""GRU: gates update, reset, hidden (z, r, h). RNN: one gate.

z = f(a_z), r = f(a_r), h = g(W_h x + R_h (r H') + b) or, with linear_before_reset,
h = g(W_h x + r (R_h H' + b_R) + b_W); H = h + z (H' - h), where ' marks the step before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.gradients.recurrent import Direction, Forward, differentiate, scan
from popdist_onnx.gradients.registry import At, Edges, gradient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_onnx.graph.tensor import Tape, Tensor

_X, _W, _R, _B, _H0 = 0, 1, 2, 3, 5


@gradient("GRU", inputs=(_X, _W, _R, _B, _H0))
def _gru(at: At) -> Edges:
    return differentiate(at, _gru_direction, 6, _gru_forward)


@gradient("RNN", inputs=(_X, _W, _R, _B, _H0))
def _rnn(at: At) -> Edges:
    return differentiate(at, _rnn_direction, 6)


def _masked(
    inner: Tape, counted: Sequence[Tensor], following: Tensor, kept: Tensor, sums: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Steps beyond a sequence's end change nothing."""
    if not counted:
        return [following], list(sums)
    zero = inner.scalar(0, kept.dtype)
    return (
        [inner.Where(counted[0], following, kept)],
        [inner.Where(counted[0], one, zero) for one in sums],
    )


def _gru_direction(one: Direction) -> None:
    tape, size, late = one.tape, one.hidden, _late(one)
    r_zr, r_h = tape.many("Split", 2, one.r, [2 * size, size])
    previous = one.before(one.state(_H0), one.y)
    if one.forward is None:
        entering, factors = _calculated_again(one, previous, r_zr, r_h)
    else:
        factors = list(one.forward.kept)
        entering = previous if late else factors.pop(0)
    product_zr, product_h = one.product_with(r_zr), one.product_with(r_h)
    mask = one.mask()

    def step(
        inner: Tape, states: Sequence[Tensor], elements: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        (d_h,) = states
        g, k_h, k_z, k_r, z, r, *counted = elements
        total = one.across(inner, g) + d_h
        d_hidden, d_z = total * k_h, total * k_z
        # d_q is the gradient of the product with R_h.
        d_q = d_hidden * r if late else d_hidden
        back = product_h(inner, d_q)
        d_r = (d_hidden if late else back) * k_r
        following = total * z + (back if late else back * r)
        sums = inner.Concat(d_z, d_r, axis=one.features)
        following = following + product_zr(inner, sums)
        given = [one.across(inner, tensor) for tensor in (sums, d_hidden, d_q)]
        return _masked(inner, counted, following, d_h, given)

    sequences = [one.g, *factors, *([] if mask is None else [mask])]
    first = [one.across(tape, one.last_gradient(1))]
    (d_h0,), (d_zr, d_hidden, d_q) = scan(tape, step, first, sequences, backwards=True)
    of_x = one.flat(tape.Concat(d_zr, d_hidden, axis=2))
    of_zr = one.flat(d_zr)
    of_q = one.flat(d_q)
    d_r_zr = tape.Gemm(of_zr, one.flat(previous), transA=1)
    d_r_h = tape.Gemm(of_q, one.flat(entering), transA=1)
    bias_x = tape.ReduceSum(of_x, [0], keepdims=0)
    bias_h = tape.ReduceSum(tape.Concat(of_zr, of_q, axis=1), [0], keepdims=0)
    one.edges = {
        _X: one.unflat(tape.MatMul(of_x, one.w), one.x.shape[2]),
        _W: tape.Gemm(of_x, one.flat(one.x), transA=1),
        _R: tape.Concat(d_r_zr, d_r_h, axis=0),
        _B: tape.Concat(bias_x, bias_h, axis=0),
        _H0: one.across(tape, d_h0),
    }


def _gru_forward(one: Direction) -> Forward:
    """The forward pass of a direction, and what its gradient reads."""
    tape, size, late = one.tape, one.hidden, _late(one)
    w_zr, w_h = tape.many("Split", 2, one.w, [2 * size, size])
    r_zr, r_h = tape.many("Split", 2, one.r, [2 * size, size])
    columns = [None if bias is None else tape.Unsqueeze(bias, [1]) for bias in _biases(one)]

    def step(
        inner: Tape, states: Sequence[Tensor], elements: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        (previous,), (x,) = states, elements
        gate, hidden = one.activations
        b_zr, b_h, beside = columns
        sums = inner.Gemm(r_zr, previous, inner.Gemm(w_zr, x, b_zr, transB=1))
        a_z, a_r = inner.many("Split", 2, sums, axis=0, num_outputs=2)
        z, r = gate.value(a_z), gate.value(a_r)
        # What the hidden gate multiplies by R_h: the state itself, or the state after the reset.
        entering = previous if late else r * previous
        q = inner.Gemm(r_h, entering, beside)
        a_h = inner.Gemm(w_h, x, b_h, transB=1) + (r * q if late else q)
        h = hidden.value(a_h)
        y = h + z * (previous - h)
        factors = _factors(one, (a_z, a_r, a_h), (z, r, h), previous, q)
        given = [y] if late else [y, entering]
        return [y], [*(inner.Transpose(tensor, perm=[1, 0]) for tensor in given), *factors]

    return Forward.of(one, step, [one.state(_H0)])


def _calculated_again(
    one: Direction, previous: Tensor, r_zr: Tensor, r_h: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """What the hidden gate multiplied, and `_factors`, from the outputs of the kernel."""
    tape, size, late = one.tape, one.hidden, _late(one)
    gate, hidden = one.activations
    w_zr, w_h = tape.many("Split", 2, one.w, [2 * size, size])
    b_zr, b_h, beside = _biases(one)
    x_zr, x_h = (tape.Gemm(one.flat(one.x), w, b, transB=1) for w, b in ((w_zr, b_zr), (w_h, b_h)))
    sums = tape.Gemm(one.flat(previous), r_zr, x_zr, transB=1)
    a_z, a_r = tape.many("Split", 2, one.unflat(sums, 2 * size), axis=2, num_outputs=2)
    z, r = gate.value(a_z), gate.value(a_r)
    entering = previous if late else r * previous
    q = one.unflat(tape.Gemm(one.flat(entering), r_h, beside, transB=1), size)
    a_h = one.unflat(x_h, size) + (r * q if late else q)
    h = hidden.value(a_h)
    return entering, _factors(one, (a_z, a_r, a_h), (z, r, h), previous, q)


def _late(one: Direction) -> bool:
    """Whether the reset follows the product with R_h."""
    return bool(one.at.get("linear_before_reset", 0))


def _biases(one: Direction) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The bias of the gates, that of the hidden gate beside W_h, and that beside R_h."""
    tape, bias, lengths = one.tape, one.own(_B), [2 * one.hidden, one.hidden]
    if bias is None:
        return None, None, None
    w_bias, r_bias = tape.many("Split", 2, bias, num_outputs=2)
    w_zr, w_h = tape.many("Split", 2, w_bias, lengths)
    r_zr, r_h = tape.many("Split", 2, r_bias, lengths)
    return w_zr + r_zr, w_h, r_h


def _factors(
    one: Direction,
    sums: Sequence[Tensor],
    gates: Sequence[Tensor],
    previous: Tensor,
    q: Tensor,
) -> list[Tensor]:
    """What a unit of dH does to each sum, z and r: of one step, or of all."""
    (a_z, a_r, a_h), (z, r, h) = sums, gates
    gate, hidden = one.activations
    return [
        hidden.times_slope(1 - z, a_h, h),
        gate.times_slope(previous - h, a_z, z),
        gate.times_slope(q if _late(one) else previous, a_r, r),
        z,
        r,
    ]


def _rnn_direction(one: Direction) -> None:
    tape = one.tape
    (function,) = one.activations
    previous = one.before(one.state(_H0), one.y)
    flat_x, flat_h = one.flat(one.x), one.flat(previous)
    bias, total = one.own(_B), None
    if bias is not None:
        w_bias, r_bias = tape.many("Split", 2, bias, num_outputs=2)
        total = w_bias + r_bias
    sums = tape.Gemm(flat_h, one.r, tape.Gemm(flat_x, one.w, total, transB=1), transB=1)
    slope = function.slope(one.unflat(sums, one.hidden), one.y)
    mask = one.mask()

    def step(
        inner: Tape, states: Sequence[Tensor], elements: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        (d_h,) = states
        g, slope, *counted = elements
        d_sum = (g + d_h) * slope
        return _masked(inner, counted, inner.MatMul(d_sum, one.r), d_h, [d_sum])

    sequences = [one.g, slope, *([] if mask is None else [mask])]
    first = [one.last_gradient(1)]
    (d_h0,), (d_sums,) = scan(tape, step, first, sequences, backwards=True)
    flat = one.flat(d_sums)
    d_bias = tape.ReduceSum(flat, [0], keepdims=0)
    one.edges = {
        _X: one.unflat(tape.MatMul(flat, one.w), one.x.shape[2]),
        _W: tape.Gemm(flat, flat_x, transA=1),
        _R: tape.Gemm(flat, flat_h, transA=1),
        _B: tape.Concat(d_bias, d_bias, axis=0),
        _H0: d_h0,
    }
