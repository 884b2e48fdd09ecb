"""Batch normalization over the rows of all processes, on CPUs and GPUs.

Layers of torch.nn normalize with the statistics of a process's own rows. `SyncBatchNorm` has the
statistics, the running statistics and the gradients of one process with the rows of all. Each call
in training mode exchanges the number of rows, the mean and the variance of each channel once, and
its backward pass exchanges two sums once. Processes may have different numbers of rows. In a
wrapped model it is over all replicas of the job.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from popdist_torch.errors import Error
from popdist_torch.executor.compiled import keep_from_dynamo
from popdist_torch.horovod.world import connected
from popdist_torch.ops.over_replicas import Replica, gathered, total_of
from popdist_torch.ops.running import placement
from popdist_torch.synchronised_norms import OverAllProcesses, is_of_horovod


class SyncBatchNorm(OverAllProcesses, _BatchNorm):
    """Batch normalization of inputs ``[rows, channels, ...]`` over all processes of the job.

    In evaluation mode, and in a process alone, it does the same as ``torch.nn.BatchNorm*``. All
    processes have to call it as often, in training mode. Half-precision inputs are normalized in
    single precision.

    Args:
        num_features: Number of channels.
        eps: Added to variances.
        momentum: Weight of a batch in the running statistics; None for their cumulative average.
        affine: Whether the layer has a weight and a bias.
        track_running_stats: Whether it has running statistics.
        device: Of the parameters.
        dtype: Of the parameters.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """Normalizes a batch.

        Args:
            input: This process's rows, ``[rows, channels, ...]``.

        Returns:
            A tensor of the same shape and type.

        Raises:
            PlainLoopError: Horovod was not started in a job of several processes.
            CustomOperatorError: A model has several replicas in this process, on a GPU.
            ValueError: The input has less than two dimensions, or all processes together have
                one value for a channel.
        """
        if not self.training:
            return super().forward(input)
        horovod = connected() if placement() is None else None  # a model connects by itself
        replica = Replica("SyncBatchNorm")
        if horovod is None and replica.total == 1:
            return super().forward(input)
        self._check_input_dim(input)
        kind = torch.float64 if input.dtype == torch.float64 else torch.float32
        with torch.autocast(input.device.type, enabled=False):
            count, means, variances, apart = _statistics(input.to(kind), replica, horovod)
            self._track(count, means, variances)
            shape = [1, -1] + [1] * (input.dim() - 2)
            result = apart * (variances + self.eps).rsqrt().view(shape)
            if self.weight is not None:
                result = result * self.weight.to(kind).view(shape)
            if self.bias is not None:
                result = result + self.bias.to(kind).view(shape)
        return result.to(input.dtype)

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module, process_group: Any = None) -> nn.Module:
        """Makes all layers of batch normalization of a module layers of this class.

        The layers are changed in place, so optimizers, hooks and other references stay valid.

        Args:
            module: The module.
            process_group: None, as all processes of the job take part.

        Returns:
            The module.

        Raises:
            Error: A process group was given, or a layer has a ``forward`` of its own.
        """
        if process_group is not None:
            raise Error(
                "PD336",
                "batch normalization is over all processes of the job",
                value=process_group,
                accepted="process_group=None",
            )
        for name, part in module.named_modules():
            if not isinstance(part, _BatchNorm) or isinstance(part, cls):
                continue
            synchronised = isinstance(part, nn.SyncBatchNorm) or is_of_horovod(part)
            if type(part).forward is not _BatchNorm.forward and not synchronised:
                raise Error(
                    "PD336",
                    "a layer of batch normalization has a forward of its own, which would be lost",
                    value=f"{name or 'the module'}: {type(part).__qualname__}",
                    accepted="BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm",
                    hint="derive the layer from popdist_torch.SyncBatchNorm",
                )
            part.__class__ = cls
        return module

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002 - torch's name
        if input.dim() < 2:  # noqa: PLR2004 - rows and channels
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    @torch.no_grad()
    def _track(self, count: float, means: torch.Tensor, variances: torch.Tensor) -> None:
        """Moves the running statistics towards those of a batch, as torch does."""
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        share = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            share = 1 / float(self.num_batches_tracked) if share is None else share
        unbiased = variances * (count / (count - 1))
        for running, seen in ((self.running_mean, means), (self.running_var, unbiased)):
            running.mul_(1 - (share or 0.0)).add_(seen.to(running.dtype), alpha=share or 0.0)


class _Total(torch.autograd.Function):
    """A sum over all processes that is known already; each process has one part of it."""

    @staticmethod
    def forward(
        context: Any, part: torch.Tensor, total: torch.Tensor, replica: Replica, horovod: Any
    ) -> Any:
        context.replica = replica
        context.horovod = horovod
        return total.to(part)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        name = f"popdist batch norm of {gradient.numel()}: gradients, {gradient.dtype}"
        sums = total_of(context.replica, gradient.cpu(), context.horovod, name)
        return sums.to(gradient.device), None, None, None


def _statistics(
    rows: torch.Tensor, replica: Replica, horovod: Any
) -> tuple[float, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Statistics of all replicas' rows.

    Returns:
        The number of values of a channel, the means and the (biased) variances of channels, and
        this process's rows less the means.

    Raises:
        ValueError: All processes together have one value for a channel, or none.
    """
    others = [place for place in range(rows.dim()) if place != 1]
    channels = rows.shape[1]
    mine = rows.numel() // max(channels, 1)
    local = torch.zeros(2, channels, dtype=torch.float64)
    if mine:
        variances, means = torch.var_mean(rows.detach(), others, correction=0)
        local = torch.stack([means, variances]).double().cpu()
    told = torch.cat([torch.tensor([float(mine)], dtype=torch.float64), local.view(-1)])
    join = partial(gathered, name=f"popdist batch norm of {channels}")
    of_all = replica.exchange(told, join, horovod)
    counts, statistics = of_all[:, 0], of_all[:, 1:].view(-1, 2, channels)
    count = float(counts.sum())
    if count <= 1:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got {count:g} on all processes"
        )
    shares = (counts / count)[:, None]
    mean = (shares * statistics[:, 0]).sum(0)
    variance = (shares * (statistics[:, 1] + (statistics[:, 0] - mean).square())).sum(0)
    # Squares of distances from the mean keep their digits where the mean is far from zero.
    centre = mean.to(rows)
    apart = rows - centre.view([1, -1] + [1] * (rows.dim() - 2))
    shift = mean - centre.double().cpu()
    part = torch.stack([apart.sum(others), apart.square().sum(others)])
    known = torch.stack([shift, variance + shift.square()]) * count
    first, second = _Total.apply(part, known, replica, horovod) / count  # type: ignore[no-untyped-call]
    apart = apart - first.view([1, -1] + [1] * (rows.dim() - 2))
    return count, centre + first, second - first.square(), apart


# Compiled modules run the layer as it is.
keep_from_dynamo(SyncBatchNorm.forward)
