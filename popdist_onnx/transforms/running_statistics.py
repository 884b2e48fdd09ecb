"""Running mean and variance of batch normalization become state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.graph.names import updated
from popdist_onnx.graph.passes import Pass
from popdist_onnx.graph.tape import Tape

if TYPE_CHECKING:
    import onnx_ir as ir

    from popdist_onnx.graph.tensor import Tensor

_MOMENTUM = 0.9


class RunningStatistics(Pass):
    """Makes running statistics outputs ``UpdatedVar___<statistic>``, which the runtime keeps.

    Leaves: every BatchNormalization in training mode gives the statistics of the batch itself
    (momentum 0), which its gradient reads; what moves the running ones stands beside it as nodes:
    ``momentum * running + (1 - momentum) * batch``. The variance is the biased one, as ONNX has it
    (torch keeps the unbiased one).
    """

    def change(self, model: ir.Model) -> bool:
        """Rewrites the nodes.

        Args:
            model: The model.

        Returns:
            Whether there were any.
        """
        tape = Tape(model.graph)
        nodes = [node for node in model.graph if _trains(node)]
        for node in nodes:
            with tape.at(node, f"{node.outputs[0].name}/", node.metadata_props):
                tape.substitute(node, _separated(tape, node))
        return bool(nodes)


def running_statistics(model: ir.Model) -> ir.Model:
    """Makes running statistics of batch normalization state of the training graph.

    Args:
        model: The model, changed in place.

    Returns:
        The model.
    """
    RunningStatistics()(model)
    return model


def _trains(node: ir.Node) -> bool:
    return (
        node.op_type == "BatchNormalization"
        and node.domain == ""
        and bool(node.attributes.get_int("training_mode", 0))
        and node.attributes.get_float("momentum", _MOMENTUM) != 0
    )


def _separated(tape: Tape, node: ir.Node) -> list[Tensor]:
    momentum = node.attributes.get_float("momentum", _MOMENTUM)
    settings = {name: one.value for name, one in node.attributes.items()}
    y, mean, variance = tape.many(
        "BatchNormalization", 3, *node.inputs, **(settings | {"momentum": 0.0})
    )
    outputs = [y]
    for value, batch in zip(node.inputs[3:5], (mean, variance), strict=True):
        if value is None:
            continue
        moved = tape.wrap(value) * momentum + batch * (1 - momentum)
        if value.is_initializer():
            moved = _as_state(tape, value, moved)
        outputs.append(moved)
    return outputs[: len(node.outputs)]


def _as_state(tape: Tape, value: ir.Value, moved: Tensor) -> Tensor:
    """Names the next value; a statistic that several nodes share keeps the first one's."""
    name = updated(str(value.name))
    if any(output.name == name for output in tape.graph.outputs):
        return moved
    named = tape.rename(moved, name)
    tape.graph.outputs.append(named.value)
    return named
