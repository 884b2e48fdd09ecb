"""Random numbers that a graph computes itself from a key and the numbers of its turns.

A body of a loop runs an unknown number of times, so that the host cannot draw its numbers before.
There each number is a hash of a key, the turns of all loops around, and its place in the tensor
(SplitMix64, a counter-based generator). The gradient computes a body again, and gets the same
numbers again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_onnx.graph.tensor import Tape, Tensor

_STEP = 0x9E3779B97F4A7C15
"""The distance of the counters of two numbers."""

_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""By round: how far a number is shifted, and what it is multiplied with."""

_LAST_SHIFT = 31
_BITS = 24
"""Bits of a random number: as many as single precision holds."""


def stream(tape: Tape, key: Tensor, turns: Sequence[ir.Value]) -> Tensor:
    """The key of one turn of the loops around, from the outermost to the innermost."""
    for turn in turns:
        key = _hashed(tape, tape.Add(key, tape.Mul(turn, _word(tape, _STEP))))
    return key


def uniform(tape: Tape, key: Tensor, shape: Tensor) -> Tensor:
    """Numbers from 0 (included) to 1 (excluded) in single precision."""
    return tape.Mul(tape.Cast(_drawn(tape, key, shape, 0), to=ir.DataType.FLOAT), 2.0**-_BITS)


def normal(tape: Tape, key: Tensor, shape: Tensor) -> Tensor:
    """Numbers of the standard normal distribution in single precision (Box and Muller)."""
    first, second = (
        tape.Cast(_drawn(tape, key, shape, number), to=ir.DataType.FLOAT) for number in (1, 2)
    )
    radius = tape.Sqrt(tape.Mul(tape.Log(tape.Mul(tape.Add(first, 1.0), 2.0**-_BITS)), -2.0))
    return tape.Mul(radius, tape.Cos(tape.Mul(second, 2 * math.pi * 2.0**-_BITS)))


def _drawn(tape: Tape, key: Tensor, shape: Tensor, sequence: int) -> Tensor:
    """Whole numbers of 24 random bits; those of two sequences are independent."""
    if sequence:
        key = _hashed(tape, tape.Add(key, tape.constant(np.asarray(sequence, np.int64))))
    count = tape.ReduceProd(shape, keepdims=0)
    places = tape.Reshape(tape.Range(tape.scalar(0), count, tape.scalar(1)), shape)
    counters = tape.Add(tape.Mul(places, _word(tape, _STEP)), key)
    return _shifted(tape, tape.Cast(_hashed(tape, counters), to=ir.DataType.UINT64), 64 - _BITS)


def _hashed(tape: Tape, numbers: Tensor) -> Tensor:
    """SplitMix64's mixing function; ONNX multiplies signed numbers and shifts unsigned ones."""
    bits = tape.Cast(tape.Add(numbers, _word(tape, _STEP)), to=ir.DataType.UINT64)
    for shift, factor in _ROUNDS:
        mixed = tape.BitwiseXor(bits, _shifted(tape, bits, shift))
        product = tape.Mul(tape.Cast(mixed, to=ir.DataType.INT64), _word(tape, factor))
        bits = tape.Cast(product, to=ir.DataType.UINT64)
    return tape.Cast(tape.BitwiseXor(bits, _shifted(tape, bits, _LAST_SHIFT)), to=ir.DataType.INT64)


def _shifted(tape: Tape, bits: Tensor, by: int) -> Tensor:
    return tape.BitShift(bits, tape.constant(np.asarray(by, np.uint64)), direction="RIGHT")


def _word(tape: Tape, number: int) -> Tensor:
    return tape.constant(np.asarray(number, np.uint64).astype(np.int64))
