"""GRU: gates update, reset, hidden (z, r, h). RNN: one gate.

z = f(a_z), r = f(a_r), h = g(W_h x + R_h (r H') + b) or, with linear_before_reset,
h = g(W_h x + r (R_h H' + b_R) + b_W); H = (1 - z) h + z H', where ' marks the step before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.gradients.recurrent import Direction, differentiate, scan
from popdist_onnx.gradients.registry import At, gradient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_onnx.graph.tensor import Tape, Tensor

_X, _W, _R, _B, _H0 = 0, 1, 2, 3, 5


@gradient("GRU", inputs=(_X, _W, _R, _B, _H0))
def _gru(at: At) -> list[Tensor | None]:
    return differentiate(at, _gru_direction, 6)


@gradient("RNN", inputs=(_X, _W, _R, _B, _H0))
def _rnn(at: At) -> list[Tensor | None]:
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
    tape, size = one.tape, one.hidden
    gate, hidden = one.activations
    previous = one.before(one.state(_H0), one.y)
    flat_x, flat_h = one.flat(one.x), one.flat(previous)
    bias = one.own(_B)
    w_bias, r_bias = (None, None) if bias is None else tape.many("Split", 2, bias, num_outputs=2)
    from_x = one.unflat(tape.Gemm(flat_x, one.w, w_bias, transB=1), 3 * size)
    x_z, x_r, x_h = tape.many("Split", 3, from_x, axis=2, num_outputs=3)
    r_zr, r_h = tape.many("Split", 2, one.r, [2 * size, size])
    b_zr, b_h = (None, None) if r_bias is None else tape.many("Split", 2, r_bias, [2 * size, size])
    from_h = one.unflat(tape.Gemm(flat_h, r_zr, b_zr, transB=1), 2 * size)
    h_z, h_r = tape.many("Split", 2, from_h, axis=2, num_outputs=2)
    a_z, a_r = x_z + h_z, x_r + h_r
    z, r = gate.value(a_z), gate.value(a_r)
    late = bool(one.at.get("linear_before_reset", 0))
    # What the hidden gate multiplies by R_h: the state itself, or the state after the reset.
    entering = previous if late else r * previous
    q = one.unflat(tape.Gemm(one.flat(entering), r_h, b_h, transB=1), size)
    a_h = x_h + (r * q if late else q)
    h = hidden.value(a_h)
    k_h = (1 - z) * hidden.slope(a_h, h)
    k_z = (previous - h) * gate.slope(a_z, z)
    k_r = (q if late else previous) * gate.slope(a_r, r)
    mask = one.mask()

    def step(
        inner: Tape, states: Sequence[Tensor], elements: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        (d_h,) = states
        g, k_h, k_z, k_r, z, r, *counted = elements
        total = g + d_h
        d_hidden, d_z = total * k_h, total * k_z
        # d_q is the gradient of the product with R_h.
        d_q = d_hidden * r if late else d_hidden
        back = inner.MatMul(d_q, r_h)
        d_r = (d_hidden if late else back) * k_r
        following = total * z + (back if late else back * r)
        following = following + inner.MatMul(inner.Concat(d_z, d_r, axis=1), r_zr)
        return _masked(inner, counted, following, d_h, [d_z, d_r, d_hidden, d_q])

    sequences = [one.g, k_h, k_z, k_r, z, r, *([] if mask is None else [mask])]
    first = [one.last_gradient(1)]
    (d_h0,), (d_z, d_r, d_hidden, d_q) = scan(tape, step, first, sequences, backwards=True)
    of_x = one.flat(tape.Concat(d_z, d_r, d_hidden, axis=2))
    of_zr = one.flat(tape.Concat(d_z, d_r, axis=2))
    of_q = one.flat(d_q)
    d_r_zr = tape.Gemm(of_zr, flat_h, transA=1)
    d_r_h = tape.Gemm(of_q, one.flat(entering), transA=1)
    bias_x = tape.ReduceSum(of_x, [0], keepdims=0)
    bias_h = tape.ReduceSum(tape.Concat(of_zr, of_q, axis=1), [0], keepdims=0)
    one.edges = {
        _X: one.unflat(tape.MatMul(of_x, one.w), one.x.shape[2]),
        _W: tape.Gemm(of_x, flat_x, transA=1),
        _R: tape.Concat(d_r_zr, d_r_h, axis=0),
        _B: tape.Concat(bias_x, bias_h, axis=0),
        _H0: d_h0,
    }


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
