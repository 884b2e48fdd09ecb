"""One call of a wrapped model: the loops over iterations, micro-batches and replicas."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.executor.losses import LossWatch, final_loss

if TYPE_CHECKING:
    from collections.abc import Iterator

    from popdist_torch.executor.batching import Batching
    from popdist_torch.executor.gradients import Gradients
    from popdist_torch.executor.inputs import Arguments
    from popdist_torch.executor.loss_scaling import LossScaling
    from popdist_torch.executor.losses import LossGuard
    from popdist_torch.executor.outputs import Outputs
    from popdist_torch.executor.replicas import RandomStreams
    from popdist_torch.executor.weights import DeviceModel
    from popdist_torch.ops.recomputation import MarkedLayers
    from popdist_torch.optim.device import DeviceOptimizer


@dataclass(frozen=True)
class Replicas:
    """The local replicas of one model, run one after the other.

    Attributes:
        model: The executor's copy of the module.
        streams: The replicas' random streams.
        marked: Which of its layers recompute their activations.
    """

    model: DeviceModel
    streams: RandomStreams
    marked: MarkedLayers

    @contextmanager
    def running(self, replica: int) -> Iterator[None]:
        """Gives the model one replica's buffers and random stream.

        Args:
            replica: Local index of the replica.

        Yields:
            Nothing.
        """
        self.model.buffers.use(replica)
        with self.streams.of(replica):
            yield


def train(
    arguments: Arguments,
    batching: Batching,
    replicas: Replicas,
    gradients: Gradients,
    optimizer: DeviceOptimizer,
    outputs: Outputs,
    *,
    divisor: int,
    scaling: LossScaling,
    guard: LossGuard | None = None,
) -> None:
    """Runs the weight updates of one training call.

    Args:
        arguments: The call's arguments.
        batching: The batch algebra.
        replicas: The local replicas.
        gradients: Where gradients come together.
        optimizer: What updates the weights.
        outputs: Collects what the model returns.
        divisor: What the sum of all gradients is divided by.
        scaling: The factor of the loss.
        guard: Watches the losses, where the program asked for it.
    """
    for iteration in range(batching.iterations):
        scale = scaling.scale
        # Dividing in the seed of the backward pass saves a pass over all gradients.
        seed = scale / divisor
        gradients.begin()
        for step in range(batching.accumulation):
            for replica in range(batching.replicas):
                part = batching.part(iteration, step, replica)
                last = (step, replica) == (batching.accumulation - 1, batching.replicas - 1)
                with replicas.running(replica), torch.enable_grad():
                    with replicas.marked.forward_pass():
                        output, loss = _forward(replicas.model.module, arguments, part, batching)
                    gradients.backward(loss, seed, replica=replica, last=last)
                if guard is not None:
                    guard.watch(loss, step, replica)
                outputs.add(output, iteration, step, replica)
        gradients.end(1 / scale)
        if guard is not None:
            guard.require_finite(iteration)
        if scaling.accepts():
            optimizer.update()


def infer(arguments: Arguments, batching: Batching, replicas: Replicas, outputs: Outputs) -> None:
    """Runs the model once per device iteration and replica.

    Args:
        arguments: The call's arguments.
        batching: The batch algebra.
        replicas: The local replicas.
        outputs: Collects what the model returns.
    """
    for iteration in range(batching.iterations):
        for replica in range(batching.replicas):
            args, kwargs = arguments.micro_batch(batching.part(iteration, 0, replica), batching)
            with replicas.running(replica), torch.no_grad():
                outputs.add(replicas.model.module(*args, **kwargs), iteration, 0, replica)


def _forward(
    module: torch.nn.Module, arguments: Arguments, part: int, batching: Batching
) -> tuple[Any, torch.Tensor]:
    args, kwargs = arguments.micro_batch(part, batching)
    watch = LossWatch()
    with watch:
        output = module(*args, **kwargs)
    return output, watch.found[final_loss(watch.found)]
