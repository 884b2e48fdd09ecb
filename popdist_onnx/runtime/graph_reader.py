"""Finds nodes, state, phases and exchange points in a training graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from popdist_onnx.errors import popart_exception, popart_internal_exception
from popdist_onnx.graph import names
from popdist_onnx.graph.compat import captured
from popdist_onnx.graph.values import constant, dims

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import onnx_ir as ir

    from popdist_onnx.graph.values import Dim

COPY_TO_HOST = "GradCopyToHost"
COPY_FROM_HOST = "GradCopyFromHost"
COLLECTIVE = "ReplicatedAllReduce"
_EXCHANGE = (COPY_TO_HOST, COPY_FROM_HOST, "Sync")


@dataclass(frozen=True)
class Spec:
    """Type and shape of a tensor.

    Attributes:
        name: Its name.
        dtype: Its element type.
        shape: Its shape; None where a length is not known before it is computed.
    """

    name: str
    dtype: ir.DataType
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Step:
    """One node to execute.

    Attributes:
        node: The node.
        reads: The tensors that the node reads, outer tensors of its sub-graphs included.
        writes: The node's outputs.
        update: Whether the node runs once per weight update, and not for every micro-batch.
        collective: Whether the node sums a tensor over the instances of the job.
    """

    node: ir.Node
    reads: frozenset[str]
    writes: tuple[str, ...]
    update: bool
    collective: bool = False


@dataclass(frozen=True)
class HostCopy:
    """A gradient that is summed on the host.

    Attributes:
        gradient: The tensor's published name, by which streams are called.
        source: The tensor that holds it on the device; the same unless an Identity lies between.
        reduced: The tensor that holds the sum.
        is_weight: Whether ``reduced`` is the weight's next value, and not the sum of gradients.
    """

    gradient: str
    source: str
    reduced: str
    is_weight: bool = False

    @property
    def weight(self) -> str:
        """Name of the weight, for plain and accumulated gradients alike."""
        return self.gradient.removeprefix(names.FINAL_GRADIENT).removeprefix(names.GRADIENT)

    @property
    def store(self) -> str:
        """Handle of the stream to the host."""
        return names.GRADIENT_STORE + self.gradient

    @property
    def load(self) -> str:
        """Handle of the stream from the host."""
        if self.is_weight:
            return names.WEIGHT_LOAD + self.weight
        return names.GRADIENT_LOAD + self.gradient


@dataclass(frozen=True)
class Reading:
    """A training graph as the runtime sees it.

    Attributes:
        model: The model.
        steps: What is executed, in an order in which it can be.
        specs: Type and shape of every tensor whose type is known.
        constants: Initializers and constant nodes' outputs, which never change.
        variables: Initializers that live in the runtime: state, and whatever the host may write.
        states: Those of them that a step computes again, with whether that is an update step.
        inputs: What the host feeds, in the order of the model.
        copies: The exchange points, in the order of the model.
    """

    model: ir.Model
    steps: tuple[Step, ...]
    specs: dict[str, Spec]
    constants: dict[str, ir.Value]
    variables: dict[str, ir.Value]
    states: dict[str, bool]
    inputs: tuple[str, ...]
    copies: tuple[HostCopy, ...]

    def spec(self, name: str) -> Spec:
        """Type and shape of a tensor.

        Raises:
            popart_internal_exception: The type of the tensor is not known.
        """
        if name not in self.specs:
            raise popart_internal_exception(
                "PD560", "the type of a tensor that has to be stored is not known", value=name
            )
        return self.specs[name]

    def constant(self, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        """The value of a name in `constants`."""
        value = self.constants[name]
        if value.const_value is not None:
            return np.asarray(value.const_value.numpy())
        found = constant(value)
        assert found is not None  # noqa: S101 - what is not an initializer is a Constant node's output
        return found


def read(model: ir.Model, variables: Collection[str] = ()) -> Reading:
    """Reads a training graph; ``variables`` are the initializers that the host may write.

    Raises:
        popart_exception: A node reads a tensor that only later nodes make.
    """
    graph = model.graph
    fixed = {str(n.outputs[0].name): n.outputs[0] for n in graph if n.op_type == "Constant"}
    nodes = [node for node in graph if node.op_type not in {*_EXCHANGE, "Constant"}]
    copies = _copies(graph, is_weight=names.UPDATE_ON_HOST in model.metadata_props)
    renamed = {copy.gradient for copy in copies if copy.gradient != copy.source}
    steps = tuple(
        Step(node, frozenset(_reads(node)), writes, _is_update(node), node.op_type == COLLECTIVE)
        for node in nodes
        if not renamed.intersection(writes := tuple(str(v.name) for v in node.outputs if v.name))
    )
    produced = {name: step for step in steps for name in step.writes}
    states = {
        name: produced[names.updated(name)].update
        for name in graph.initializers
        if names.updated(name) in produced
    }
    chosen = {*states, *variables}
    inputs = tuple(str(v.name) for v in graph.inputs if v.name not in graph.initializers)
    known = {*graph.initializers, *inputs, *fixed, *(copy.reduced for copy in copies)}
    _check_order(steps, known)
    return Reading(
        model=model,
        steps=steps,
        specs={spec.name: spec for spec in _specs(graph)},
        constants=fixed | {n: v for n, v in graph.initializers.items() if n not in chosen},
        variables={n: v for n, v in graph.initializers.items() if n in chosen},
        states=states,
        inputs=inputs,
        copies=copies,
    )


def _is_update(node: ir.Node) -> bool:
    return node.metadata_props.get(names.PHASE) == "update"


def _copies(graph: ir.Graph, *, is_weight: bool) -> tuple[HostCopy, ...]:
    back = {
        str(node.inputs[0].name): str(node.outputs[0].name)
        for node in graph
        if node.op_type == COPY_FROM_HOST and node.inputs[0] is not None
    }
    found = []
    for node in graph:
        if node.op_type != COPY_TO_HOST or (value := node.inputs[0]) is None:
            continue
        producer = value.producer()
        source = value
        # A finished accumulator gets its published name from an Identity, which need not run.
        if producer is not None and producer.op_type == "Identity" and _is_update(producer):
            assert producer.inputs[0] is not None  # noqa: S101 - Identity's only input
            others = [use for use in value.consumers() if use.op_type not in _EXCHANGE]
            source = value if others else producer.inputs[0]
        name = str(value.name)
        found.append(HostCopy(name, str(source.name), back[name], is_weight))
    return tuple(found)


def _reads(node: ir.Node) -> Iterator[str]:
    for value in (*node.inputs, *captured(node)):
        if value is not None and value.name:
            yield value.name


def _specs(graph: ir.Graph) -> Iterator[Spec]:
    values = [*graph.inputs, *graph.initializers.values()]
    values += [value for node in graph for value in node.outputs]
    for value in values:
        content = value.const_value
        dtype = value.dtype if content is None else content.dtype
        if dtype is None or not value.name:
            continue
        shape = dims(value) if content is None else tuple(content.shape.numpy())
        yield Spec(value.name, dtype, _whole(shape))


def _whole(shape: tuple[Dim, ...] | None) -> tuple[int, ...] | None:
    if shape is None:
        return None
    known = tuple(dim for dim in shape if isinstance(dim, int))
    return known if len(known) == len(shape) else None


def _check_order(steps: tuple[Step, ...], known: set[str]) -> None:
    for step in steps:
        for name in step.reads - known:
            raise popart_exception(
                "PD561",
                f"node {step.node.name!r} ({step.node.op_type}) reads a tensor that no earlier "
                "node makes",
                value=name,
            )
        known |= set(step.writes)
