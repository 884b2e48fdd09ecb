"""Arithmetic with the numbers of an update: constants are folded, equal nodes are written once."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir

    from popdist_onnx.graph.tensor import Tape, Tensor

_FOLD: dict[str, Callable[[float, float], float]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": operator.truediv,
    "Pow": operator.pow,
    "Max": max,
}
_NEUTRAL_RIGHT = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1, "Pow": 1}
_NEUTRAL_LEFT = {"Add": 0, "Mul": 1}


class Coefficients:
    """The numbers of one graph's updates, of one element type.

    Args:
        tape: Where nodes go.
        dtype: The element type.
    """

    def __init__(self, tape: Tape, dtype: ir.DataType) -> None:
        self.tape = tape
        self.dtype = dtype
        self._written: dict[tuple[object, ...], Coefficient] = {}

    def known(self, number: float, name: str | None = None) -> Coefficient:
        """A number of the graph's making.

        Args:
            number: Its value.
            name: Its name in the graph, where it gets there as it is.

        Returns:
            The number to calculate with.
        """
        return Coefficient(self, number, None, name)

    def read(self, tensor: Tensor) -> Coefficient:
        """A number that a tensor holds.

        Args:
            tensor: A tensor without dimensions, of any floating-point type.

        Returns:
            The number to calculate with, in this table's type.
        """
        if tensor.dtype == self.dtype:
            return Coefficient(self, None, tensor)
        return self.once(("Cast", tensor.value), lambda: self.tape.Cast(tensor, to=int(self.dtype)))

    def convert(self, other: Coefficient) -> Coefficient:
        """A number of another table."""
        if other.tensor is None:
            return Coefficient(self, other.number, None)
        return self.read(other.tensor)

    def combine(self, op_type: str, left: Coefficient, right: Coefficient) -> Coefficient:
        """Writes an operation of two numbers, unless it is known, or written already.

        Args:
            op_type: The operator of ``ai.onnx``.
            left: First operand.
            right: Second operand.

        Returns:
            The result.
        """
        if op_type == "Mul" and (left.zero or right.zero):
            return self.known(0)
        if right.number is not None and right.number == _NEUTRAL_RIGHT.get(op_type):
            return left
        if left.number is not None and left.number == _NEUTRAL_LEFT.get(op_type):
            return right
        if left.number is not None and right.number is not None:
            return self.known(_FOLD[op_type](left.number, right.number))
        return self.once(
            (op_type, left.key, right.key),
            lambda: self.tape.many(op_type, 1, left.operand(), right.operand())[0],
        )

    def once(self, key: tuple[object, ...], write: Callable[[], Tensor]) -> Coefficient:
        """Writes a node unless an equal one was written."""
        if key not in self._written:
            self._written[key] = Coefficient(self, None, write())
        return self._written[key]


class Coefficient:
    """A number that is known, or that a tensor without dimensions holds.

    Args:
        table: What writes the nodes.
        number: Its value where it is known.
        tensor: The tensor that holds it where it is not.
        name: Name of the constant, where it is known and has one.
    """

    __slots__ = ("name", "number", "table", "tensor")

    def __init__(
        self,
        table: Coefficients,
        number: float | None,
        tensor: Tensor | None,
        name: str | None = None,
    ) -> None:
        self.table = table
        self.number = number
        self.tensor = tensor
        self.name = name

    @property
    def key(self) -> object:
        """What makes it equal to another one."""
        return self.number if self.tensor is None else self.tensor.value

    @property
    def zero(self) -> bool:
        """Whether it is known to be 0."""
        return self.number == 0

    def operand(self) -> Tensor:
        """The tensor that holds it."""
        if self.tensor is not None:
            return self.tensor
        content = np.asarray(self.number).astype(self.table.dtype.numpy())
        return self.table.tape.constant(content, self.name)

    def of(self, tensor: Tensor) -> Tensor:
        """Multiplies a tensor.

        Args:
            tensor: The tensor, of the table's type.

        Returns:
            The product; the tensor itself where this is known to be 1.
        """
        return tensor if self.number == 1 else tensor * self.operand()

    def sqrt(self) -> Coefficient:
        """The root."""
        if self.number is not None:
            return self.table.known(math.sqrt(self.number))
        return self.table.once(("Sqrt", self.key), lambda: self.table.tape.Sqrt(self.operand()))

    def __add__(self, other: Coefficient | float) -> Coefficient:
        return self.table.combine("Add", self, self._coefficient(other))

    def __sub__(self, other: Coefficient | float) -> Coefficient:
        return self.table.combine("Sub", self, self._coefficient(other))

    def __rsub__(self, other: float) -> Coefficient:
        return self.table.combine("Sub", self._coefficient(other), self)

    def __mul__(self, other: Coefficient | float) -> Coefficient:
        return self.table.combine("Mul", self, self._coefficient(other))

    def __truediv__(self, other: Coefficient | float) -> Coefficient:
        return self.table.combine("Div", self, self._coefficient(other))

    def __rtruediv__(self, other: float) -> Coefficient:
        return self.table.combine("Div", self._coefficient(other), self)

    def __pow__(self, other: Coefficient) -> Coefficient:
        return self.table.combine("Pow", self, other)

    def larger(self, other: float) -> Coefficient:
        """The larger of this and a number."""
        return self.table.combine("Max", self, self._coefficient(other))

    def _coefficient(self, other: Coefficient | float) -> Coefficient:
        return other if isinstance(other, Coefficient) else self.table.known(other)
