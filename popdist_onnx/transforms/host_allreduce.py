"""The host-allreduce pass: sums each weight's gradient on the host before its update.

For every gradient g the pass writes ``GradCopyToHost(g)`` and ``HostReduceOut__g =
GradCopyFromHost(g)``, and lets the update read ``HostReduceOut__g``. All copies to the host come
before all copies from it, with a ``Sync`` node between them: a host may begin to sum a gradient as
soon as it is copied out, and copies back when all sums are there. The host gets the gradient summed
over micro-batches, before clipping, loss scaling and the optimizer, so that every optimizer works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from popdist.nearest import did_you_mean
from popdist_onnx.errors import popart_exception
from popdist_onnx.graph import names
from popdist_onnx.graph.compat import captured, replace_uses, subgraphs
from popdist_onnx.graph.passes import Pass
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.transforms.accumulate import UPDATE_PHASE, require_gradients, updaters

if TYPE_CHECKING:
    from collections.abc import Collection


# Handles of the streams between graph and host.


GRAPHCORE = "ai.graphcore"
"""Domain of the operators that stand for copies between graph and host."""

COPY_TO_HOST = "GradCopyToHost"
COPY_FROM_HOST = "GradCopyFromHost"
BARRIER = "Sync"

METADATA = {names.PASS: "host-allreduce", names.PHASE: "update"}
"""Metadata of these nodes."""

_PREFIXES = {COPY_TO_HOST: names.GRADIENT_STORE, COPY_FROM_HOST: names.GRADIENT_LOAD}
"""What the handles of the streams begin with; the gradient's name follows."""


class StreamError(popart_exception, KeyError):
    """A stream or gradient of the host allreduce does not exist, or exists already."""

    def __str__(self) -> str:
        # KeyError would print the text with its line breaks escaped.
        return self._text()


class UpdateOnHost(Pass):
    """Takes each weight's next value from the host, which computes it from the gradient.

    Needs: ``Gradient___w`` values, and no updates.
    Leaves: ``UpdatedVar___w`` as an output of the graph: the tensor that the host sends back once
    `HostAllReduce` has sent the gradient. The model's metadata record it.
    """

    def requires(self, model: ir.Model) -> None:
        """Checks that gradients exist."""
        require_gradients(model)

    def change(self, model: ir.Model) -> bool:
        """Adds the updates."""
        tape = Tape(model.graph, scope="update/", metadata=UPDATE_PHASE)
        for weight, gradient in updaters(model).items():
            (taken,) = tape.many("Identity", [names.updated(weight)], gradient)
            model.graph.outputs.append(taken.value)
        model.metadata_props[names.UPDATE_ON_HOST] = "1"
        return True


def update_on_host(model: ir.Model) -> ir.Model:
    """Takes each weight's next value from the host, in a differentiated model, in place."""
    UpdateOnHost()(model)
    return model


def host_reduce_stream_ids(model: ir.Model) -> list[str]:
    """The handles of a model's streams.

    Args:
        model: A model that the host-allreduce pass has seen.

    Returns:
        Those to the host, then those from it, each in the graph's order; none where the model has
        no exchange.
    """
    return [
        _PREFIXES[node.op_type] + str(node.inputs[0].name)
        for node in model.graph
        if node.domain == GRAPHCORE and node.op_type in _PREFIXES and node.inputs[0] is not None
    ]


class HostAllReduce(Pass):
    """Sends the gradient of every weight over the host, once per weight update.

    Needs: gradients by name, none of which depends on another one's update, and no exchange yet.
    Leaves: as many copies in as out, all out before all in, and nothing of the update that reads a
    gradient past the host.

    Args:
        gradients: The gradients to send, by name; None takes those of all weights, accumulated
            where the model accumulates.
    """

    def __init__(self, gradients: Collection[str] | None = None) -> None:
        self.gradients = gradients

    def requires(self, model: ir.Model) -> None:
        """Checks that the gradients exist and that there is no exchange yet.

        Raises:
            StreamError: There is no such gradient, or an exchange already.
        """
        if host_reduce_stream_ids(model):
            raise StreamError("PD548", "the model's gradients are exchanged on the host already")
        if not self._chosen(model):
            raise StreamError(
                "PD548",
                "the model has no gradients to exchange",
                accepted=f"values named {names.GRADIENT}<weight>",
                hint="run autodiff(model) first, or give the gradients' names",
            )

    def change(self, model: ir.Model) -> bool:
        """Inserts the copies.

        Raises:
            StreamError: A gradient depends on what another one updates.
        """
        graph = model.graph
        chosen = self._chosen(model)
        out, back = {}, []
        for value, label in chosen.items():
            copied = ir.Value(
                name=names.HOST_REDUCE_OUT + str(value.name), shape=value.shape, type=value.type
            )
            readers = _readers(graph, value)
            out[value] = _copy(COPY_TO_HOST, f"d2h__{label}", value, [])
            back.append(_copy(COPY_FROM_HOST, f"h2d__{label}", value, [copied]))
            for node in readers:
                _reconnect(node, value, copied)
            if not readers:
                graph.outputs.append(copied)
        # ONNX has no node without inputs and outputs: this output is never read.
        token = ir.Value(name="hostReduceSync")
        barrier = ir.Node(
            GRAPHCORE, BARRIER, [], outputs=[token], name=token.name, metadata_props=dict(METADATA)
        )
        early, late = _divided(graph, list(chosen), [node.outputs[0] for node in back])
        graph.remove(list(graph))
        for value in chosen:
            if value.producer() is None:
                graph.append(out[value])
        for node in early:
            graph.append(node)
            graph.extend([out[value] for value in node.outputs if value in out])
        graph.extend([barrier, *back, *late])
        graph.opset_imports.setdefault(GRAPHCORE, 1)
        return True

    def ensures(self, model: ir.Model) -> None:
        """Checks the number of copies and their order."""
        require_exchange_in_order(model)

    def _chosen(self, model: ir.Model) -> dict[ir.Value, str]:
        """The gradients, with the labels of their copies."""
        made = {str(v.name): v.producer() for v in model.graph.outputs}
        if self.gradients is None:
            return {
                value: str(node.name)
                if (node := made.get(names.updated(weight))) is not None and node.name
                else str(number)
                for number, (weight, value) in enumerate(updaters(model).items())
            }
        known = {str(value.name): value for value in model.graph.inputs}
        known |= {str(value.name): value for node in model.graph for value in node.outputs}
        for name in self.gradients:
            if name not in known:
                raise StreamError(
                    "PD548",
                    "the model has no gradient of this name",
                    value=name,
                    hint=did_you_mean(name, known),
                )
        return {known[name]: str(number) for number, name in enumerate(self.gradients)}


def insert_host_allreduce(model: ir.Model, gradients: Collection[str] | None = None) -> ir.Model:
    """Sends gradients of weights over the host once per update, in place; see `HostAllReduce`.

    Raises:
        StreamError: There are no such gradients, an exchange already, or a gradient depends on what
            another one updates.
    """
    HostAllReduce(gradients)(model)
    return model


def require_exchange_in_order(model: ir.Model) -> None:
    """Checks that copies from the host follow all copies to it, one for each.

    Raises:
        StreamError: The order or the number is another one.
    """
    kinds = {COPY_TO_HOST: 0, BARRIER: 1, COPY_FROM_HOST: 2}
    nodes = [n for n in model.graph if n.domain == GRAPHCORE and n.op_type in kinds]
    order = [kinds[node.op_type] for node in nodes]
    sent = [node.inputs[0] for node in nodes if node.op_type == COPY_TO_HOST]
    taken = [node.inputs[0] for node in nodes if node.op_type == COPY_FROM_HOST]
    if len(sent) != len(taken):
        raise StreamError(
            "PD549",
            "unequal number of gradient copy operations",
            value=f"{len(sent)} to the host, {len(taken)} from it",
        )
    if order != sorted(order) or order.count(1) != bool(sent) or set(sent) != set(taken):
        raise StreamError("PD549", "a gradient is copied in before all are copied out")
    for node in model.graph:
        past = set(sent) & _reads(node)
        if past and _is_update(node) and node not in nodes:
            raise StreamError(
                "PD549",
                f"node {node.name!r} of the update reads a gradient past the host",
                value=[str(value.name) for value in past if value is not None],
            )


def _copy(kind: str, label: str, value: ir.Value, outputs: list[ir.Value]) -> ir.Node:
    return ir.Node(
        GRAPHCORE,
        kind,
        [value],
        outputs=outputs,
        name=f"{names.HOST_REDUCE_GRAD_COPY}{label}",
        metadata_props=dict(METADATA),
    )


def _readers(graph: ir.Graph, value: ir.Value) -> list[ir.Node]:
    """The nodes of the update that read a gradient; all nodes where none is marked as such."""
    readers = [node for node in graph if value in _reads(node)]
    return [node for node in readers if _is_update(node)] or readers


def _reconnect(node: ir.Node, old: ir.Value, new: ir.Value) -> None:
    for index, value in enumerate(node.inputs):
        if value is old:
            node.replace_input_with(index, new)
    for inner in subgraphs(node):
        replace_uses(inner, old, new)


def _divided(
    graph: ir.Graph, gradients: list[ir.Value], copied: list[ir.Value]
) -> tuple[list[ir.Node], list[ir.Node]]:
    """The nodes that run before the exchange, and those that wait for it, each in order."""
    reached = set(copied)
    for node in graph:
        if not reached.isdisjoint(_reads(node)):
            reached.update(node.outputs)
    if early_ones := [value for value in gradients if value in reached]:
        raise StreamError(
            "PD549",
            "a gradient depends on what another gradient updates, so that they cannot all be "
            "copied out first",
            value=[value.name for value in early_ones],
            hint="exchange them in two models, or give the names of those that do not depend on "
            "others",
        )
    needed = set(gradients)
    for node in reversed(graph):
        if not needed.isdisjoint(node.outputs):
            needed.update(_reads(node))
    early, late = [], []
    for node in graph:
        waits = not reached.isdisjoint(_reads(node))
        if waits or (_is_update(node) and needed.isdisjoint(node.outputs)):
            reached.update(node.outputs)
            late.append(node)
        else:
            early.append(node)
    return early, late


def _reads(node: ir.Node) -> set[ir.Value]:
    return {value for value in node.inputs if value is not None} | set(captured(node))


def _is_update(node: ir.Node) -> bool:
    return node.metadata_props.get(names.PHASE) == "update"
