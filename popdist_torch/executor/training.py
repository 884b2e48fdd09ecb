"""``trainingModel``: each call makes a number of weight updates, the same on every instance."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from popdist.metrics import note_phase, note_step
from popdist.recording import recording
from popdist_torch import job, synchronised_norms
from popdist_torch.checks.parts import checks_of
from popdist_torch.checks.statement import FACTS, Statement, numbers
from popdist_torch.embeddings import require_no_shortening
from popdist_torch.errors import Error, OptimizerError, OptionValueError
from popdist_torch.executor.executor import Executor
from popdist_torch.executor.gradients import Gradients, OrderedGradients, SharedGradients
from popdist_torch.executor.groups import require_elementwise
from popdist_torch.executor.host_access import (
    HostLink,
    add_destroy,
    follow,
    link_of,
    remove_destroy,
    require_unwrapped,
    unfollow,
)
from popdist_torch.executor.loss_scaling import LossScaling
from popdist_torch.executor.losses import LossGuard
from popdist_torch.executor.replay import Replay
from popdist_torch.executor.step import Training
from popdist_torch.global_means import MicroBatchWeights
from popdist_torch.optim.device import DeviceOptimizer
from popdist_torch.optim.published_state import name_weights
from popdist_torch.options import (
    MeanReductionStrategy,
    Options,
    OutputMode,
    ReductionType,
)
from popdist_torch.parameter_hooks import require_possible
from popdist_torch.rounds import ROUNDS, Call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from popdist.recording import Recording
    from popdist_torch.executor.inputs import Arguments
    from popdist_torch.executor.outputs import Outputs
    from popdist_torch.executor.step import Replicas

logger = logging.getLogger("popdist.torch")


class TrainingExecutor(Executor):
    """Trains a module; gradients are summed over all replicas of all instances.

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
        super().__init__(model, options, OutputMode.Final, trains=True)
        require_unwrapped(self._user_model)
        self._merged = 1
        self._replay: Replay | None = None
        if (found := recording()) is not None:
            self._replay = Replay(found)
            if found.job is not None:
                self._stand_alone(found)
        self._check_agreement = check_agreement
        self._placement_invariant = placement_invariant
        self._stop_at_bad_loss = stop_at_bad_loss
        if optimizer is None:
            optimizer = torch.optim.SGD(_parameters_or_none(self._user_model), lr=0.01)
        self._optimizer = _checked(optimizer)
        self._choose_reduction()
        self._device_optimizer: DeviceOptimizer | None = None
        self._training: Training | None = None
        self._weights_changed = False
        self._all_follow = True
        self._checks = checks_of(self._batching, self._placement)
        self._statement: Statement | None = None  # in a job, since the first call
        self._horovod: Any = None
        self._call = Call(f"a step of trainingModel({type(self._user_model).__name__})")
        self._link = HostLink(self.per_replica_params.declare)
        self._follow()
        add_destroy(self._user_model, self.destroy)

    def _stand_alone(self, found: Recording) -> None:
        """Computes all replicas of the job that this process is compared with, or one for them."""
        count = 1 if found.merges else found.replicas
        self._merged = found.replicas // count
        self._batching = replace(self._batching, replicas=count, group_size=1)
        self._placement = replace(self._placement, local_replicas=count, total_replicas=count)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The program's optimizer."""
        return self._optimizer

    def load_optimizer_state(self, load: Callable[[], None]) -> None:
        """Loads the optimizer's state by ``load``, which changes the program's optimizer."""
        load()
        if self._device_optimizer is not None:
            self._device_optimizer.loaded = True

    def getExchangeLatency(self) -> float:
        """How long updates waited for other instances; an addition to PopTorch.

        Returns:
            Seconds, all updates together: the part of the communication that no backward pass hid.
        """
        return 0.0 if self._training is None else self._training.gradients.waited

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Sets the optimizer, from the next call on.

        Changes to the optimizer in use need no such call: hyper-parameters and loaded states apply
        from the next call on. Another object brings its own state.

        Args:
            optimizer: The optimizer.

        Raises:
            OptimizerError: It cannot be used, or has changed what was marked as constant.
            OptionValueError: Its accumulators need another reduction than the compiled model has.
        """
        self._optimizer = _checked(optimizer)
        self._choose_reduction()
        if self._device_optimizer is None:
            return
        if optimizer is self._device_optimizer.optimizer:
            self._device_optimizer.require_constants()
        else:
            self._device_optimizer.release()
            self._device_optimizer = self._driven()
            self._release_training()

    def copyWeightsToDevice(self) -> None:
        """Copies the program's weights and buffers to the device, and overwrites the device's.

        Raises:
            Error: The model is not compiled.
        """
        super().copyWeightsToDevice()
        self._link.up_to_date()
        self._weights_changed = True

    def copyWeightsToHost(self) -> None:
        """Copies weights and the first replica's buffers from the device to the program's module.

        Raises:
            Error: The model is not compiled.
        """
        self._require_compiled()
        self._link.outdated(self._to_host)
        self._link.refresh()

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Copies weights to the program's module where the device has newer ones.

        Returns:
            Whether there was anything to copy.
        """
        before = self._link.version
        self._link.refresh()
        return self._link.version != before

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Loads the module's state, on the device too.

        Args:
            state_dict: Tensors by name.
            strict: Whether names must match exactly.

        Returns:
            Missing and unexpected keys.
        """
        # Values that are not loaded must be the newest too.
        self._link.refresh()
        return super().load_state_dict(state_dict, strict)

    def destroy(self) -> None:
        """Copies the weights back, and releases the program's module."""
        if self._device_optimizer is not None:
            self._device_optimizer.release()
            self._device_optimizer = None
        self._release_training()
        unfollow(self._user_model, self._tensors_of_the_program(), self._link)
        self._link = HostLink(self.per_replica_params.declare)
        remove_destroy(self._user_model)
        if self._replicas is not None:
            self._replicas.model.give_back()
        super().destroy()

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if link_of(self._user_model) not in (None, self._link):
            require_unwrapped(self._user_model)  # another executor has wrapped it meanwhile
        driven = self._driven()
        note_phase("compiling", between_steps=True)
        super()._compile(args, kwargs)
        self._device_optimizer = driven
        self._follow()  # parameters may have been added since the module was wrapped
        add_destroy(self._user_model, self.destroy)

    def _collect(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        arguments = super()._collect(args, kwargs)
        if self._replay is None or self._settings.synthetic_data:
            return arguments
        self._replay.start(self)
        return self._replay.of_call(arguments, self._given, self._batching)

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outputs = super()._called(args, kwargs)
        return outputs if self._replay is None else self._replay.as_asked(outputs)

    def _before_run(self) -> None:
        """Applies the changes that the program has made since the last call."""
        optimizer, weights = self._driver(), self._require_compiled().model.weights
        optimizer.require_constants()
        if self._require_compiled().model.versions.parameters:
            require_elementwise(optimizer.optimizer)
        for index, parameter in enumerate(optimizer.parameters()):
            if not weights.has(parameter):
                weights.add(f"parameter {index} of the optimizer", parameter)
                self._follow()

    def _run(self, compiled: Replicas, arguments: Arguments, outputs: Outputs) -> None:
        optimizer = self._driver()
        if self._training is None:  # all instances refuse alike, so none may wait for another
            self._require_local_layers()
        self._announce()
        with compiled.model.in_use(), optimizer.in_use():
            # Updates before the error have changed the weights.
            self._link.outdated(self._bring)
            for parameter in compiled.model.weights.parameters:
                parameter.grad = None
            trained = self._trained()
            training = self._training
            first = training is None
            if training is None or not _same(training.gradients.parameters, trained):
                training = self._started(compiled, trained)
            self._require_possible(trained)
            if self._statement is not None:
                self._statement.before_call(compiled, optimizer, arguments.values)
            training.run(arguments, outputs, self._facts(compiled, optimizer))
            note_step(loss=training.mean_loss, samples=arguments.rows())
            ROUNDS.settle()  # where nothing is trained
            if self._statement is not None:
                self._statement.after_call()
            self._weights_changed = optimizer.loaded = False
        if first:
            self._follow()  # forward may have reached more modules, or made buffers
        if not self._all_follow:
            self._link.refresh()  # tensors of the program's own classes do not notice

    def _require_local_layers(self) -> None:
        """Refuses layers that no exchange of gradients keeps equal."""
        here = self._placement
        if here.num_processes > 1:
            require_no_shortening(self._user_model.modules())
        if here.total_replicas > 1:
            synchronised_norms.require_local(self._user_model.modules())
        synchronised_norms.require_whole_job(self._user_model.modules(), here)

    def _announce(self) -> None:
        """Says that this instance trains, in a round that ends before others are waited for."""
        if self._placement.num_processes == 1:
            return
        if self._horovod is None:
            self._horovod = job.require(self._placement)
        ROUNDS.begin(self._call, self._horovod)

    def _tensors(self, replica: int = 0) -> dict[str, torch.Tensor]:
        found = super()._tensors(replica)
        if self._training is not None and self._follows_gradients():
            found["finalLossScale"] = torch.tensor(self._training.last_scale)
        return found

    def _follows_gradients(self) -> bool:
        """Whether the loss scaling is automatic."""
        return bool(self._options.Training.values().get("auto_loss_scaling", False))

    def _driver(self) -> DeviceOptimizer:
        assert self._device_optimizer is not None  # noqa: S101 - set by _compile
        return self._device_optimizer

    def _driven(self) -> DeviceOptimizer:
        if not self._settings.is_offline:
            name_weights(self._user_model.named_parameters())
        driven = DeviceOptimizer(self._optimizer, self._divisor())
        if self._follows_gradients():
            driven.loss_scale_factor *= 1  # a part of the optimizer's state from the start
        return driven

    def _divisor(self) -> float:
        reduction = self._options.Training.accumulation_and_replication_reduction_type
        if reduction == ReductionType.Sum:
            return 1 / self._merged
        return self._batching.accumulation * self._placement.total_replicas

    def _choose_reduction(self) -> None:
        """Uses a running mean for half-precision accumulators, as PopTorch does."""
        combined = getattr(self._optimizer, "use_combined_accum", False)
        half = getattr(self._optimizer, "accum_type", None) == torch.float16 and not combined
        training, key = self._options.Training, "meanAccumulationAndReplicationReductionStrategy"
        if half and training(key) == MeanReductionStrategy.Post:
            if self._replicas is not None:
                raise OptionValueError(
                    "PD306",
                    "an optimizer with half-precision accumulators needs a running mean, and the "
                    "model is already compiled for another one",
                    value=training(key),
                    hint="call destroy() first, or set MeanReductionStrategy.Running at the start",
                )
            training._unfreeze()  # noqa: SLF001 - the executor's own copy of the options
            training.set(**{key: MeanReductionStrategy.Running})
            training._freeze()  # noqa: SLF001 - as above

    def _trained(self) -> list[nn.Parameter]:
        """The parameters that the optimizer updates now, in the order of the model."""
        own = {id(parameter) for parameter in self._driver().parameters()}
        weights = self._require_compiled().model.weights
        return [p for p in weights.parameters if id(p) in own and p.requires_grad]

    def _started(self, compiled: Replicas, trained: list[nn.Parameter]) -> Training:
        """Prepares updates of some parameters; in a job every instance does so at the same call."""
        first = self._training is None
        self._require_trainable(trained, first=first)
        here, horovod = self._placement, self._horovod
        if horovod is not None and self._check_agreement and first:
            self._statement = Statement(
                self._user_model, self._options, self._optimizer, compiled, horovod
            )
        label = f"popdist gradients of {type(self._user_model).__name__}"
        waited = self.getExchangeLatency()
        self._release_training()
        strategy = self._options.Training("meanAccumulationAndReplicationReductionStrategy")
        divisor = self._divisor()
        early = divisor if strategy == MeanReductionStrategy.Running else 1
        gradients = self._gradients(trained, divisor / early, horovod, label)
        gradients.waited = waited
        parts = {id(parameter) for parameter in self._user_model.parameters()}
        self._training = Training(
            self._batching,
            compiled,
            gradients,
            self._driver(),
            LossScaling(self._driver(), trained) if self._follows_gradients() else None,
            self._anchors if self._anchors.names else None,
            MicroBatchWeights(horovod, label, divisor),
            self._tensors,
            averages=divisor != 1,
            share=divisor / early,
            early_divisor=early,
            guard=LossGuard(here, horovod, label) if self._stop_at_bad_loss else None,
            checks=self._checks if self._check_agreement else (),
            strangers=[p for p in trained if id(p) not in parts],
        )
        return self._training

    def _require_trainable(self, trained: list[nn.Parameter], *, first: bool) -> None:
        """Refuses, or warns of, what cannot be trained as it is meant."""
        is_frozen = not any(p.requires_grad for p in self._user_model.parameters())
        if not trained and not is_frozen:
            raise OptimizerError(
                "PD306",
                "the optimizer has no parameter that requires gradients",
                hint="build it from model.parameters(), before parameters are frozen",
            )
        if not trained and any(True for _ in self._user_model.parameters()):
            logger.warning(
                "%s",
                Error(
                    "PD351",
                    "all parameters of the model are frozen, so calls train nothing",
                    value="requires_grad is False for each of them",
                    hint="unfreeze some with requires_grad_(), or wrap the model by inferenceModel",
                ),
            )
        if not first:
            self._require_local_layers()
        ROUNDS.settle()
        if self._horovod is None:
            job.require_meant_alone(self._options)
        if first:
            job.warn_of_other_replicas(self._placement)

    def _gradients(
        self, trained: list[nn.Parameter], divisor: float, horovod: Any, label: str
    ) -> Gradients:
        here, model = self._placement, self._require_compiled().model
        if not trained:
            return Gradients(trained, divisor)
        if self._placement_invariant:
            counts = [here.local_replicas]
            if horovod is not None:
                counts = horovod.allgather(torch.tensor(counts), name=f"{label}.replicas").tolist()
            return OrderedGradients(
                trained, divisor, counts, here.process_id, horovod, label, FACTS, model.versions
            )
        if horovod is None:
            return Gradients(trained, divisor)
        names = [model.weights.name_of(parameter) for parameter in trained]
        return SharedGradients(trained, names, divisor, horovod, label, FACTS, model.versions)

    def _facts(self, compiled: Replicas, optimizer: DeviceOptimizer) -> list[int]:
        """The numbers that travel with the gradients; none where the instance is alone."""
        if self._placement.num_processes == 1:
            return []
        return numbers(
            compiled.model.weights,
            self._trained(),
            optimizer,
            has_changed=self._weights_changed,
        )

    def _require_possible(self, trained: list[nn.Parameter]) -> None:
        """Refuses hooks that see one replica's part of a gradient as if it were all of it."""
        if self._batching.accumulation * self._placement.total_replicas == 1:
            return
        name_of = self._require_compiled().model.weights.name_of
        require_possible([(name_of(parameter), parameter) for parameter in trained], loop=False)

    def _follow(self) -> None:
        """Makes the program's tensors detect reads."""
        self._all_follow = follow(self._tensors_of_the_program(), self._link)

    def _tensors_of_the_program(self) -> list[torch.Tensor]:
        tensors = [*self._user_model.parameters(), *self._user_model.buffers()]
        if self._replicas is not None:
            tensors += self._replicas.model.tensors_of_the_program()
        return tensors

    def _bring(self) -> None:
        """Copies the weights when the program reads them, by the method that programs override."""
        self.copyWeightsToHost()

    def _to_host(self) -> None:
        self._require_compiled().model.to_host()
        self._follow()  # forward may have assigned buffers

    def _release_training(self) -> None:
        if self._training is not None:
            self._training.gradients.release()
            self._training = None


def _same(first: list[nn.Parameter], second: list[nn.Parameter]) -> bool:
    return len(first) == len(second) and all(map(lambda a, b: a is b, first, second))


def _parameters_or_none(module: nn.Module) -> list[Any]:
    """A module's parameters; a group of none where it has none, which torch refuses otherwise."""
    return list(module.parameters()) or [{"params": []}]


def _checked(optimizer: Any) -> torch.optim.Optimizer:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise OptimizerError(
            "PD306",
            "this is not an optimizer",
            value=optimizer if isinstance(optimizer, type) else type(optimizer).__name__,
            accepted="an object of torch.optim or popdist_torch.optim",
            hint="such as torch.optim.SGD(model.parameters(), lr=0.1)",
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
        placement_invariant: Whether the same global batches give bit-identical weights, however
            replicas are spread over instances. Every replica's gradients are then kept apart until
            they are added up in one order, and exchanged after the backward pass.
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
