"""``trainingModel``: one call is a number of weight updates, the same on every instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from popdist_torch import agreement, job
from popdist_torch.errors import Error, OptimizerError
from popdist_torch.executor.executor import Executor
from popdist_torch.executor.gradients import Gradients, OrderedGradients, SharedGradients
from popdist_torch.executor.host_access import unwrap, wrap
from popdist_torch.executor.loss_scaling import LossScaling
from popdist_torch.executor.losses import LossGuard
from popdist_torch.executor.step import train
from popdist_torch.optim.device import DeviceOptimizer
from popdist_torch.options import Options, OutputMode, ReductionType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from popdist_torch.executor.inputs import Arguments
    from popdist_torch.executor.outputs import Outputs
    from popdist_torch.executor.step import Replicas


class TrainingExecutor(Executor):
    """Trains a copy of a module; gradients are summed over all replicas of all instances.

    Args:
        model: The module, or an executor of it.
        options: Its options.
        optimizer: What updates the weights; SGD with a learning rate of 0.01 by default.
        check_agreement: Whether the first call checks that all instances are about to train the
            same thing.
        placement_invariant: Whether gradients are added up in one order in every layout.
        stop_at_bad_loss: Whether a loss that is infinite or not a number is an error.

    Raises:
        Error: The module is wrapped for training already.
    """

    def __init__(
        self,
        model: nn.Module | Executor,
        options: Options | None,
        optimizer: torch.optim.Optimizer | None,
        *,
        check_agreement: bool,
        placement_invariant: bool = False,
        stop_at_bad_loss: bool = False,
    ) -> None:
        super().__init__(model, options, OutputMode.Final)
        self._placement_invariant = placement_invariant
        self._stop_at_bad_loss = stop_at_bad_loss
        self._guard: LossGuard | None = None
        if optimizer is None:
            optimizer = torch.optim.SGD(self._user_model.parameters(), lr=0.01)
        self._optimizer = _checked(optimizer)
        self._check_agreement = check_agreement
        self._link = wrap(self._user_model)
        self._device_optimizer: DeviceOptimizer | None = None
        self._gradients: Gradients | None = None

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The program's optimizer."""
        return self._optimizer

    def load_optimizer_state(self, load: Callable[[], None]) -> None:
        """Loads the state of the program's optimizer, into the one that updates too.

        Args:
            load: Changes the program's optimizer.
        """
        compiled = self._device_optimizer is not None
        if self._device_optimizer is not None:
            self._device_optimizer.release()
        load()
        if compiled:
            pairs = self._require_compiled().model.pairs
            self._device_optimizer = DeviceOptimizer(self._optimizer, pairs, self._divisor())

    def getExchangeLatency(self) -> float:
        """How long updates waited for other instances; an addition to PopTorch.

        Returns:
            Seconds, all updates together: what of the communication was not hidden.
        """
        return 0.0 if self._gradients is None else self._gradients.waited

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Takes an optimizer's hyper-parameters, from the next call on.

        Call it after every change of a learning rate, a loss scaling or the like. The optimizer in
        use keeps its state; another object brings its own.

        Args:
            optimizer: The optimizer.
        """
        self._optimizer = _checked(optimizer)
        if self._device_optimizer is None:
            return
        if optimizer is self._device_optimizer.host:
            self._device_optimizer.reread()
        else:
            self._device_optimizer.release()
            replicas = self._require_compiled()
            self._device_optimizer = DeviceOptimizer(
                optimizer, replicas.model.pairs, self._divisor()
            )
            self._release_gradients()

    def copyWeightsToDevice(self) -> None:
        """Copies the program's weights and buffers to the device, over those there.

        Raises:
            Error: The model is not compiled.
        """
        super().copyWeightsToDevice()
        self._link.up_to_date()

    def copyWeightsToHost(self) -> None:
        """Copies weights and the first replica's buffers from the device to the program's module.

        Raises:
            Error: The model is not compiled.
        """
        self._require_compiled()
        self._link.outdated(super().copyWeightsToHost)
        self._link.refresh()

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Copies weights to the program's module where the device has newer ones.

        Returns:
            Whether there was anything to copy.
        """
        before = self._link.version
        self._link.refresh()
        return self._link.version != before

    def detachFromDevice(self) -> None:
        """Brings weights and optimizer state back; the next call attaches again.

        Raises:
            Error: The device is not attached.
        """
        super().detachFromDevice()
        if self._device_optimizer is not None:
            self._device_optimizer.state_to_host()

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Loads the module's state, on the device too.

        Args:
            state_dict: Tensors by name.
            strict: Whether names must match exactly.

        Returns:
            Missing and unexpected keys.
        """
        # What is not loaded must be as new as what is.
        self._link.refresh()
        return super().load_state_dict(state_dict, strict)

    def destroy(self) -> None:
        """Brings weights and optimizer state back, and gives the program its module back."""
        if self._device_optimizer is not None:
            self._device_optimizer.release()
            self._device_optimizer = None
        self._release_gradients()
        unwrap(self._user_model)
        super().destroy()

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super()._compile(args, kwargs)
        pairs = self._require_compiled().model.pairs
        self._device_optimizer = DeviceOptimizer(self._optimizer, pairs, self._divisor())

    def _run(self, replicas: Replicas, arguments: Arguments, outputs: Outputs) -> None:
        assert self._device_optimizer is not None  # noqa: S101 - set by _compile
        if self._gradients is None:
            self._gradients = self._first_step(replicas, self._device_optimizer)
        try:
            train(
                arguments,
                self._batching,
                replicas,
                self._gradients,
                self._device_optimizer,
                outputs,
                divisor=self._divisor(),
                scaling=LossScaling(
                    self._device_optimizer,
                    automatic=self._options.Training.values().get("auto_loss_scaling", False),
                ),
                guard=self._guard,
            )
        finally:
            # Updates before an error were made.
            self._link.outdated(replicas.model.to_host)

    def _divisor(self) -> int:
        reduction = self._options.Training.accumulation_and_replication_reduction_type
        if reduction == ReductionType.Sum:
            return 1
        return self._batching.accumulation * self._options.placement.total_replicas

    def _first_step(self, replicas: Replicas, optimizer: DeviceOptimizer) -> Gradients:
        trained = optimizer.trained()
        if not trained:
            raise Error(
                "PD306",
                "the optimizer has no parameter that requires gradients",
                hint="build it from model.parameters(), before parameters are frozen",
            )
        here = self._options.placement
        horovod = job.require(here) if here.num_processes > 1 else None
        if horovod is None:
            job.require_meant_alone(self._options)
        if horovod is not None and self._check_agreement:
            agreement.require(
                agreement.facts(replicas.model.module, self._options, self._optimizer), horovod
            )
        label = f"popdist gradients of {type(self._user_model).__name__}"
        if self._stop_at_bad_loss:
            self._guard = LossGuard(here, horovod, label)
        if self._placement_invariant:
            counts = [here.local_replicas]
            if horovod is not None:
                counts = horovod.allgather(torch.tensor(counts), name=f"{label}.replicas").tolist()
            return OrderedGradients(trained, counts, here.process_id, horovod, label)
        if horovod is None:
            return Gradients(trained)
        model = replicas.model
        name_of = dict(zip((id(d) for _, d in model.pairs), model.names, strict=True))
        names = [name_of[id(parameter)] for parameter in trained]
        return SharedGradients(trained, names, horovod, label)

    def _release_gradients(self) -> None:
        if self._gradients is not None:
            self._gradients.release()
            self._gradients = None


def _checked(optimizer: Any) -> torch.optim.Optimizer:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise OptimizerError(
            "PD306",
            "this is no optimizer",
            value=type(optimizer).__name__,
            accepted="an object of torch.optim or popdist_torch.optim",
        )
    return optimizer


def trainingModel(
    model: nn.Module | Executor,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    check_agreement: bool = True,
    placement_invariant: bool = False,
    stop_at_bad_loss: bool = False,
) -> TrainingExecutor:
    """Wraps a module for training.

    Args:
        model: The module, or an executor of it. Its ``forward`` calls a loss of torch.nn, or marks
            its own with `popdist_torch.identity_loss`.
        options: Its options; by default fresh ones.
        optimizer: Any optimizer of torch or of `popdist_torch.optim` over the module's parameters;
            SGD with a learning rate of 0.01 by default.
        check_agreement: Whether the first call checks that all instances are about to train the
            same thing (options, optimizer, data, every weight); costs one pass over the weights.
        placement_invariant: Whether the same global batches give the same weights, bit for bit,
            however replicas are spread over instances. Every replica's gradients are then kept
            apart until they are added up in one order, and exchanged after the backward pass.
        stop_at_bad_loss: Whether all instances stop with an error that says where, before the
            update, when a loss of any replica is infinite or not a number.

    Returns:
        An executor that takes combined batches.

    Raises:
        Error: The module is wrapped for training already.
    """
    return TrainingExecutor(
        model,
        options,
        optimizer,
        check_agreement=check_agreement,
        placement_invariant=placement_invariant,
        stop_at_bad_loss=stop_at_bad_loss,
    )
