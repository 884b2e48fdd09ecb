"""What instances state to each other about a `trainingModel`, and compare.

A few numbers are sent with each exchange of gradients (`FACTS`). Settings, weights and states are
compared as digests: before the first update, and in calls 1, 8, 64, 512 and so on.
"""

from __future__ import annotations

import zlib
from functools import partial
from typing import TYPE_CHECKING, Any

from popdist.checks.trained import Trained
from popdist_torch import agreement
from popdist_torch.data.equal_rows import EqualRows
from popdist_torch.gradient_exchange import Facts
from popdist_torch.optim.device import digest_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import torch
    from torch import nn

    from popdist_torch.executor.step import Replicas
    from popdist_torch.executor.weights import Weights
    from popdist_torch.optim.device import DeviceOptimizer
    from popdist_torch.options import Options

FACTS = Facts(
    "parameters",
    "hyper-parameters",
    "weights that were loaded or copied to the device",
    "optimizer states that were loaded",
)
"""What the numbers of an exchange are about."""

_PARTED = (
    "forward, a hook or the optimizer changes them with data or random numbers of one instance "
    "alone; random numbers for weights need the same seed everywhere, and "
    "options.broadcastBuffers(False) lets every replica keep its own buffers"
)
_REMEDY = "read with poptorch.DataLoader(options, ...)"


def numbers(
    weights: Weights,
    trained: Sequence[nn.Parameter],
    optimizer: DeviceOptimizer,
    *,
    has_changed: bool,
) -> list[int]:
    """The numbers of `FACTS`, which must be equal on all instances.

    Args:
        weights: The weights on the device.
        trained: Those that the optimizer updates.
        optimizer: The optimizer.
        has_changed: Whether the program has changed weights since the last call.
    """
    names = [weights.name_of(parameter) for parameter in trained]
    values = 0
    if has_changed:
        for value in weights.device_values():
            values = digest_of(value, values)
    return [
        zlib.crc32("\n".join(names).encode()) & 0xFFFFFF,
        optimizer.settings(),
        values & 0xFFFFFF,
        optimizer.state() if optimizer.loaded else 0,
    ]


class Statement:
    """Compares one model over all instances; every instance makes the same calls.

    Args:
        module: The program's module.
        options: Its options.
        optimizer: The program's optimizer.
        compiled: The local replicas.
        horovod: The module ``horovod.torch``, initialised.

    Raises:
        AgreementError: Instances are about to train different things; raised on all of them.
    """

    def __init__(
        self,
        module: nn.Module,
        options: Options,
        optimizer: torch.optim.Optimizer,
        compiled: Replicas,
        horovod: Any,
    ) -> None:
        model = compiled.model
        self._options, self._horovod = options, horovod
        self._calls = 0
        named = zip(model.weights.names, model.weights.parameters, strict=True)
        stated = agreement.facts(module, options, optimizer)
        stated |= agreement.parameter_facts(named) | model.versions.facts()
        agreement.require(stated, horovod)
        self._rows = EqualRows(horovod, _REMEDY)
        is_one = not model.versions.parameters
        if is_one:
            weights = partial(_trained_by, module)
            self._end = Trained(type(module).__name__, weights, agreement.array_of)
            self._end.claim()

    def before_call(
        self, compiled: Replicas, optimizer: DeviceOptimizer, rows: Iterable[Any]
    ) -> None:
        """Compares weights, states and buffers where that is due, and the rows of the first calls.

        Args:
            compiled: The local replicas.
            optimizer: The optimizer on the device.
            rows: The arguments of the call.

        Raises:
            AgreementError: Weights or states differ; raised on all instances.
        """
        if agreement.due(self._calls):
            self._compare_state(compiled, optimizer.optimizer)
        if self._rows.are_compared:
            self._rows.look(rows)

    def after_call(self) -> None:
        """Notes that a call has trained."""
        self._calls += 1

    def _compare_state(self, compiled: Replicas, optimizer: torch.optim.Optimizer) -> None:
        model = compiled.model
        named = [*zip(model.weights.names, model.weights.parameters, strict=True)]
        stated = agreement.parameter_facts(named)
        stated |= agreement.state_facts(named, optimizer)
        if self._options.broadcast_buffers:
            paths = {part: path for path, part in model.module.named_modules()}
            stated |= agreement.buffer_facts(
                (f"{paths.get(part, type(part).__name__)}.{name}".lstrip("."), value)
                for part, name, value in model.buffers.to_be_equal()
            )
        agreement.require(stated, self._horovod, _PARTED)


def _trained_by(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The trained weights as the program sees them."""
    return ((name, one) for name, one in module.named_parameters() if one.requires_grad)
