"""Means over all elements of a global batch, in losses of torch that `from_torch` exports."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def global_mean(total: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """The mean over all elements of a global batch, from a sum and a number of each part.

    For loss functions that are given to `from_torch`. ``train`` computes both numbers over all
    micro-batches, replicas and instances of an update, and divides once: each element counts alike,
    wherever it is.

    Args:
        total: The sum over the elements, such as ``cross_entropy(scores, y, reduction="sum")``.
        count: Their number, or the sum of their weights, computed from the inputs or the labels.

    Returns:
        A scalar loss.

    Example:
        ::

            def loss(scores, y):
                losses = torch.nn.functional.cross_entropy(scores, y.clamp(min=0), reduction="none")
                valid = (y >= 0).float()
                return popdist_onnx.global_mean((losses * valid).sum(), valid.sum())
    """
    return total / count
