"""The loops of one call over device iterations, micro-batches and replicas."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from popdist_torch.errors import OptimizerError
from popdist_torch.executor.compiled import LossPlace, eagerly, keep_from_dynamo, plain_backward
from popdist_torch.executor.in_place import SavedValues
from popdist_torch.executor.losses import (
    LossWatch,
    final_loss,
    warn_of_no_effect,
    warn_of_unmarked,
)
from popdist_torch.executor.mixed_precision import MixedPrecision, may_mix
from popdist_torch.global_batch_hooks import Enlargement, enlarged
from popdist_torch.ops.running import update
from popdist_torch.ops.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from popdist_torch.executor.anchors import Anchors
    from popdist_torch.executor.batching import Batching
    from popdist_torch.executor.gradients import Gradients
    from popdist_torch.executor.inputs import Arguments
    from popdist_torch.executor.loss_scaling import LossScaling
    from popdist_torch.executor.losses import LossGuard
    from popdist_torch.executor.outputs import Outputs
    from popdist_torch.executor.replicas import RandomStreams
    from popdist_torch.executor.weights import DeviceModel
    from popdist_torch.global_means import MicroBatchWeights
    from popdist_torch.ops.recomputation import MarkedLayers
    from popdist_torch.optim.device import DeviceOptimizer


@dataclass(frozen=True)
class Replicas:
    """The local replicas of one model, run one after the other.

    Attributes:
        model: The program's module with the device's values.
        streams: The replicas' random streams.
        marked: Which of its layers recompute their activations.
    """

    model: DeviceModel
    streams: RandomStreams
    marked: MarkedLayers

    @contextmanager
    def running(self, replica: int) -> Iterator[None]:
        """Gives the model one replica's buffers and random stream."""
        self.model.buffers.use(replica)
        # Where autocast is on around a call, torch would keep the cast weights beyond an update.
        torch.clear_autocast_cache()
        self.streams.enter(replica)
        try:
            if self.streams.device.type == "cpu" and not self.model.versions.parameters:
                yield  # small models notice each context
            else:
                # What forward makes without naming a device is made where the model runs.
                eager = self.streams.device.type != "cpu" and not self.model.compiled
                home = self.streams.device if eager else nullcontext()
                with self.model.versions.of(replica), home:
                    yield
        finally:
            torch.clear_autocast_cache()
            self.model.plain.restore()
            self.model.buffers.end_graphs()
            self.streams.leave(replica)

    @contextmanager
    def suspended(self, replica: int) -> Iterator[None]:
        """Takes the model from a replica in the middle of its run, and gives it back."""
        self.model.versions.leave(replica)
        self.streams.leave(replica)
        try:
            yield
        finally:
            self.model.buffers.use(replica)
            self.streams.enter(replica)
            self.model.versions.enter(replica)

    def without_autocast(self) -> AbstractContextManager[Any]:
        """Wraps what follows a forward pass: its precision is that of the tensors."""
        kind = self.streams.device.type
        return (
            torch.autocast(kind, enabled=False)
            if torch.is_autocast_enabled(kind)
            else nullcontext()
        )

    def forward_pass(self) -> AbstractContextManager[None]:
        """Wraps a training micro-batch's forward pass; compiled code chooses what it recomputes."""
        plain = self.model.compiled or not self.marked.are_needed
        return nullcontext() if plain else self.marked.forward_pass()


class StepCheck(Protocol):
    """A check that hangs on a training step from outside."""

    def after_update(self, training: Training, arguments: Arguments, iteration: int) -> None:
        """Checks the update of a device iteration, which was made."""


@dataclass
class Training:
    """The parts of a training model that its weight updates use.

    A step does not enter parts that are not in use: they are None, or have an attribute for it.

    Attributes:
        batching: The batch algebra.
        replicas: The local replicas.
        gradients: Accumulates and exchanges gradients.
        optimizer: Updates the weights.
        scaling: Adapts the factor of the loss, where the program asked for it.
        anchors: The tensors that the program reads afterwards, if there are any.
        tensors: The model's tensors, by name, as a local replica has them.
        averages: Whether gradients are means over replicas, not sums.
        share: How many times larger than in one process gradients are in a backward pass.
        early_divisor: Divides losses before the backward pass, where the mean is a running one.
        weights: How much each micro-batch counts.
        guard: Checks the losses, where the program asked for it.
        checks: The checks that follow each update.
        strangers: Parameters that the optimizer updates although they are not in the module;
            ``forward`` has to reach them some other way.
        saved: Keeps what backward passes need of values that ``forward`` changes in place.
        turns: Runs the local replicas of a micro-batch, which may meet in ``forward``.
        looked: Whether the outputs of a micro-batch were compared with the loss.
        last_loss: The loss of the last micro-batch of the last call.
        last_scale: What the losses of the last update were multiplied by.
    """

    batching: Batching
    replicas: Replicas
    gradients: Gradients
    optimizer: DeviceOptimizer
    scaling: LossScaling | None
    anchors: Anchors | None
    weights: MicroBatchWeights
    tensors: Callable[[int], dict[str, torch.Tensor]]
    averages: bool = True
    share: float = 1
    early_divisor: float = 1
    guard: LossGuard | None = None
    checks: Sequence[StepCheck] = ()
    strangers: list[torch.nn.Parameter] = field(default_factory=list)
    saved: SavedValues = field(init=False)
    turns: Turns = field(init=False)
    looked: bool = False
    last_loss: torch.Tensor | None = None
    last_scale: float = 1
    _outside: float = 1  # how much larger gradients are around an update

    def __post_init__(self) -> None:
        model = self.replicas.model
        self.saved = SavedValues(compiled=bool(model.compiled))
        self.turns = Turns(self.batching.replicas, self._suspended)

    def mean_loss(self) -> float:
        """The loss of the last micro-batch, or NaN."""
        return float("nan") if self.last_loss is None else float(self.last_loss.mean())

    def run(self, arguments: Arguments, outputs: Outputs, facts: Sequence[int]) -> None:
        """Runs the weight updates of one call; ``facts`` must be equal on all instances."""
        self._outside = Enlargement.factor
        if self.anchors is None:
            self._run(arguments, outputs, facts)
            return
        self.anchors.begin()
        name_of = self.replicas.model.weights.name_of
        named = ((name_of(parameter), parameter) for parameter in self.gradients.parameters)
        with self.anchors.watching(named, self.early_divisor):
            self._run(arguments, outputs, facts)

    def _run(self, arguments: Arguments, outputs: Outputs, facts: Sequence[int]) -> None:
        accumulation, anchors = self.batching.accumulation, self.anchors
        for iteration in range(self.batching.iterations):
            self.gradients.begin(facts)
            scale = self.last_scale = self.optimizer.loss_scaling
            with update():
                for step in range(accumulation):
                    run = self._accumulate if self.saved.is_known else self._try
                    work = partial(run, arguments, outputs, (iteration, step), scale)
                    if self.batching.replicas == 1:
                        work(0)
                    else:
                        self.turns.run(work)
                    if anchors is not None:
                        anchors.take(iteration * accumulation + step, self.tensors)
            with self.replicas.without_autocast(), self.optimizer.updating():
                self.gradients.end(scale, self.optimizer.widen)  # exchanges
                self.gradients.multiply(self.weights.factor())
                self._update(iteration)
            if anchors is not None:
                anchors.take(iteration, self.tensors, updated=True)
            for check in self.checks:
                check.after_update(self, arguments, iteration)

    @contextmanager
    def _suspended(self, replica: int) -> Iterator[None]:
        """Wraps the time in which a replica waits for the others, in the middle of its run."""
        with (
            self.saved.suspended(),
            enlarged(self._outside),
            self.gradients.suspended(replica),
            self.replicas.suspended(replica),
        ):
            yield
        if self.anchors is not None:
            self.anchors.replica = replica

    def _try(self, *args: Any) -> None:
        """Runs a first micro-batch, again where it failed only because values are copied."""
        streams, replica = self.replicas.streams, args[-1]
        drawn = streams.state
        buffers = [
            (value, value.clone())
            for part in self.replicas.model.buffers.values(replica).values()
            for value in part.values()
            if value is not None
        ]
        try:
            self._accumulate(*args)
        except RuntimeError as error:
            if not self.saved.is_refused(error):
                raise
            streams.state = drawn
            for value, first in buffers:
                value.copy_(first)
            self._accumulate(*args)

    def _accumulate(
        self,
        arguments: Arguments,
        outputs: Outputs,
        place: tuple[int, int],
        scale: float,
        replica: int,
    ) -> None:
        """Runs one micro-batch forward and backward."""
        iteration, step = place
        if self.anchors is not None:
            self.anchors.replica = replica
        part = self.batching.part(iteration, step, replica)
        kept = self.saved.kept() if self.saved.keeps else nullcontext()
        with self.replicas.running(replica), torch.enable_grad(), kept:
            with self.replicas.forward_pass(), self.weights.forward_pass():
                output, loss = self._forward(arguments, part)
            if not self.saved.is_known:
                self.saved.after_forward()
            if loss is not None:
                seed = scale * self.weights.weight / self.early_divisor
                last = (step, replica) == (
                    self.batching.accumulation - 1,
                    self.batching.replicas - 1,
                )
                is_larger = self.share != Enlargement.factor
                share = enlarged(self.share) if is_larger else nullcontext()
                with self.replicas.without_autocast(), share:
                    # Backward passes in which replicas meet end together.
                    alone = last and not self.turns.meets
                    self.gradients.backward(loss, seed, replica=replica, last=alone)
                if last:
                    self.last_loss = loss.detach()
            outputs.add(output, iteration, step, replica)
        arguments.keep_changes(part, self.batching)
        if self.guard is not None and loss is not None:
            self.guard.watch(loss, step, replica)

    def _update(self, iteration: int) -> None:
        """Updates the weights, unless the losses or the gradients forbid it."""
        if self.guard is not None:
            self.guard.require_finite(iteration)
        unreached = [list(p.shape) for p in self.strangers if p.grad is None]
        self.strangers = []
        if unreached:
            raise OptimizerError(
                "PD306",
                "the optimizer updates tensors that are not parameters of the model, and that its "
                "forward does not reach",
                value=unreached,
                hint="build the optimizer from model.parameters() of the model that is wrapped",
            )
        if self.gradients.parameters and (self.scaling is None or self.scaling.accepts()):
            self.optimizer.update()
            self.replicas.model.renew_aliases()

    def _forward(self, arguments: Arguments, part: int) -> tuple[Any, torch.Tensor | None]:
        """Runs a micro-batch; returns the output and the loss, or None if nothing is trained."""
        args, kwargs = arguments.micro_batch(part, self.batching)
        model = self.replicas.model
        if model.loss_place is not None:
            cast = torch.is_autocast_enabled(self.replicas.streams.device.type)
            with self.gradients.compiling(), plain_backward() if cast else nullcontext():
                output = model.run(*args, **kwargs)
            return output, model.loss_place.find(output) if self.gradients.parameters else None
        with eagerly() if model.compiled else nullcontext(), LossWatch() as watch:
            output = model.run(*args, **kwargs)
        if not self.gradients.parameters and (watch.found or watch.without_graph):
            return output, None
        if watch.without_graph and not watch.found:
            if not self.looked:
                self.looked = True
                warn_of_no_effect()
            return output, None
        loss = watch.found[final_loss(watch.found)]
        if not self.looked:
            self.looked = True
            warn_of_unmarked(output, loss)
        if model.compiled:
            model.loss_place = LossPlace(output, loss)
        return output, loss


# Compiled models meet as others do.
keep_from_dynamo(Turns.meet)


def infer(arguments: Arguments, batching: Batching, replicas: Replicas, outputs: Outputs) -> None:
    """Runs the model once per device iteration and replica."""
    model = replicas.model
    mixes = not model.compiled and may_mix((*arguments.values, *model.weights.parameters))

    def run(iteration: int, replica: int) -> None:
        part = batching.part(iteration, 0, replica)
        args, kwargs = arguments.micro_batch(part, batching)
        with replicas.running(replica), torch.no_grad():
            with MixedPrecision() if mixes else nullcontext():
                output = model.run(*args, **kwargs)
            arguments.keep_changes(part, batching)
            outputs.add(output, iteration, 0, replica)

    turns = Turns(batching.replicas, replicas.suspended)
    for iteration in range(batching.iterations):
        turns.run(partial(run, iteration))
