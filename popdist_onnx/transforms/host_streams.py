"""The streams between graph and host that the host-allreduce pass has made, by their handles."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

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

Direction = Literal["to host", "from host"]


class StreamError(popart_exception, KeyError):
    """A stream or gradient of the host allreduce does not exist, or exists already."""

    def __str__(self) -> str:
        # KeyError would show the text with its line breaks escaped.
        return self._text()


@dataclass(frozen=True)
class HostStream:
    """One tensor on its way between graph and host.

    Attributes:
        handle: The published handle.
        direction: Which way it goes.
        tensor: The gradient that it is called by.
        value: The value of the graph that is copied out, or takes what is copied in.
        index: Its number among the streams of its direction, in the graph's order.
    """

    handle: str
    direction: Direction
    tensor: str
    value: ir.Value
    index: int


def host_streams(model: ir.Model) -> list[HostStream]:
    """The streams of a model.

    Args:
        model: A model that the host-allreduce pass has seen.

    Returns:
        Those to the host, then those from it, each in the graph's order; none where the model has
        no exchange.
    """
    kinds: dict[str, tuple[str, Direction]] = {
        COPY_TO_HOST: (names.GRADIENT_STORE, "to host"),
        COPY_FROM_HOST: (names.GRADIENT_LOAD, "from host"),
    }
    found: list[HostStream] = []
    for node in model.graph:
        if node.domain != GRAPHCORE or node.op_type not in kinds:
            continue
        prefix, direction = kinds[node.op_type]
        source = node.inputs[0]
        assert source is not None  # noqa: S101 - each of them has a first input
        value = source if direction == "to host" else node.outputs[0]
        index = sum(stream.direction == direction for stream in found)
        tensor = str(source.name)
        found.append(HostStream(prefix + tensor, direction, tensor, value, index))
    return found


def host_reduce_stream_ids(model: ir.Model) -> list[str]:
    """The handles of a model's streams.

    Args:
        model: A model that the host-allreduce pass has seen.

    Returns:
        Two handles for every gradient; none where the model has no exchange.
    """
    return [stream.handle for stream in host_streams(model)]


def host_stream(model: ir.Model, handle: str) -> HostStream:
    """Finds a stream by its handle.

    Args:
        model: A model that the host-allreduce pass has seen.
        handle: The handle.

    Returns:
        The stream.

    Raises:
        StreamError: There is none of that handle.
    """
    by_handle = {stream.handle: stream for stream in host_streams(model)}
    if handle not in by_handle:
        close = difflib.get_close_matches(handle, by_handle, n=1)
        raise StreamError(
            "PD548",
            "there is no stream of this handle",
            value=handle,
            accepted=", ".join(by_handle) or "none: the model has no exchange on the host",
            hint=f"did you mean {close[0]}?" if close else None,
        )
    return by_handle[handle]
