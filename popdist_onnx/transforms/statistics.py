"""Running statistics of batch normalisation: state that each micro-batch moves on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from popdist_onnx.graph import names
from popdist_onnx.graph.passes import Pass

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEAN, _VARIANCE = 3, 4


class RunningStatistics(Pass):
    """Makes the running mean and variance of training nodes state.

    Needs: nothing. Leaves: for every BatchNormalization in training mode whose statistics are
    initializers, its second and third output as ``UpdatedVar___<statistic>``.
    """

    def change(self, model: ir.Model) -> bool:
        """Renames the outputs.

        Args:
            model: The model.

        Returns:
            Whether there was such a node.
        """
        graph = model.graph
        found = False
        for node in graph:
            if node.op_type != "BatchNormalization" or not _trains(node):
                continue
            for output, statistic in _statistics(node):
                if statistic.name in graph.initializers and not _is_updated(graph, statistic):
                    output.name = names.updated(str(statistic.name))
                    output.type, output.shape = statistic.type, statistic.shape
                    graph.outputs.append(output)
                    found = True
        return found


class TrainStatistics(Pass):
    """Switches BatchNormalization from inference, with fixed statistics, to training.

    Needs: nothing. Leaves: no node in inference mode in the main graph.
    """

    def change(self, model: ir.Model) -> bool:
        """Replaces the nodes.

        Args:
            model: The model.

        Returns:
            Whether there was such a node.
        """
        nodes = [n for n in model.graph if n.op_type == "BatchNormalization" and not _trains(n)]
        for node in nodes:
            _switch(model.graph, node)
        return bool(nodes)


def running_statistics(model: ir.Model) -> ir.Model:
    """Makes the running mean and variance of batch normalisation state.

    Args:
        model: The model, changed in place.

    Returns:
        The model.
    """
    RunningStatistics()(model)
    return model


def train_statistics(model: ir.Model) -> ir.Model:
    """Lets batch normalisation that was exported for inference use its batches' statistics.

    Args:
        model: The model, changed in place.

    Returns:
        The model.
    """
    TrainStatistics()(model)
    return model


def _trains(node: ir.Node) -> bool:
    return bool(node.attributes.get_int("training_mode", 0))


def _statistics(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    for index, output in ((_MEAN, 1), (_VARIANCE, 2)):
        value = node.inputs[index]
        if value is not None and len(node.outputs) > output:
            yield node.outputs[output], value


def _is_updated(graph: ir.Graph, statistic: ir.Value) -> bool:
    wanted = names.updated(str(statistic.name))
    return any(value.name == wanted for value in graph.outputs)


def _switch(graph: ir.Graph, node: ir.Node) -> None:
    """Gives a node in inference mode training mode; the number of outputs is fixed in a node."""
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
