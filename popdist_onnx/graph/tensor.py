"""Writes the nodes of a graph through operators on tensors.

A `Tensor` is a value of the graph with arithmetic; a `Tape` writes the node of every operation and
sets constants, names, types and shapes.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx_ir as ir

from popdist_onnx.errors import UnknownShapeError
from popdist_onnx.graph.compat import replace_uses
from popdist_onnx.graph.inference import annotate
from popdist_onnx.graph.values import (
    Array,
    Dim,
    add_initializer,
    add_input,
    constant,
    constant_node,
    dims,
    operand,
    operator_node,
    put_first,
    static,
    why_unknown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Number: TypeAlias = "int | float | np.number[Any]"

Operand: TypeAlias = "Tensor | ir.Value | Number | Array | Sequence[int] | None"
"""What may stand as input of a node: numbers take the type of the node's first tensor, lists of
whole numbers become int64 tensors, None leaves the input out."""


class Tensor:
    """A value with the tape that writes what is done with it.

    Args:
        tape: Where nodes go.
        value: The value.
    """

    __slots__ = ("tape", "value")

    def __init__(self, tape: Tape, value: ir.Value) -> None:
        self.tape = tape
        self.value = value

    @property
    def name(self) -> str:
        """The value's name."""
        return str(self.value.name)

    @property
    def dims(self) -> tuple[Dim, ...] | None:
        """The known part of the shape; None where the rank is not known."""
        return dims(self.value)

    @property
    def lengths(self) -> tuple[Dim, ...]:
        """The known part of the shape of a tensor whose rank has to be known.

        Raises:
            UnknownShapeError: The rank is not known.
        """
        if (known := self.dims) is None:
            raise self._unknown("rank")
        return known

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape.

        Raises:
            UnknownShapeError: A length is not known; ask `static` first.
        """
        if not self.static:
            raise self._unknown("shape", None if self.dims is None else list(self.dims))
        return tuple(int(dim) for dim in self.dims or () if dim is not None)

    @property
    def static(self) -> bool:
        """Whether every length is known."""
        return static(self.value)

    @property
    def rank(self) -> int:
        """The number of dimensions.

        Raises:
            UnknownShapeError: It is not known.
        """
        return len(self.lengths)

    @property
    def dtype(self) -> ir.DataType:
        """The element type.

        Raises:
            UnknownShapeError: It is not known.
        """
        if self.value.dtype is None:
            raise self._unknown("type")
        return self.value.dtype

    @property
    def constant(self) -> Array | None:
        """The content, where the graph fixes it."""
        return constant(self.value)

    def _unknown(self, what: str, seen: object = None) -> UnknownShapeError:
        return UnknownShapeError(
            "PD580",
            f"the {what} of tensor '{self.name}' is not known",
            value=seen,
            hint=why_unknown(self.value),
        )

    def __neg__(self) -> Tensor:
        return self.tape.Neg(self)

    def __add__(self, other: Operand) -> Tensor:
        return self.tape.Add(self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return self.tape.Add(other, self)

    def __sub__(self, other: Operand) -> Tensor:
        return self.tape.Sub(self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return self.tape.Sub(other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return self.tape.Mul(self, other)

    def __rmul__(self, other: Operand) -> Tensor:
        return self.tape.Mul(other, self)

    def __truediv__(self, other: Operand) -> Tensor:
        return self.tape.Div(self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return self.tape.Div(other, self)

    def __pow__(self, other: Operand) -> Tensor:
        return self.tape.Pow(self, other)

    def __matmul__(self, other: Operand) -> Tensor:
        return self.tape.MatMul(self, other)

    def __gt__(self, other: Operand) -> Tensor:
        return self.tape.Greater(self, other)

    def __lt__(self, other: Operand) -> Tensor:
        return self.tape.Less(self, other)

    def __ge__(self, other: Operand) -> Tensor:
        return self.tape.GreaterOrEqual(self, other)

    def __le__(self, other: Operand) -> Tensor:
        return self.tape.LessOrEqual(self, other)


class Tape:
    """Appends nodes to a graph, or inserts them before one of its nodes.

    ``tape.Mul(x, 2.0)`` writes a node of that operator of ``ai.onnx`` and returns its only output;
    `many` returns several, `custom` writes operators of other domains. Types and shapes of outputs
    are inferred at once.

    Args:
        graph: Where nodes go.
        scope: Beginning of the names of nodes and values.
        metadata: Metadata of every node, for example which pass wrote it.
        before: Insert before this node; None appends.
        opset: Version of ``ai.onnx``; None takes the graph's (a sub-graph has none of its own).
    """

    def __init__(
        self,
        graph: ir.Graph,
        *,
        scope: str = "",
        metadata: Mapping[str, str] | None = None,
        before: ir.Node | None = None,
        opset: int | None = None,
    ) -> None:
        self.graph = graph
        self.scope = scope
        self.metadata = dict(metadata or {})
        self.opset: int = graph.opset_imports.get("", 0) if opset is None else opset
        self._before = before
        self._constants: dict[tuple[Any, ...], Tensor] = {}
        self._names = ValueNames(graph)

    def __getattr__(self, op_type: str) -> Callable[..., Tensor]:
        if not op_type[:1].isupper():
            raise AttributeError(op_type)

        def write(*inputs: Operand, **attributes: Any) -> Tensor:
            return self.many(op_type, 1, *inputs, **attributes)[0]

        return write

    def many(
        self, op_type: str, outputs: int | Sequence[str], *inputs: Operand, **attributes: Any
    ) -> tuple[Tensor, ...]:
        """Writes a node of ``ai.onnx`` with several outputs, given by number or names.

        Inputs are values, numbers, arrays, or None for an input that is left out. Attributes that
        are None are left out.
        """
        return self.custom("", op_type, outputs, *inputs, **attributes)

    def custom(
        self,
        domain: str,
        op_type: str,
        outputs: int | Sequence[str],
        *inputs: Operand,
        **attributes: Any,
    ) -> tuple[Tensor, ...]:
        """Writes a node of any domain, with arguments as for `many`."""
        read = [None if given is None else self.tensor(given, inputs).value for given in inputs]
        while read and read[-1] is None:
            read.pop()
        if isinstance(outputs, int):
            outputs = [self.fresh(op_type) for _ in range(outputs)]
        names = [self._names.claim(name) for name in outputs]
        node = operator_node(domain, op_type, read, attributes, names, self.metadata)
        annotate(node, self.opset)
        self.insert(node)
        return tuple(Tensor(self, output) for output in node.outputs)

    def insert(self, node: ir.Node) -> None:
        """Inserts a finished node at the tape's position."""
        if self._before is None:
            self.graph.append(node)
        else:
            self.graph.insert_before(self._before, node)

    @contextmanager
    def at(
        self,
        node: ir.Node | None,
        scope: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Iterator[Tape]:
        """Writes before ``node`` within a with-block, or appends where ``node`` is None."""
        saved = self._before, self.scope, self.metadata
        self._before, self.scope = node, self.scope if scope is None else scope
        self.metadata = self.metadata if metadata is None else dict(metadata)
        try:
            yield self
        finally:
            self._before, self.scope, self.metadata = saved

    def wrap(self, value: ir.Value) -> Tensor:
        """A value of the graph as a tensor."""
        return Tensor(self, value)

    def optional(self, node: ir.Node, index: int) -> Tensor | None:
        """An input of a node as a tensor; None where it is left out."""
        value = operand(node, index)
        return None if value is None else Tensor(self, value)

    def tensor(self, given: Operand, beside: Sequence[Operand] = ()) -> Tensor:
        """A tensor of any operand; a plain number takes the first tensor's type in ``beside``."""
        if isinstance(given, Tensor):
            return given
        if isinstance(given, ir.Value):
            return Tensor(self, given)
        if isinstance(given, bool | int | float) and not isinstance(given, np.generic):
            typed = next((one for one in beside if isinstance(one, Tensor | ir.Value)), None)
            dtype = None if typed is None else typed.dtype
            return self.scalar(given, dtype)
        if isinstance(given, np.ndarray | np.generic):
            return self.constant(np.asarray(given))
        return self.constant(np.asarray(given, np.int64))

    def scalar(self, number: float, dtype: ir.DataType | None = None) -> Tensor:
        """A constant of shape ``[]``; by default int64 for integers and float32 for others."""
        if dtype is None:
            return self.constant(np.asarray(number, np.int64 if isinstance(number, int) else "f4"))
        return self.constant(np.asarray(number).astype(dtype.numpy()))

    def ints(self, *numbers: int) -> Tensor:
        """An int64 constant of one dimension."""
        return self.constant(np.asarray(numbers, np.int64))

    def constant(self, array: Array, name: str | None = None) -> Tensor:
        """A constant; equal ones are written once.

        Constants are nodes, not initializers: initializers are what training changes.
        """
        key = (array.dtype, array.shape, array.tobytes(), name)
        if key not in self._constants:
            chosen = self.fresh("Constant") if name is None else name
            node = constant_node(array, self._names.claim(chosen), self.metadata)
            put_first(self.graph, node)
            self._constants[key] = Tensor(self, node.outputs[0])
        return self._constants[key]

    def input(self, name: str, dtype: ir.DataType, shape: Sequence[int | str | None]) -> Tensor:
        """Adds an input to the graph."""
        return Tensor(self, add_input(self.graph, self._names.claim(name), dtype, shape))

    def state(self, name: str, array: Array) -> Tensor:
        """Adds an initializer: a weight, or another tensor that is kept from update to update."""
        return Tensor(self, add_initializer(self.graph, self._names.claim(name), array))

    def rename(self, tensor: Tensor, name: str) -> Tensor:
        """Names a tensor; one that a program may know by its name gets an Identity instead."""
        value = tensor.value
        if value.producer() is None or not self._names.is_made_up(value.name):
            return self.many("Identity", [name], tensor)[0]
        self._names.release(str(value.name))
        value.name = self._names.claim(name)
        return tensor

    def release(self, value: ir.Value) -> str:
        """Removes a value's name so that its replacement can have it, and returns the name."""
        name, value.name = str(value.name), None
        self._names.release(name)
        return name

    def substitute(self, node: ir.Node, outputs: Sequence[Tensor | None]) -> None:
        """Replaces a node's outputs by tensors of the same names, and removes the node."""
        for old, new in zip(node.outputs, outputs, strict=False):
            if new is not None:
                kept = self.rename(new, self.release(old)) if old.name else new
                _keep_lengths(old, kept.value)
                replace_uses(self.graph, old, kept.value)
        self.graph.remove(node, safe=True)

    def fresh(self, stem: str) -> str:
        """A name ``<scope><stem>_<n>`` that the graph does not have yet."""
        return self._names.fresh(f"{self.scope}{stem}")


def _keep_lengths(old: ir.Value, new: ir.Value) -> None:
    """Lengths that a file states or inference knew, where less is known of the replacement."""
    before, after = dims(old), dims(new)
    if before is None or (after is not None and len(after) != len(before)):
        return
    pairs = zip(before, after or before, strict=True)
    new.shape = ir.Shape([was if not isinstance(now, int) else now for was, now in pairs])


class ValueNames:
    """The names of a graph's values.

    Args:
        graph: The graph; names in its sub-graphs count as well.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._taken = {str(value.name) for value in graph.inputs} | set(graph.initializers)
        # Nodes that an earlier pass named after an output that has another name now.
        self._nodes: set[str] = set()
        for node in graph.all_nodes():
            self._taken.update(str(value.name) for value in node.outputs)
            self._nodes.add(str(node.name))
        self._counts: dict[str, int] = {}
        self._made_up: set[str] = set()

    def fresh(self, stem: str) -> str:
        """A name ``<stem>_<n>`` that the graph does not have yet; `claim` reserves it."""
        while True:
            count = self._counts[stem] = self._counts.get(stem, -1) + 1
            name = f"{stem}_{count}"
            if name not in self._taken and name not in self._nodes:
                self._made_up.add(name)
                return name

    def claim(self, name: str) -> str:
        """Reserves a name and returns it.

        Raises:
            ValueError: A value has it already.
        """
        if name in self._taken:
            raise ValueError(f"the graph has a value {name!r} already")
        self._taken.add(name)
        return name

    def release(self, name: str) -> None:
        """Frees a name for another value."""
        self._taken.discard(name)
        self._made_up.discard(name)

    def is_made_up(self, name: str | None) -> bool:
        """Whether a name was generated here, so that no program relies on it."""
        return name in self._made_up
