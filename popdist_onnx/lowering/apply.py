"""The pass that replaces each node of ``ai.graphcore`` by nodes of ``ai.onnx``.

Called graphs are inlined at the call, and their nodes are lowered there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from popdist.nearest import did_you_mean
from popdist_onnx.errors import (
    NotOnHostError,
    UnknownShapeError,
    popart_exception,
    popart_internal_exception,
)
from popdist_onnx.graph.compat import subgraphs
from popdist_onnx.graph.inference import inference
from popdist_onnx.graph.passes import Pass
from popdist_onnx.graph.tensor import Tape, Tensor
from popdist_onnx.graph.values import constant
from popdist_onnx.lowering.registry import DOMAIN, OPERATORS, Operation, lowering_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from popdist_onnx.graph.inference import Info


OPSET = 18
"""The oldest ``ai.onnx`` opset that lowerings write."""

_OF_TRAINING = ("GradCopyToHost", "GradCopyFromHost")
"""Operators that the runtime carries out between sessions."""


class Lower(Pass):
    """Rewrites the operators of ``ai.graphcore`` into ``ai.onnx``; names of values stay.

    Needs: opset 18 or newer. Leaves: no operator of ``ai.graphcore``, apart from those in ``keep``
    and the gradient copies, which the runtime carries out between sessions.

    Args:
        keep: Operators that stay, for example because autodiff has rules for them.
    """

    def __init__(self, keep: Collection[str] = ()) -> None:
        self.keep = frozenset({*keep, *_OF_TRAINING})

    def requires(self, model: ir.Model) -> None:
        """Checks the opset.

        Raises:
            popart_internal_exception: The opset is older than the opset that lowerings write.
        """
        if (opset := model.opset_imports.get("", 0)) < OPSET:
            raise popart_internal_exception(
                "PD511", "Lower was given a model of an older opset", value=opset, accepted="18 on"
            )

    def change(self, model: ir.Model) -> bool:
        """Rewrites the operators; false where there are none."""
        return self._lower(model.graph, model.opset_imports[""], "")

    def ensures(self, model: ir.Model) -> None:
        """Checks that the graph is sound, and that no operator is left to lower.

        Raises:
            popart_internal_exception: An operator is left.
        """
        if left := [node.op_type for node in model.graph.all_nodes() if self._concerns(node)]:
            raise popart_internal_exception("PD511", "Lower left operators", value=left)

    def _concerns(self, node: ir.Node) -> bool:
        return node.domain == DOMAIN and node.op_type not in self.keep

    def _lower(self, graph: ir.Graph, opset: int, scope: str) -> bool:
        changed = False
        tape = Tape(graph, opset=opset)
        # A call brings the nodes of its graph, which may need lowering too.
        while nodes := [node for node in graph if self._concerns(node)]:
            changed = True
            for node in nodes:
                _require_lowering(node)
                if scope and node.op_type == "Abort":
                    raise NotOnHostError(
                        "PD503",
                        "abort inside of a loop or a branch cannot be expressed for a host",
                        value=scope.rstrip("/"),
                        hint="return the condition, and abort([condition]) in the main graph",
                    )
                _lower_node(tape, node, scope)
        for node in graph:
            for inner in subgraphs(node) if node.domain != DOMAIN else ():
                changed |= self._lower(inner, opset, f"{node.outputs[0].name}/")
        return changed


def lower(model: ir.Model, *, keep: Collection[str] = ()) -> ir.Model:
    """Rewrites the operators of ``ai.graphcore`` into ``ai.onnx``; see `Lower`.

    Raises:
        NotOnHostError: The model has an abort inside of a loop or a branch.
        ValueRangeError: An operator's operands do not fit each other.
        popart_exception: There is no such operator, or it needs a shape that is not known.
    """
    Lower(keep)(model)
    return model


def _require_lowering(node: ir.Node) -> None:
    if node.op_type in OPERATORS:
        return
    raise popart_exception(
        "PD511",
        f"ai.graphcore has no operator {node.op_type} that a host can run",
        value=node.name or [output.name for output in node.outputs],
        hint=did_you_mean(node.op_type, OPERATORS),
    )


def _lower_node(tape: Tape, node: ir.Node, scope: str) -> None:
    tape.metadata = dict(node.metadata_props)
    # An abort has no outputs.
    stem = node.outputs[0].name if node.outputs else node.name
    with tape.at(node, f"{scope}{stem}/"):
        tape.substitute(node, _written(tape, node))


def _written(tape: Tape, node: ir.Node) -> list[Tensor]:
    try:
        results = lowering_of(node.op_type)(Operation(tape, node))
    except popart_exception:
        raise
    except ValueError as unknown:
        # The error of a tensor whose type or shape is not known.
        raise popart_exception(
            "PD511",
            f"{node.op_type} of '{node.outputs[0].name}' cannot be lowered: {unknown}",
            hint="give the model's inputs fixed shapes, for example with InputShapeInfo",
        ) from None
    return [results] if isinstance(results, Tensor) else list(results)


@inference(DOMAIN, *OPERATORS)
def outputs_of(node: ir.Node) -> Sequence[Info]:
    """Types and shapes of the outputs of a node's lowering; empty where inputs are not known."""
    if any(value is not None and value.dtype is None for value in node.inputs):
        return []
    if any(value is not None and value.shape is None for value in node.inputs):
        return []
    scratch = Tape(ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name="scratch"))
    try:
        results = _written(scratch, _shadow(scratch, node))
    except UnknownShapeError:  # a sub-graph in a builder is still in its own opset
        return []
    return [(one.value.dtype, one.dims) for one in results]


def _shadow(tape: Tape, node: ir.Node) -> ir.Node:
    # A copy on values of its own: a scratch graph must not add uses to the real values.
    inputs: list[ir.Value | None] = []
    for value in node.inputs:
        content = None if value is None else constant(value)
        if value is None:
            inputs.append(None)
        elif content is not None:
            inputs.append(tape.constant(content).value)
        else:
            inputs.append(ir.Value(name=value.name, shape=value.shape, type=value.type))
    outputs = [ir.Value(name=value.name) for value in node.outputs]
    attributes = list(node.attributes.values())
    return ir.Node(node.domain, node.op_type, inputs, attributes, outputs=outputs)


def require_one_local_replica(graph: ir.Graph, replicas: int) -> None:
    """Refuses sums over replicas of one process, which run one after the other.

    Raises:
        NotOnHostError: The graph has such a sum, and there are several replicas in this process.
    """
    if replicas == 1:
        return
    for node in graph.all_nodes():
        if node.op_type == "ReplicatedAllReduce":
            raise NotOnHostError(
                "PD591",
                f"replicatedallreduce '{node.outputs[0].name}' cannot sum over {replicas} replicas "
                "of one process: they run one after the other",
                hint="run one replica in each process: poprun --num-instances equal to "
                "--num-replicas",
            )
