"""Group normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.graph import extents
from popdist_onnx.lowering.registry import DOMAIN, Operation, lowering

if TYPE_CHECKING:
    import onnx_ir as ir

    from popdist_onnx.graph.tensor import Tensor

STRIDED = "stridedChannelGrouping"
"""Attribute of a node whose groups take every n-th channel; see `stride_groups`."""


@lowering("GroupNormalization")
def group_normalization(op: Operation) -> tuple[Tensor, Tensor, Tensor]:
    """``(x - mean) * invStd * scale + bias``, and mean and invStd of each sample's groups.

    Inputs are x ``[N, C, ...]``, scale ``[C]`` and bias ``[C]``; mean and invStd have shape
    ``[N * groups]``.
    """
    tape = op.tape
    x, scale, bias = op.inputs
    groups = op.number("num_groups", 1)
    epsilon = op.real("epsilon", 1e-5)
    channels = channel_count(op, x, groups)
    if x.rank == 2 and groups == 1:  # noqa: PLR2004 - samples and channels only
        y, mean, inv_std = tape.many(
            "LayerNormalization", 3, x, scale, bias, axis=1, epsilon=epsilon
        )
        return y, tape.Reshape(mean, [-1]), tape.Reshape(inv_std, [-1])
    by_group = grouped(op, x, groups)
    mean = tape.ReduceMean(by_group, [2], keepdims=1)
    centred = by_group - mean
    variance = tape.ReduceMean(centred * centred, [2], keepdims=1)
    inv_std = tape.Reciprocal(tape.Sqrt(variance + epsilon))
    normal = ungrouped(op, centred * inv_std, x, groups)
    along = [1, channels, *[1] * (x.rank - 2)]
    y = normal * tape.Reshape(scale, along) + tape.Reshape(bias, along)
    return y, tape.Reshape(mean, [-1]), tape.Reshape(inv_std, [-1])


def channel_count(op: Operation, x: Tensor, groups: int) -> int:
    """The number of channels, checked against the number of groups.

    Args:
        op: The normalisation.
        x: Its input.
        groups: How many groups it has.

    Returns:
        The number of channels.

    Raises:
        ValueRangeError: They cannot be grouped so.
    """
    channels = x.dims[1] if x.dims is not None and x.rank > 1 else None
    if not isinstance(channels, int):
        raise op.misfit("takes a tensor with samples and channels", value=x.dims)
    if groups < 1 or channels % groups:
        raise op.misfit(
            f"cannot divide {channels} channels into {groups} groups",
            accepted=f"a divisor of {channels}",
        )
    return channels


def grouped(op: Operation, x: Tensor, groups: int) -> Tensor:
    """A tensor ``[N, C, ...]`` as ``[N, groups, elements of a group]``.

    Args:
        op: The normalisation.
        x: The tensor.
        groups: How many groups.

    Returns:
        The same elements, by group.
    """
    if op.number(STRIDED, 0):
        split = op.tape.Reshape(x, [0, -1, groups, _positions(x)])
        x = op.tape.Transpose(split, perm=[0, 2, 1, 3])
    return op.tape.Reshape(x, [0, groups, -1])


def ungrouped(op: Operation, by_group: Tensor, x: Tensor, groups: int) -> Tensor:
    """The inverse of `grouped`.

    Args:
        op: The normalisation.
        by_group: A tensor ``[N, groups, elements of a group]``.
        x: The tensor whose shape it gets.
        groups: How many groups.

    Returns:
        The same elements in the shape of x.
    """
    if op.number(STRIDED, 0):
        channels = channel_count(op, x, groups)
        split = op.tape.Reshape(by_group, [0, groups, channels // groups, _positions(x)])
        by_group = op.tape.Transpose(split, perm=[0, 2, 1, 3])
    return op.tape.Reshape(by_group, extents.lengths(x))


def _positions(x: Tensor) -> int:
    return int(np.prod([dim if isinstance(dim, int) else -1 for dim in (x.dims or ())[2:]]))


def stride_groups(graph: ir.Graph) -> None:
    """Makes every group normalisation take each n-th channel into a group.

    This is what the session option ``groupNormStridedChannelGrouping`` asks for.

    Args:
        graph: The graph, changed in place.
    """
    import onnx_ir as ir

    for node in graph.all_nodes():
        if (node.domain, node.op_type) == (DOMAIN, "GroupNormalization"):
            node.attributes[STRIDED] = ir.AttrInt64(STRIDED, 1)
