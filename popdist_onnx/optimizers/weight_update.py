"""What an update's formula sees of one weight: its gradient, its numbers and its states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import onnx_ir as ir

from popdist_onnx.graph import names
from popdist_onnx.optimizers.coefficients import Coefficient, Coefficients
from popdist_onnx.optimizers.optimizer import Optimizer
from popdist_onnx.optimizers.values import UpdateError
from popdist_onnx.types.tensor_info import DataType

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tape, Tensor
    from popdist_onnx.graph.values import Array
    from popdist_onnx.optimizers.hyperparameters import Scalar

O_co = TypeVar("O_co", bound=Optimizer, covariant=True)

_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def compute_type(stored: ir.DataType) -> ir.DataType:
    """The type that updates of a weight are calculated in.

    Args:
        stored: The weight's type.

    Returns:
        float32 for half-precision weights, else the weight's type.
    """
    return ir.DataType.FLOAT if stored in _HALF else stored


class Numbers:
    """The scalars of a graph's updates: constants, or inputs of the graph, under published names.

    Args:
        tape: Where nodes go.
        optimizer: Where their values come from.
        divisor: The number of micro-batches that a gradient is the mean of (1 with Sum).
    """

    def __init__(self, tape: Tape, optimizer: Optimizer, divisor: float) -> None:
        self.tape = tape
        self.optimizer = optimizer
        self.divisor = divisor
        self._tables: dict[ir.DataType, Coefficients] = {}
        self._leaders: dict[float, Tensor] = {}
        self._casts: dict[tuple[ir.Value, ir.DataType], Tensor] = {}

    def table(self, dtype: ir.DataType) -> Coefficients:
        """The arithmetic of one element type.

        Args:
            dtype: The element type.

        Returns:
            The same table for the same type.
        """
        return self._tables.setdefault(dtype, Coefficients(self.tape, dtype))

    def scalar(self, scalar: Scalar, weight: str | None, dtype: ir.DataType) -> Coefficient:
        """A scalar as a weight's update reads it.

        Args:
            scalar: Its declaration.
            weight: The weight; None for the default.
            dtype: The element type.

        Returns:
            A known number where it is constant, else the graph's input.
        """
        now = self.optimizer.scalar(scalar, weight, self.divisor)
        name = scalar.tensor_id(weight if now.own else None, dtype.name)
        if now.const:
            return self.table(dtype).known(now.number, name)
        return self.table(dtype).read(self.input(name, dtype))

    def input(self, name: str, dtype: ir.DataType) -> Tensor:
        """The graph's input of a name.

        Args:
            name: The name.
            dtype: Its element type, where it is to be added.

        Returns:
            The input, without dimensions.
        """
        for value in self.tape.graph.inputs:
            if value.name == name:
                return self.tape.wrap(value)
        return self.tape.input(name, dtype, [])

    def cast(self, tensor: Tensor, dtype: ir.DataType) -> Tensor:
        """A tensor in another element type.

        Args:
            tensor: The tensor.
            dtype: The type.

        Returns:
            The same tensor for the same arguments.
        """
        key = (tensor.value, dtype)
        if key not in self._casts:
            self._casts[key] = self.tape.Cast(tensor, to=int(dtype))
        return self._casts[key]

    def step(self, own: Tensor, start: float) -> Coefficient:
        """The count of updates that stands for all weights that started alike.

        Args:
            own: A weight's count after this update.
            start: Its count before the first one.

        Returns:
            The count of the first weight that started there, as float64.
        """
        return self.table(ir.DataType.DOUBLE).read(self._leaders.setdefault(start, own))


class WeightUpdate(Generic[O_co]):
    """One weight's update.

    Formulas are calculated in `compute_type`; weights and states of other types are cast on the way
    in and out.

    Args:
        numbers: The scalars of all updates.
        optimizer: The optimizer.
        weight: The weight.
        gradient: Its gradient, summed and exchanged.
        clip: What the gradient is multiplied by to clip it.
    """

    def __init__(
        self,
        numbers: Numbers,
        optimizer: O_co,
        weight: ir.Value,
        gradient: ir.Value,
        clip: Coefficient | None,
    ) -> None:
        self.tape = numbers.tape
        self.optimizer = optimizer
        self.name = str(weight.name)
        self._numbers = numbers
        self._stored = weight
        self._raw = gradient
        dtype = weight.dtype or ir.DataType.FLOAT
        self._dtype = compute_type(dtype)
        self.table = numbers.table(self._dtype)
        self.clip = self.table.known(1) if clip is None else self.table.convert(clip)

    @property
    def weight(self) -> Tensor:
        """The weight before the update."""
        return self._computed(self.tape.wrap(self._stored))

    @property
    def gradient(self) -> Tensor:
        """The gradient: summed, neither clipped nor without loss scaling."""
        return self._computed(self.tape.wrap(self._raw))

    def scalar(self, scalar: Scalar) -> Coefficient:
        """A scalar as this weight's update reads it."""
        return self._numbers.scalar(scalar, self.name, self._dtype)

    def current(self, scalar: Scalar) -> float:
        """A scalar's value now.

        Args:
            scalar: Its declaration.

        Returns:
            The number, for the first content of states.
        """
        return self.optimizer.scalar(scalar, self.name, self._numbers.divisor).number

    def first_weight(self) -> Array:
        """The weight's content before training, in the type of the calculation."""
        return np.asarray(self._content(self._stored)).astype(self._dtype.numpy())

    def state(self, prefix: str, kept_as: DataType, first: Array | float = 0.0) -> Tensor:
        """A state tensor of this weight.

        It continues where the model has one of that name.

        Args:
            prefix: Reserved beginning of its name.
            kept_as: Element type that it is kept in; UNDEFINED takes the weight's.
            first: Its content before the first update: a number for all elements, or an array.

        Returns:
            The state, in the type of the calculation.
        """
        dtype = self._state_type(kept_as)
        shape = tuple(int(d) for d in self._stored.shape or ())  # type: ignore[arg-type]
        name = prefix + self.name
        if (found := self.tape.graph.initializers.get(name)) is None:
            content = np.broadcast_to(np.asarray(first), shape).astype(dtype.numpy())
            return self._computed(self.tape.state(name, content))
        self._check_found(found, dtype, shape)
        return self._computed(self.tape.wrap(found))

    def keep(self, prefix: str, content: Tensor) -> None:
        """Makes a tensor the next content of a state.

        Args:
            prefix: Reserved beginning of the state's name.
            content: The content, in the type of the calculation.
        """
        state = self.tape.graph.initializers[prefix + self.name]
        self._publish(state, content)

    def finish(self, weight: Tensor) -> None:
        """Makes a tensor the next content of the weight.

        Args:
            weight: The content, in the type of the calculation.
        """
        self._publish(self._stored, weight)

    def count(self) -> Coefficient:
        """The number of updates including this one, as float64.

        Every weight keeps its own; weights that started alike calculate with the first one's.
        """
        name = names.STEP + self.name
        found = self.tape.graph.initializers.get(name)
        if found is None:
            step = self.tape.state(name, np.zeros((), np.float32))
        else:
            self._check_found(found, ir.DataType.FLOAT, ())
            step = self.tape.wrap(found)
        start = float(self._content(step.value))
        after = step + 1.0
        self._publish(step.value, after)
        return self._numbers.step(after, start)

    def _publish(self, state: ir.Value, content: Tensor) -> None:
        dtype = state.dtype or ir.DataType.FLOAT
        if content.dtype != dtype:
            content = self.tape.Cast(content, to=int(dtype))
        updated = self.tape.rename(content, names.updated(str(state.name)))
        self.tape.graph.outputs.append(updated.value)

    def _computed(self, tensor: Tensor) -> Tensor:
        if tensor.dtype == self._dtype:
            return tensor
        return self._numbers.cast(tensor, self._dtype)

    def _state_type(self, kept_as: DataType) -> ir.DataType:
        own = self._stored.dtype or ir.DataType.FLOAT
        if kept_as is DataType.UNDEFINED:
            return own
        asked = ir.DataType(kept_as.onnx)
        # FLOAT is the default where it means "not in half precision"; it narrows no float64.
        return own if (own, asked) == (ir.DataType.DOUBLE, ir.DataType.FLOAT) else asked

    def _content(self, value: ir.Value) -> Array:
        if value.const_value is None:
            raise UpdateError("PD546", f"the initializer {value.name} has no content")
        return np.asarray(value.const_value.numpy())

    def _check_found(self, found: ir.Value, dtype: ir.DataType, shape: tuple[int, ...]) -> None:
        have = found.const_value
        if have is None or have.dtype != dtype or tuple(have.shape.numpy()) != shape:
            raise UpdateError(
                "PD546",
                f"the model's {found.name} does not fit the optimizer",
                value=None if have is None else f"{have.dtype.name} {list(have.shape.numpy())}",
                accepted=f"{dtype.name} {list(shape)}",
                hint="use the settings it was trained with, or remove the initializer",
            )
