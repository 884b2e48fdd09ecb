"""Running statistics of batch normalisation: state that each micro-batch updates."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

import onnx_ir as ir

from popdist_onnx.graph import names, shape_ops
from popdist_onnx.graph.passes import Pass
from popdist_onnx.graph.tensor import Tape

if TYPE_CHECKING:
    from popdist_onnx.graph.tensor import Tensor

logger = logging.getLogger("popdist.onnx")

_MEAN, _VARIANCE = 3, 4

# Names that torch's exporter gives to weights that it computes.
_FOLDED = re.compile(r"onnx::Conv\w*_\d+$")

_MOMENTUM = 0.9
"""What a node without the attribute means."""


class RunningStatistics(Pass):
    """Makes the running mean and variance of training nodes state.

    Needs: nothing. Leaves: every BatchNormalization in training mode gives the statistics of the
    batch itself (momentum 0), which its gradient reads; running statistics that are initializers
    become ``UpdatedVar___<statistic>`` = momentum * running + (1 - momentum) * batch. The variance
    is the biased one, as ONNX has it (torch keeps the unbiased one).
    """

    def change(self, model: ir.Model) -> bool:
        """Rewrites the nodes; false where there are none."""
        nodes = [node for node in model.graph if _moves(node)]
        tape = Tape(model.graph)
        for node in nodes:
            with tape.at(node, f"{node.outputs[0].name}/", node.metadata_props):
                tape.substitute(node, _separated(tape, node))
        return bool(nodes)


class TrainStatistics(Pass):
    """Switches BatchNormalization from inference, with fixed statistics, to training.

    Needs: nothing. Leaves: no node in inference mode in the main graph.
    """

    def change(self, model: ir.Model) -> bool:
        """Replaces the nodes; false where there are none."""
        nodes = [n for n in model.graph if n.op_type == "BatchNormalization" and not _trains(n)]
        for node in nodes:
            _switch(model.graph, node)
        return bool(nodes)


def running_statistics(model: ir.Model) -> ir.Model:
    """Makes the running mean and variance of batch normalisation state, in place."""
    RunningStatistics()(model)
    return model


def train_statistics(model: ir.Model) -> ir.Model:
    """Switches batch normalisation from inference mode to statistics of its batch, in place."""
    TrainStatistics()(model)
    return model


def warn_of_inference(model: ir.Model) -> None:
    """Warns of batch normalisation in inference mode in a model that is to be trained."""
    fixed = [n for n in model.graph if n.op_type == "BatchNormalization" and not _trains(n)]
    if fixed:
        logger.warning(
            "%d BatchNormalization nodes are in inference mode, so that their statistics stay as "
            "they are while the model trains: export it in training mode "
            "(popdist_onnx.from_torch), or use popdist_onnx.train, which switches them",
            len(fixed),
        )
    folded = [
        node
        for node in model.graph
        if node.op_type in {"Conv", "ConvTranspose"}
        and any(v is not None and _FOLDED.match(str(v.name)) for v in node.inputs[1:])
    ]
    if folded:
        logger.warning(
            "the weights of %d convolutions (%s, ...) were made by the exporter, which folds batch "
            "normalisation into them in inference mode: such a model trains badly. Export it in "
            "training mode, as popdist_onnx.from_torch does",
            len(folded),
            folded[0].inputs[1].name if folded[0].inputs[1] is not None else "",
        )


def _trains(node: ir.Node) -> bool:
    return bool(node.attributes.get_int("training_mode", 0))


def _moves(node: ir.Node) -> bool:
    batch_norm = node.op_type == "BatchNormalization" and node.domain == ""
    return batch_norm and _trains(node) and node.attributes.get_float("momentum", _MOMENTUM) != 0


def _separated(tape: Tape, node: ir.Node) -> list[Tensor]:
    momentum = node.attributes.get_float("momentum", _MOMENTUM)
    settings = {name: one.value for name, one in node.attributes.items()} | {"momentum": 0.0}
    x, scale, bias, *_ = (tape.wrap(value) for value in node.inputs if value is not None)
    # With momentum 0 the old statistics do not count. ONNX Runtime's kernel may overwrite the
    # statistics that it reads, so each node needs statistics that no other node reads.
    unused = (scale - scale, bias - bias)
    y, *batch = tape.many("BatchNormalization", 3, x, scale, bias, *unused, **settings)
    outputs = [y]
    for index, statistic in zip((_MEAN, _VARIANCE), batch, strict=True):
        running = node.inputs[index]
        assert running is not None  # noqa: S101 - the operator has five inputs
        moved = tape.wrap(running) * momentum + statistic * (1 - momentum)
        outputs.append(_as_state(tape, running, moved))
    return outputs[: len(node.outputs)]


def _as_state(tape: Tape, running: ir.Value, moved: Tensor) -> Tensor:
    """Names the next value; a statistic that several nodes share keeps the first node's value."""
    running = _origin(running)
    if running.shape != moved.value.shape:
        moved = shape_ops.shaped(moved, tape.wrap(running))
    graph, wanted = tape.graph, names.updated(str(running.name))
    taken = any(value.name == wanted for value in graph.outputs)
    if running.name not in graph.initializers or taken:
        return moved
    named = tape.rename(moved, wanted)
    graph.outputs.append(named.value)
    return named


def _origin(value: ir.Value) -> ir.Value:
    """The statistic that a node reads in another shape (BatchNormalization with spatial=0)."""
    producer = value.producer()
    while producer is not None and producer.op_type in ("Reshape", "Detach", "Identity"):
        source = producer.inputs[0]
        assert source is not None  # noqa: S101 - these operators have an input
        value, producer = source, source.producer()
    return value


def _switch(graph: ir.Graph, node: ir.Node) -> None:
    """Replaces a node by one in training mode, because the number of outputs is fixed in a node."""
    old = node.outputs[0]
    fresh = []
    for what, index in (("mean", _MEAN), ("variance", _VARIANCE)):
        statistic = node.inputs[index]
        assert statistic is not None  # noqa: S101 - the operator has five inputs
        name = f"{old.name}/{what}"
        fresh.append(ir.Value(name=name, type=statistic.type, shape=statistic.shape))
    made = ir.Value(name=str(old.name), type=old.type, shape=old.shape)
    attributes = [a for a in node.attributes.values() if a.name != "training_mode"]
    new = ir.Node(
        node.domain,
        node.op_type,
        node.inputs,
        [*attributes, ir.AttrInt64("training_mode", 1)],
        outputs=[made, *fresh],
        name=node.name,
        metadata_props=dict(node.metadata_props),
    )
    graph.insert_before(node, new)
    ir.convenience.replace_all_uses_with(old, made)
    for index, value in enumerate(graph.outputs):
        if value is old:
            graph.outputs[index] = made
    old.name = f"{old.name}/inference"
    graph.remove(node, safe=True)
