"""The streams between graph and host that the host-allreduce pass has made, by their handles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph import names

if TYPE_CHECKING:
    import onnx_ir as ir

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
        # KeyError would show the text with its line breaks escaped.
        return self._text()


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
