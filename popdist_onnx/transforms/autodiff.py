"""Reverse-mode differentiation: from ONNX operators to ONNX operators."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.errors import popart_exception
from popdist_onnx.gradients.registry import At, Edges, described, rule_of
from popdist_onnx.graph import names, shape_ops
from popdist_onnx.graph.compat import FLOATING, captured
from popdist_onnx.graph.expand import expand
from popdist_onnx.graph.fold import fold
from popdist_onnx.graph.names import LOSS, RESERVED
from popdist_onnx.graph.passes import Pass
from popdist_onnx.graph.tensor import Tape, Tensor
from popdist_onnx.graph.values import dims, static
from popdist_onnx.transforms.loss import loss_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import onnx_ir as ir


# Values and nodes between some tensors and the loss, and whether all nodes have a rule.


_SHOWN = 20
_FEW = 3

_FREEZE = (
    "freeze the weights before such a node, detach its input, or register a rule with "
    "popdist_onnx.gradients.registry.gradient"
)


class Paths:
    """The values and nodes between some tensors and the loss.

    Args:
        graph: The graph.
        sources: Tensors whose gradients are wanted.
        losses: Tensors from which gradients start.
    """

    def __init__(self, graph: ir.Graph, sources: Collection[ir.Value], *losses: ir.Value) -> None:
        self.sources = list(dict.fromkeys(sources))
        from_source = set(self.sources)
        nodes = list(graph)
        # The gradients of whole numbers are whole numbers, if that is what the loss is.
        types = {*FLOATING, *(loss.dtype for loss in losses if loss.dtype is not None)}
        for node in nodes:
            if any(value in from_source for value in _flowing(node, types)):
                from_source.update(value for value in node.outputs if _may_flow(value, types))
        to_loss = set(losses)
        for node in reversed(nodes):
            if any(value in to_loss for value in node.outputs):
                to_loss.update(_flowing(node, types))
        self.values = from_source & to_loss
        self.nodes = [
            node
            for node in nodes
            if any(value in self.values for value in node.outputs)
            and any(value in self.values for value in _flowing(node, types))
        ]

    def without_rule(self) -> list[ir.Node]:
        """The nodes between sources and losses that have no rule, in graph order."""
        return [node for node in self.nodes if rule_of(node) is None]

    def require_rules(self) -> None:
        """Checks that every node between sources and losses has a rule.

        Raises:
            popart_exception: Nodes have no rule; all of them are named.
        """
        lost = self.without_rule()
        if not lost:
            return
        lines = [f"{described(node)}" for node in lost[:_SHOWN]]
        if len(lost) > _SHOWN:
            lines.append(f"and {len(lost) - _SHOWN} more")
        raise popart_exception(
            "PD522",
            "operators between a weight and the loss have no gradient rule:\n    "
            + "\n    ".join(lines),
            accepted="the operators of docs/onnx-operators.md",
            hint=_FREEZE,
        )


def _flowing(node: ir.Node, types: Collection[ir.DataType] = FLOATING) -> Iterator[ir.Value]:
    """The inputs that gradients can flow to."""
    rule = rule_of(node)
    if rule is not None and rule.function is None:
        return
    for index, value in enumerate(node.inputs):
        if (
            value is not None
            and _may_flow(value, types)
            and (rule is None or rule.inputs is None or index in rule.inputs)
        ):
            yield value
    yield from (value for value in captured(node) if _may_flow(value, types))


def _may_flow(value: ir.Value, types: Collection[ir.DataType] = FLOATING) -> bool:
    """Whether a value may have a gradient; true where its type is unknown."""
    return value.dtype is None or value.dtype in types


# Which initializers of a graph are weights.


# Inputs that hold a setting or a running statistic of an operator, and no weight.
_SETTINGS: dict[str, Collection[int]] = {
    "BatchNormalization": (3, 4),
    "Clip": (1, 2),
    "DequantizeLinear": (1, 2),
    "Dropout": (1, 2),
    "FakeQuantize": (1, 2),
    "OneHot": (1, 2),
    "Pad": (2,),
    "Pow": (1,),
    "QLinearConv": (1, 4, 6),
    "QLinearMatMul": (1, 4, 6),
    "QuantizeLinear": (1, 2),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
}

_STATISTICS = slice(3, 5)
"""Running mean and variance among the inputs of `BatchNormalization`."""

# Exporters lift constants of the program to initializers, under generated names.
_MADE_UP = re.compile(
    r"(?:.*/)?(?:val_\d+|onnx::\w+_\d+|_?(?:scalar|const|constant)\w*)(?:_output_\d+)?$",
    re.IGNORECASE,
)


def variables(graph: ir.Graph, frozen: Collection[str] = ()) -> list[ir.Value]:
    """The initializers that training changes, in the graph's order.

    1. They hold floating-point numbers.
    2. They are not settings or running statistics of an operator (limits of `Clip`, mean and
       variance of `BatchNormalization`, a single exponent, ...) wherever they are read.
    3. They are not a single number under a name that an exporter generated: that is a constant of
       the program.
    4. They are not the state of a pass (a reserved name), and not frozen.
    """
    return [
        value
        for name, value in graph.initializers.items()
        if value.dtype in FLOATING
        and name not in frozen
        and not name.startswith(RESERVED)
        and not _is_setting(value)
        and not _is_number(value)
    ]


def frozen_of(model: ir.Model) -> list[str]:
    """The initializers that a model says are not to be trained."""
    found: list[str] = json.loads(model.metadata_props.get(names.FROZEN, "[]"))
    return found


def weights_and_statistics(graph: ir.Graph) -> list[ir.Value]:
    """The weights, then the running statistics of normalisation, each in the graph's order."""
    statistics = {
        value
        for node in graph
        if node.op_type == "BatchNormalization"
        for value in node.inputs[_STATISTICS]
        if value is not None
    }
    weights = variables(graph)
    kept = [one for one in graph.initializers.values() if one in statistics]
    return [*weights, *(one for one in kept if one not in weights)]


def _is_setting(value: ir.Value) -> bool:
    uses = list(value.uses())
    return bool(uses) and all(
        index in _SETTINGS.get(node.op_type, ())
        # Exponents by channel are learnt, as in generalised-mean pooling.
        and (node.op_type != "Pow" or _is_single(value))
        for node, index in uses
    )


def _is_number(value: ir.Value) -> bool:
    return _is_single(value) and _MADE_UP.match(str(value.name)) is not None


def _is_single(value: ir.Value) -> bool:
    return value.shape is not None and all(dim == 1 for dim in value.shape)


class Autodiff(Pass):
    """Adds the gradient of the loss for every variable and every tensor on the way to it.

    Needs: a loss (`set_loss`), and a rule for every operator between a variable and the loss.
    Leaves: ``Gradient___<tensor>`` values, made by nodes marked ``popdist.pass = backward``; the
    gradient of the loss itself is a constant 1 made by the node of role ``loss-seed``.

    Args:
        wanted: Further tensors, for example inputs, whose gradient is needed.
        frozen: Initializers that are not trained.
        outputs: Tensors whose gradients become outputs of the graph.
    """

    def __init__(
        self,
        wanted: Collection[str] = (),
        frozen: Collection[str] = (),
        outputs: Collection[str] = (),
    ) -> None:
        self.wanted = {*wanted, *outputs}
        self.frozen = frozen
        self.outputs = outputs

    def change(self, model: ir.Model) -> bool:
        """Adds the backward pass."""
        self.frozen = {*self.frozen, *frozen_of(model)}
        graph, loss = model.graph, loss_of(model)
        wanted = _find(graph, self.wanted)
        paths = Paths(graph, [*variables(graph, self.frozen), *wanted], loss)
        while expand(graph, paths.without_rule()):
            fold(model)
            loss = loss_of(model)
            wanted = _find(graph, self.wanted)
            paths = Paths(graph, [*variables(graph, self.frozen), *wanted], loss)
        paths.require_rules()
        found = _Backward(graph, paths, set(wanted)).from_loss(loss)
        for name in self.outputs:
            if (value := found.get(name)) is not None:
                graph.outputs.append(value)
        return True


class _Backward:
    """Writes the gradients of nodes in reverse order, from the loss to the sources."""

    def __init__(
        self,
        graph: ir.Graph,
        paths: Paths,
        wanted: Collection[ir.Value] = (),
        scope: str | None = None,
    ) -> None:
        self.graph, self.paths, self.wanted = graph, paths, wanted
        self.scope = "Gradient/" if scope is None else scope
        self.named = scope is None
        self.tape = Tape(graph, metadata={names.PASS: "backward"})
        self.edges: dict[ir.Value, list[Tensor]] = {}
        self.done: dict[ir.Value, Tensor] = {}
        self.seeded: set[ir.Value] = set()

    def from_loss(self, loss: ir.Value) -> dict[str, ir.Value]:
        """The gradients of one scalar, by the name of their tensor."""
        seed = self.done[loss] = self._seed(loss)
        self.seeded.add(loss)
        self._run([(loss, seed)])
        return {str(value.name): one.value for value, one in self.done.items()}

    def from_values(self, seeds: Sequence[tuple[ir.Value, Tensor]]) -> dict[ir.Value, Tensor]:
        """The gradients of a sub-graph's values; ``seeds`` are gradients from outside of it."""
        self._run(seeds)
        return self.done

    def _run(self, seeds: Sequence[tuple[ir.Value, Tensor]]) -> None:
        for value, seed in seeds:
            # Nodes that convert a seed from outside are written here.
            self.edges.setdefault(value, []).append(self.tape.wrap(seed.value))
        for node in reversed(self.paths.nodes):
            self.tape.scope = f"{self.scope}{node.name or node.outputs[0].name}/"
            gradients = [self._complete(value) for value in node.outputs]
            if any(one is not None for one in gradients):
                self._distribute(node, gradients)
        self.tape.scope = self.scope
        for value in self.paths.sources:
            self._complete(value)
        self._prune()

    def _seed(self, loss: ir.Value) -> Tensor:
        known = dims(loss)
        one = np.ones(
            [1] * len(known or ()), np.float32 if loss.dtype is None else loss.dtype.numpy()
        )
        seed = self.tape.constant(one, f"{names.GRADIENT}{loss.name}")
        seed.value.producer().metadata_props[names.ROLE] = names.LOSS_SEED  # type: ignore[union-attr]
        return seed

    def _complete(self, value: ir.Value) -> Tensor | None:
        """Sums the gradients of a value, once all nodes that read the value are done."""
        arrived = self.edges.pop(value, [])
        if value in self.seeded:
            return arrived[0] if arrived else None
        if not arrived:
            return None
        total = arrived[0]
        if len(arrived) == 2:  # noqa: PLR2004 - two operands are an addition
            total = arrived[0] + arrived[1]
        elif len(arrived) > 1:
            total = self.tape.Sum(*arrived)
        if self.named:
            total = self.tape.rename(total, names.gradient(str(value.name)))
            if static(value) and not total.static:
                # Inference may know less of a gradient, but it has its tensor's shape.
                total.value.shape = value.shape
            if total.value.type is None:
                total.value.type = value.type
        self.done[value] = total
        return total

    def _distribute(self, node: ir.Node, gradients: Sequence[Tensor | None]) -> None:
        rule = rule_of(node)
        if rule is None or rule.function is None:
            return
        wanted = [
            value in self.paths.values and (rule.inputs is None or index in rule.inputs)
            for index, value in enumerate(node.inputs)
        ]
        at = At(self.tape, node, gradients, wanted, self.wanted, self.paths.values, self._reverse)
        edges = rule.function(at)
        for value, edge in _by_value(at, edges):
            if value in self.paths.values:
                like = self.tape.wrap(value)
                arrived = shape_ops.unbroadcast(edge, like) if rule.broadcasts else edge
                if arrived.value.shape is None:
                    arrived.value.shape = value.shape
                if arrived.value.type is None:
                    arrived.value.type = value.type
                self.edges.setdefault(value, []).append(arrived)

    def _reverse(
        self,
        graph: ir.Graph,
        seeds: Sequence[tuple[ir.Value, Tensor]],
        sources: Sequence[ir.Value],
    ) -> Mapping[ir.Value, Tensor]:
        """Writes the gradients of a node's sub-graph."""
        ends = [value for value, _ in seeds]
        paths = Paths(graph, sources, *ends)
        while expand(graph, paths.without_rule()):
            paths = Paths(graph, sources, *ends)
        paths.require_rules()
        return _Backward(graph, paths, scope=f"{graph.name}/Gradient/").from_values(seeds)

    def _prune(self) -> None:
        """Removes what rules wrote for inputs that need no gradient."""
        kept = {id(one.value) for one in self.done.values()}
        for node in reversed(list(self.graph)):
            if node.metadata_props.get(names.PASS) == "backward" and not any(
                output.uses() or id(output) in kept for output in node.outputs
            ):
                self.graph.remove(node, safe=True)


def autodiff(
    model: ir.Model,
    wanted: Collection[str] = (),
    frozen: Collection[str] = (),
    outputs: Collection[str] = (),
) -> ir.Model:
    """Adds ``Gradient___<tensor>`` for every tensor on the way to the loss; see `Autodiff`.

    Raises:
        popart_exception: An operator between a variable and the loss has no rule, or its rule does
            not cover a node.
    """
    Autodiff(wanted, frozen, outputs)(model)
    return model


def gradients_of(model: ir.Model, frozen: Collection[str] = ()) -> dict[str, ir.Value]:
    """The gradients by variable; a variable without a path to the loss has none."""
    made = {str(value.name): value for node in model.graph for value in node.outputs}
    found = {
        str(value.name): made.get(names.gradient(str(value.name)))
        for value in variables(model.graph, {*frozen, *frozen_of(model)})
    }
    return {name: value for name, value in found.items() if value is not None}


def why_no_gradient(model: ir.Model, value: ir.Value) -> str:
    """A sentence that names what stops the gradient between the loss and the tensor."""
    if LOSS not in model.metadata_props:
        return "gradients are made by a training session, from its loss"
    if value.dtype is not None and value.dtype not in FLOATING:
        return f"{value.name} holds {value.dtype.name}: only floating-point tensors have gradients"
    loss = loss_of(model)
    reached, stops = {value}, []
    for node in model.graph:
        if reached.isdisjoint([*node.inputs, *captured(node)]):
            continue
        flows = not reached.isdisjoint(_flowing(node))
        if not flows or not any(_may_flow(one) for one in node.outputs):
            rule = rule_of(node)
            reason = f": {rule.reason}" if rule is not None and rule.reason else ""
            stops.append(f"{node.op_type} ({node.name or node.outputs[0].name}){reason}")
        else:
            reached.update(node.outputs)
    if stops:
        return f"no gradient passes {', '.join(stops[:_FEW])}"
    return f"the loss '{loss.name}' does not depend on {value.name}"


def _find(graph: ir.Graph, wanted: Collection[str]) -> list[ir.Value]:
    values = {str(value.name): value for value in graph.inputs}
    values |= dict(graph.initializers)
    values |= {str(value.name): value for node in graph for value in node.outputs}
    missing = [name for name in wanted if name not in values]
    if missing:
        raise popart_exception(
            "PD525",
            "gradients were asked for of tensors that the graph does not have",
            value=missing,
            hint="ids are those of the model, without the prefix Gradient___",
        )
    return [values[name] for name in wanted]


def _by_value(at: At, edges: Edges) -> list[tuple[ir.Value, Tensor]]:
    if edges is None:
        return []
    if isinstance(edges, Mapping):
        return list(edges.items())
    listed = [edges] if isinstance(edges, Tensor) else edges
    return [
        (value, edge)
        for value, edge in zip(at.node.inputs, listed, strict=False)
        if value is not None and edge is not None
    ]
