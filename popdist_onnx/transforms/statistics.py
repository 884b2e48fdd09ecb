"""Running statistics of batch normalisation: state that each micro-batch updates."""

from __future__ import annotations

import logging
import math
import re
from itertools import count
from typing import TYPE_CHECKING

import onnx_ir as ir

from popdist_onnx.graph import names, shape_ops
from popdist_onnx.graph.compat import subgraphs
from popdist_onnx.graph.passes import Pass
from popdist_onnx.graph.tensor import Tape

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from popdist_onnx.graph.tensor import Tensor

logger = logging.getLogger("popdist.onnx")

_MEAN, _VARIANCE = 3, 4

# Names that torch's exporter gives to weights that it computes.
_FOLDED = re.compile(r"onnx::Conv\w*_\d+$")

_MOMENTUM = 0.9
"""What a node without the attribute means."""


class RunningStatistics(Pass):
    """Separates the statistics of a batch from the running ones, and makes those state.

    Needs: to run once. Leaves: every BatchNormalization in training mode, in sub-graphs too, gives
    the statistics of the batch itself (momentum 0), which its gradient reads, and reads no
    statistics that anything else reads. Running statistics that are initializers become
    ``UpdatedVar___<statistic>`` = momentum * running + (1 - momentum) * batch, once for each node
    of the main graph that reads them. The variance is the biased one, as ONNX has it, or in models
    with `names.UNBIASED` the unbiased one, as torch has it.

    Args:
        state: Whether running statistics become state.
    """

    def __init__(self, *, state: bool = True) -> None:
        self.state = state

    def change(self, model: ir.Model) -> bool:
        """Rewrites the nodes; false where there are none."""
        unbiased = names.UNBIASED in model.metadata_props
        opset = model.opset_imports[""]
        return self._change(model.graph, opset, count(), state=self.state, unbiased=unbiased)

    def _change(
        self, graph: ir.Graph, opset: int, numbers: Iterator[int], *, state: bool, unbiased: bool
    ) -> bool:
        nodes = [node for node in graph if _is_batch_norm(node) and _trains(node)]
        inner = [one for node in graph for one in subgraphs(node)]
        changed = [
            self._change(one, opset, numbers, state=False, unbiased=unbiased) for one in inner
        ]
        tape = Tape(graph, opset=opset)
        for node in nodes:
            with tape.at(node, f"{node.outputs[0].name}/", node.metadata_props):
                made = _separated(tape, node, next(numbers), state=state, unbiased=unbiased)
                tape.substitute(node, made)
        return bool(nodes) or any(changed)


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


def batch_statistics(model: ir.Model) -> ir.Model:
    """Separates the statistics of batch normalisation in training mode, in place: no state."""
    RunningStatistics(state=False)(model)
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


def _is_batch_norm(node: ir.Node) -> bool:
    return node.op_type == "BatchNormalization" and node.domain == ""


def _separated(
    tape: Tape, node: ir.Node, number: int, *, state: bool, unbiased: bool
) -> list[Tensor]:
    momentum = node.attributes.get_float("momentum", _MOMENTUM)
    settings = {name: one.value for name, one in node.attributes.items()} | {"momentum": 0.0}
    x, scale, bias, *running = (tape.wrap(value) for value in node.inputs if value is not None)
    unused = _unused(x, running, number)
    y, *batch = tape.many("BatchNormalization", 3, x, scale, bias, *unused, **settings)
    if unbiased:
        elements = x.static and math.prod(x.shape) // x.shape[1]
        batch[1] = batch[1] * (elements / (elements - 1)) if elements > 1 else batch[1]
    moved = [
        _moved(tape, old.value, statistic, momentum, state=state)
        for old, statistic in zip(running, batch, strict=True)
    ]
    return [y, *moved][: len(node.outputs)]


def _unused(x: Tensor, running: Sequence[Tensor], number: int) -> list[Tensor]:
    """Statistics that do not count, because the momentum is 0, and that no other node reads.

    ONNX Runtime's kernel writes over the statistics that it reads, whoever else reads them. So
    they must be no constants, which ONNX Runtime shares where they are equal, and no two nodes may
    have the same: an element per channel of the node's own input, times a number of their own.
    """
    tape, axes = x.tape, [0, *range(2, x.rank)]
    first = tape.Slice(x, [0] * len(axes), [1] * len(axes), axes)
    flat = tape.Reshape(first, [-1])
    parts = [1 / (2 * number + place) for place in (2, 3)]
    kinds = [one.dtype for one in running]
    return [
        (flat if kind == x.dtype else tape.Cast(flat, to=kind.value)) * part
        for kind, part in zip(kinds, parts, strict=True)
    ]


def _moved(
    tape: Tape, running: ir.Value, statistic: Tensor, momentum: float, *, state: bool
) -> Tensor:
    """The next value of a running statistic, which is state where it is an initializer."""
    source, graph = _origin(running), tape.graph
    wanted = names.updated(str(source.name))
    earlier = next((place for place, one in enumerate(graph.outputs) if one.name == wanted), None)
    # A module that is used several times moves its statistics several times.
    old = tape.wrap(running if earlier is None else graph.outputs[earlier])
    if old.value.shape != statistic.value.shape:
        old = shape_ops.shaped(old, statistic)
    moved = statistic if momentum == 0 else old * momentum + statistic * (1 - momentum)
    if not state or str(source.name) not in graph.initializers:
        return moved
    if source.shape != moved.value.shape:
        moved = shape_ops.shaped(moved, tape.wrap(source))
    if earlier is not None:
        previous = graph.outputs.pop(earlier)
        tape.release(previous)
        previous.name = tape.fresh("earlier")
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
