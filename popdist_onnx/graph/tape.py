"""Writes nodes into a graph: constants, names, types and shapes are taken care of."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from popdist_onnx.graph.compat import subgraphs
from popdist_onnx.graph.inference import annotate
from popdist_onnx.graph.tensor import Array, Operand, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_SCALARS = (bool, int, float, np.number)


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
        self._names = _names(graph)
        self._counts: dict[str, int] = {}
        # Names that `fresh` made: no one outside relies on them yet.
        self._unnamed: set[str] = set()

    def __getattr__(self, op_type: str) -> Callable[..., Tensor]:
        if not op_type[:1].isupper():
            raise AttributeError(op_type)

        def write(*inputs: Operand, **attributes: Any) -> Tensor:
            return self.many(op_type, 1, *inputs, **attributes)[0]

        return write

    def many(
        self, op_type: str, outputs: int | Sequence[str], *inputs: Operand, **attributes: Any
    ) -> tuple[Tensor, ...]:
        """Writes a node of ``ai.onnx`` with several outputs.

        Args:
            op_type: The operator.
            outputs: How many, or their names.
            *inputs: Values, numbers, arrays, or None for an input that is left out.
            **attributes: The node's attributes; those that are None are left out.

        Returns:
            Its outputs.
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
        """Writes a node of any domain.

        Args:
            domain: The operator's domain.
            op_type: The operator.
            outputs: How many, or their names.
            *inputs: As for `many`.
            **attributes: As for `many`.

        Returns:
            Its outputs.
        """
        values = [None if given is None else self.tensor(given, inputs).value for given in inputs]
        while values and values[-1] is None:
            values.pop()
        given = {name: value for name, value in attributes.items() if value is not None}
        names = (
            [self.fresh(op_type) for _ in range(outputs)] if isinstance(outputs, int) else outputs
        )
        node = ir.Node(
            domain,
            op_type,
            values,
            ir.convenience.convert_attributes(given),
            outputs=[ir.Value(name=self._claimed(name)) for name in names],
            name=names[0],
            metadata_props=dict(self.metadata),
        )
        annotate(node, self.opset)
        self.insert(node)
        return tuple(Tensor(self, output) for output in node.outputs)

    def insert(self, node: ir.Node) -> None:
        """Puts a finished node where this tape writes.

        Args:
            node: The node.
        """
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
        """Writes before another node for a while.

        Args:
            node: The node to insert before; None appends.
            scope: Beginning of names meanwhile.
            metadata: Metadata of nodes meanwhile.

        Yields:
            This tape.
        """
        saved = self._before, self.scope, self.metadata
        self._before, self.scope = node, self.scope if scope is None else scope
        self.metadata = self.metadata if metadata is None else dict(metadata)
        try:
            yield self
        finally:
            self._before, self.scope, self.metadata = saved

    def wrap(self, value: ir.Value) -> Tensor:
        """A value of the graph to calculate with.

        Args:
            value: The value.

        Returns:
            The same as a tensor.
        """
        return Tensor(self, value)

    def tensor(self, given: Operand, beside: Sequence[Operand] = ()) -> Tensor:
        """Makes a tensor of whatever may stand as input.

        Args:
            given: A value, a number, an array or a list of whole numbers.
            beside: The node's other inputs; a bare number takes the type of the first tensor.

        Returns:
            The tensor.
        """
        if isinstance(given, Tensor):
            return given
        if isinstance(given, ir.Value):
            return Tensor(self, given)
        if isinstance(given, _SCALARS) and not isinstance(given, np.generic):
            typed = next((one for one in beside if isinstance(one, Tensor | ir.Value)), None)
            dtype = None if typed is None else typed.dtype
            return self.scalar(given, dtype)
        if isinstance(given, np.ndarray | np.generic):
            return self.constant(np.asarray(given))
        return self.constant(np.asarray(given, np.int64))

    def scalar(self, number: float, dtype: ir.DataType | None = None) -> Tensor:
        """A constant without dimensions.

        Args:
            number: Its value.
            dtype: Its type; None takes int64 for whole numbers and float32 for others.

        Returns:
            The constant.
        """
        if dtype is None:
            return self.constant(np.asarray(number, np.int64 if isinstance(number, int) else "f4"))
        return self.constant(np.asarray(number).astype(dtype.numpy()))

    def ints(self, *numbers: int) -> Tensor:
        """An int64 constant of one dimension.

        Args:
            *numbers: Its elements.

        Returns:
            The constant.
        """
        return self.constant(np.asarray(numbers, np.int64))

    def constant(self, array: Array, name: str | None = None) -> Tensor:
        """A constant; equal ones are written once.

        Constants are nodes, not initializers: initializers are what training changes.

        Args:
            array: Its content.
            name: Its name; None makes one.

        Returns:
            The constant.
        """
        key = (array.dtype, array.shape, array.tobytes(), name)
        if key not in self._constants:
            tensor = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape))
            chosen = self.fresh("Constant") if name is None else self._claimed(name)
            value = ir.Value(
                name=chosen, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype)
            )
            node = ir.Node(
                "",
                "Constant",
                [],
                [ir.AttrTensor("value", tensor)],
                outputs=[value],
                name=chosen,
                metadata_props=dict(self.metadata),
            )
            first = next(iter(self.graph), None)
            if first is None:
                self.graph.append(node)
            else:
                self.graph.insert_before(first, node)
            self._constants[key] = Tensor(self, value)
        return self._constants[key]

    def input(self, name: str, dtype: ir.DataType, shape: Sequence[int | str | None]) -> Tensor:
        """Adds an input to the graph.

        Args:
            name: Its name.
            dtype: Its element type.
            shape: Its shape.

        Returns:
            The input.
        """
        value = ir.Value(name=self._claimed(name), shape=ir.Shape(shape), type=ir.TensorType(dtype))
        self.graph.inputs.append(value)
        return Tensor(self, value)

    def state(self, name: str, array: Array) -> Tensor:
        """Adds an initializer: a weight, or another tensor that lasts from update to update.

        Args:
            name: Its name.
            array: Its first content.

        Returns:
            The initializer.
        """
        value = ir.Value(
            name=self._claimed(name),
            shape=ir.Shape(array.shape),
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            const_value=ir.Tensor(array, name=name),
        )
        self.graph.register_initializer(value)
        return Tensor(self, value)

    def rename(self, tensor: Tensor, name: str) -> Tensor:
        """Gives a tensor a name, through a node where it has one that counts already.

        Args:
            tensor: A tensor; one that this tape wrote and that was not named is simply renamed.
            name: The name.

        Returns:
            The tensor of that name.
        """
        value = tensor.value
        if value.producer() is None or value.name not in self._unnamed:
            return self.many("Identity", [name], tensor)[0]
        self._unnamed.discard(str(value.name))
        self._names.discard(str(value.name))
        value.name = self._claimed(name)
        return tensor

    def release(self, value: ir.Value) -> str:
        """Takes a value's name away, so that its successor can have it.

        Args:
            value: A node's output that is about to be replaced.

        Returns:
            The name.
        """
        name, value.name = str(value.name), None
        self._names.discard(name)
        return name

    def substitute(self, node: ir.Node, outputs: Sequence[Tensor | None]) -> None:
        """Puts tensors in the place of a node's outputs, under the same names, and removes it.

        Args:
            node: The node.
            outputs: What replaces each output; None where nothing reads it.
        """
        for old, new in zip(node.outputs, outputs, strict=False):
            if new is not None:
                kept = self.rename(new, self.release(old)) if old.name else new
                replace_uses(self.graph, old, kept.value)
        self.graph.remove(node, safe=True)

    def zeros(self, like: Tensor, dtype: ir.DataType | None = None) -> Tensor:
        """Zeros of a tensor's shape.

        Args:
            like: The tensor.
            dtype: Their type; None takes the tensor's.

        Returns:
            The zeros; a small node, the runtime makes the content.
        """
        return self.fill(like, 0, dtype)

    def fill(self, like: Tensor, number: float, dtype: ir.DataType | None = None) -> Tensor:
        """One number in a tensor's shape.

        Args:
            like: The tensor.
            number: The number.
            dtype: Its type; None takes the tensor's.

        Returns:
            The filled tensor.
        """
        shape = self.ints(*like.shape) if like.static else self.Shape(like)
        content = ir.Tensor(np.asarray([number]).astype((dtype or like.dtype).numpy()))
        return self.ConstantOfShape(shape, value=content)

    def lengths(self, tensor: Tensor) -> Tensor:
        """A tensor's shape as a tensor: a constant where it is known.

        Args:
            tensor: The tensor.

        Returns:
            Its shape, int64.
        """
        return self.ints(*tensor.shape) if tensor.static else self.Shape(tensor)

    def count(self, tensor: Tensor, axes: Sequence[int] | None = None) -> Operand:
        """The number of elements along some axes.

        Args:
            tensor: The tensor.
            axes: The axes, not negative; None takes all.

        Returns:
            A number where the lengths are known, else a scalar of the tensor's type.
        """
        known = tensor.dims
        chosen = range(tensor.rank) if axes is None else axes
        if known is not None and all(isinstance(known[axis], int) for axis in chosen):
            return float(math.prod(int(known[axis] or 0) for axis in chosen))
        lengths = self.Gather(self.Shape(tensor), list(chosen))
        return self.Cast(self.ReduceProd(lengths, keepdims=0), to=tensor.dtype.value)

    def fresh(self, stem: str) -> str:
        """A name that the graph does not have yet.

        Args:
            stem: What the value is.

        Returns:
            ``<scope><stem>_<n>``.
        """
        stem = f"{self.scope}{stem}"
        while True:
            count = self._counts[stem] = self._counts.get(stem, -1) + 1
            if (name := f"{stem}_{count}") not in self._names:
                self._unnamed.add(name)
                return name

    def _claimed(self, name: str) -> str:
        if name in self._names:
            raise ValueError(f"the graph has a value {name!r} already")
        self._names.add(name)
        return name


def _names(graph: ir.Graph) -> set[str]:
    names = {str(value.name) for value in graph.inputs} | set(graph.initializers)
    for node in graph.all_nodes():
        names.update(str(value.name) for value in node.outputs)
    return names


def replace_uses(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Makes everything that reads one value read another, the graph's outputs included.

    Args:
        graph: The main graph.
        old: The value to replace.
        new: What replaces it.
    """
    for user, index in list(old.uses()):
        if isinstance(user, ir.Node):
            user.replace_input_with(index, new)
    for index, output in enumerate(graph.outputs):
        if output is old:
            graph.outputs[index] = new
    for user in graph:
        for inner in subgraphs(user):
            replace_uses(inner, old, new)
