"""Matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.gradients.registry import At, gradient
from popdist_onnx.graph import shape_ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_onnx.graph.tensor import Tensor


@gradient("Gemm")
def _gemm(at: At) -> list[Tensor | None]:
    """Y = alpha A' B' + beta C."""
    a, b, g, tape = at.input(0), at.input(1), at.g, at.tape
    alpha, beta = at.get("alpha", 1.0), at.get("beta", 1.0)
    trans_a, trans_b = at.get("transA", 0), at.get("transB", 0)
    edges: list[Tensor | None] = [None, None, None]
    if at.wants(0):
        edges[0] = (
            tape.Gemm(b, g, alpha=alpha, transA=trans_b, transB=1)
            if trans_a
            else tape.Gemm(g, b, alpha=alpha, transB=1 - trans_b)
        )
    if at.wants(1):
        edges[1] = (
            tape.Gemm(g, a, alpha=alpha, transA=1, transB=trans_a)
            if trans_b
            else tape.Gemm(a, g, alpha=alpha, transA=1 - trans_a)
        )
    if at.wants(2):
        total = shape_ops.unbroadcast(g, at.input(2))
        edges[2] = total if beta == 1.0 else total * beta
    return edges


@gradient("MatMul")
def _matmul(at: At) -> list[Tensor | None]:
    """Y = A B, with numpy's rules for vectors and leading axes."""
    a, b = at.input(0), at.input(1)
    if a.rank == b.rank == 2:  # noqa: PLR2004 - matrices
        return _matrices(at, a, b)
    if b.static and b.rank == 2 and a.rank > 2:  # noqa: PLR2004 - a stack times one matrix
        return _rows(at, a, b)
    return _stacks(at, a, b)


def _matrices(at: At, a: Tensor, b: Tensor) -> list[Tensor | None]:
    return [
        at.tape.Gemm(at.g, b, transB=1) if at.wants(0) else None,
        at.tape.Gemm(a, at.g, transA=1) if at.wants(1) else None,
    ]


def _rows(at: At, a: Tensor, b: Tensor) -> list[Tensor | None]:
    """All leading axes of A are rows of one large matrix."""
    tape = at.tape
    rows, columns = b.shape
    g = tape.Reshape(at.g, [-1, columns])
    return [
        shape_ops.shaped(tape.Gemm(g, b, transB=1), a) if at.wants(0) else None,
        tape.Gemm(tape.Reshape(a, [-1, rows]), g, transA=1) if at.wants(1) else None,
    ]


def _stacks(at: At, a: Tensor, b: Tensor) -> list[Tensor | None]:
    """Vectors become matrices; stacks that were broadcast are summed."""
    tape, g = at.tape, at.g
    left, right = a, b
    if a.rank == 1:
        left, g = tape.Unsqueeze(a, [0]), tape.Unsqueeze(g, [-1 if b.rank == 1 else -2])
    if b.rank == 1:
        right, g = tape.Unsqueeze(b, [1]), tape.Unsqueeze(g, [-1])
    edges: list[Tensor | None] = [None, None]
    if at.wants(0):
        edge = shape_ops.unbroadcast(g @ transposed(right), left)
        edges[0] = tape.Squeeze(edge, [0]) if a.rank == 1 else edge
    if at.wants(1):
        edge = shape_ops.unbroadcast(transposed(left) @ g, right)
        edges[1] = tape.Squeeze(edge, [1]) if b.rank == 1 else edge
    return edges


def transposed(matrix: Tensor) -> Tensor:
    """A stack of matrices with the last two axes exchanged.

    Args:
        matrix: The stack.

    Returns:
        The transposed stack; ONNX Runtime fuses it into the product that reads it.
    """
    rank = matrix.rank
    return matrix.tape.Transpose(matrix, perm=[*range(rank - 2), rank - 1, rank - 2])


@gradient("Einsum")
def _einsum(at: At) -> list[Tensor | None]:
    """The gradient of an operand is the same contraction with output and operand exchanged."""
    operands = [at.input(index) for index in range(len(at.node.inputs))]
    terms, result = _parsed(at, [one.rank for one in operands])
    return [
        _einsum_edge(at, operands, terms, result, index) if at.wants(index) else None
        for index in range(len(operands))
    ]


def _parsed(at: At, ranks: Sequence[int]) -> tuple[list[str], str]:
    equation = str(at.get("equation", "")).replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    # An ellipsis stands for leading axes; capital letters from Z down name them.
    named = {
        term: rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)
    }
    most = max((count for term, count in named.items() if "..." in term), default=0)
    free = [letter for letter in "ZYXWVUTSRQ" if letter not in equation][:most][::-1]

    def spelt(term: str, count: int) -> str:
        return term.replace("...", "".join(free[len(free) - count :]) if count else "")

    if not arrow:
        letters = sorted({one for term in terms for one in term if one.isalpha()})
        result = ("..." if "..." in left else "") + "".join(
            one for one in letters if left.count(one) == 1
        )
    return [spelt(term, named[term]) for term in terms], spelt(result, most)


def _einsum_edge(
    at: At, operands: Sequence[Tensor], terms: Sequence[str], result: str, index: int
) -> Tensor:
    tape, term = at.tape, terms[index]
    once = "".join(dict.fromkeys(term))
    others = [one for place, one in enumerate(operands) if place != index]
    lettered = [one for place, one in enumerate(terms) if place != index]
    reach = set(result).union(*lettered)
    kept = "".join(letter for letter in once if letter in reach)
    equation = f"{','.join([result, *lettered])}->{kept}"
    edge = tape.Einsum(at.g, *others, equation=equation)
    missing = [axis for axis, letter in enumerate(once) if letter not in reach]
    if missing:
        edge = tape.Unsqueeze(edge, missing)
    if once != term:
        edge = _on_diagonals(edge, operands[index], term)
    elif missing:
        edge = tape.Expand(edge, shape_ops.lengths(operands[index]))
    return shape_ops.unbroadcast(edge, operands[index])


def _on_diagonals(edge: Tensor, operand: Tensor, term: str) -> Tensor:
    """A gradient by the letters of a term, where all axes of a letter are equal; zero elsewhere."""
    tape, shape = edge.tape, operand.shape
    later = [axis for axis, letter in enumerate(term) if letter in term[:axis]]
    places = np.indices(
        [n if term.count(one) > 1 else 1 for one, n in zip(term, shape, strict=True)]
    )
    equal = np.ones(places.shape[1:], bool)
    for axis in later:
        equal &= places[axis] == places[term.index(term[axis])]
    spread = tape.Expand(tape.Unsqueeze(edge, later), shape)
    return tape.Where(equal, spread, tape.scalar(0, edge.dtype))


_WIDEST = 16
"""A matrix of n rows has n^4 numbers in its minors."""


@gradient("Det")
def _det(at: At) -> Tensor:
    """The cofactors, ``det(X) X^-T`` where there is an inverse; they exist without one as well."""
    tape, x = at.tape, at.x
    rows = x.shape[-1]
    if rows > _WIDEST:
        raise at.refused(
            f"the cofactors of a matrix with {rows} rows would take {rows**4} numbers",
            f"determinants of up to {_WIDEST} rows have a gradient; freeze the weights before it",
        )
    g = tape.Unsqueeze(at.g, [-1, -2])
    if rows == 1:
        return g
    rest = np.array([[one for one in range(rows) if one != left] for left in range(rows)])
    lower = tape.Gather(tape.Gather(x, rest, axis=-2), rest, axis=-1)
    first = x.rank - 2
    # Axes are now: left-out row, rows, left-out column, columns.
    order = [*range(first), first, first + 2, first + 1, first + 3]
    minors = tape.Det(tape.Transpose(lower, perm=order))
    signs = (-1.0) ** np.add.outer(np.arange(rows), np.arange(rows))
    return g * (minors * tape.constant(signs.astype(x.dtype.numpy())))


_OPSET_OF_AXIS_INPUT = 20


@gradient("DFT", inputs=(0,))
def _dft(at: At) -> Tensor:
    """The transform back, without its factor: the matrix of a transform is symmetric."""
    tape, x, g = at.tape, at.x, at.g
    as_input = tape.opset >= _OPSET_OF_AXIS_INPUT
    axis = int(at.get("axis", 1))
    if as_input:
        axis = int(at.known(2)) if at.optional(2) else -2
    axis %= x.rank
    inverse, length = at.get("inverse", 0), x.shape[axis]
    points = int(at.known(1)) if at.optional(1) else length
    if at.get("onesided", 0):
        if inverse:
            raise at.refused("it is both inverse and one-sided")
        # The other half is the conjugate of this one, and of no use to the loss.
        g = _lengthened(g, axis, points)
    place = {} if as_input else {"axis": axis}
    extra = [None, tape.scalar(axis)] if as_input else []
    back = tape.DFT(g, *extra, inverse=1 - inverse, **place)
    back = back / points if inverse else back * points
    # The transform takes zeros behind a shorter input, and leaves the end of a longer one out.
    if points > length:
        back = tape.Slice(back, [0], [length], [axis])
    back = _lengthened(back, axis, length)
    return tape.Slice(back, [0], [1], [-1]) if x.shape[-1] == 1 else back


def _lengthened(tensor: Tensor, axis: int, length: int) -> Tensor:
    """A tensor with zeros behind it along an axis."""
    missing = length - tensor.shape[axis]
    if not missing:
        return tensor
    after = [missing if one == axis else 0 for one in range(tensor.rank)]
    return tensor.tape.Pad(tensor, [*[0] * tensor.rank, *after])
