"""A wrapped model: the life cycle that training and inference share."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch

from popdist.nearest import did_you_mean
from popdist.sdk.surface import missing
from popdist_torch.errors import Error, OfflineError
from popdist_torch.executor import compile_hooks, inputs, replica_state
from popdist_torch.executor.batching import Batching
from popdist_torch.executor.latency import Measured, Timeline
from popdist_torch.executor.outputs import Outputs
from popdist_torch.executor.replicas import RandomStreams, random_words, restore_words
from popdist_torch.executor.step import Replicas
from popdist_torch.executor.weights import DeviceModel, choose
from popdist_torch.ops.annotations import wrapped_call
from popdist_torch.ops.recomputation import MarkedLayers
from popdist_torch.options import ConnectionType, Options, OutputMode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn


# The state of a wrapped model: weights and buffers by name, and each replica's own.


class Stateful:
    """A wrapped model whose state can be looked at, saved and loaded."""

    _user_model: nn.Module
    _options: Options
    _replicas: Replicas | None
    _attached: bool
    _loaded_replicas: list[replica_state.Row]

    def isCompiled(self) -> bool:
        """Whether the model is ready to run.

        Returns:
            True between the first call (or `compile`) and `destroy`.
        """
        return self._replicas is not None

    def isAttachedToDevice(self) -> bool:
        """Whether the device holds the model.

        Returns:
            True from the first call on, except between `detachFromDevice` and the next call.
        """
        return self._attached

    def copyWeightsToDevice(self) -> None:
        """Copies the program's weights and buffers to the device, over those there.

        Raises:
            Error: The model is not compiled.
        """
        self._require_compiled().model.from_host()

    def copyWeightsToHost(self) -> None:
        """Copies weights and the first replica's buffers from the device to the program's module.

        Raises:
            Error: The model is not compiled.
        """
        self._require_compiled().model.to_host()

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Copies weights to the program's module where the device has newer ones.

        Returns:
            Whether there was anything to copy.
        """
        return False

    def copyNamedBuffersToDevice(self) -> None:
        """Copies the buffers that ``options.updatableNamedBuffers`` names to all local replicas.

        Raises:
            Error: The model is not compiled, or it has no such buffer.
        """
        model = self._require_compiled().model
        model.buffers_from_host(self._options.values().get("updatable_named_buffers", []))

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The module's state with the newest weights.

        Args:
            *args: As for ``torch.nn.Module.state_dict``.
            **kwargs: As above.

        Returns:
            Plain tensors by name.
        """
        return self._user_model.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Loads the module's state, on the device too.

        Args:
            state_dict: Tensors by name.
            strict: Whether names must match exactly.

        Returns:
            Missing and unexpected keys.
        """
        result = self._user_model.load_state_dict(state_dict, strict=strict)
        if self.isAttachedToDevice():
            self.copyWeightsToDevice()
        return result

    def replica_state(self) -> list[dict[str, Any]]:
        """What each local replica has of its own: its random stream and its buffers.

        Returns:
            One dictionary of plain values a replica; none before the first call.
        """
        if self._replicas is None:
            return list(self._loaded_replicas)
        return replica_state.rows(self._replicas, self._options.placement)

    def load_replica_state(self, rows: list[dict[str, Any]]) -> None:
        """Brings the local replicas to states of `replica_state`, at once or on the first call.

        Args:
            rows: Those of all replicas of the job.

        Raises:
            CheckpointError: They are of a job of another number of replicas.
        """
        self._loaded_replicas = replica_state.of_this_process(rows, self._options.placement)
        if self._replicas is not None:
            replica_state.restore(self._replicas, self._loaded_replicas)

    @property
    def rng_state(self) -> list[int]:
        """The seed, then the positions of all local replicas' random streams, as numbers.

        Raises:
            Error: The model is not compiled.
        """
        return random_words(self._seed(), self._require_compiled().streams)

    @rng_state.setter
    def rng_state(self, state: list[int]) -> None:
        restore_words(state, self._require_compiled().streams)

    def _require_compiled(self) -> Replicas:
        if self._replicas is None:
            raise Error(
                "PD305",
                "the model has not been compiled",
                hint="call it once, or call compile() with a full batch",
            )
        return self._replicas

    def _seed(self) -> int:
        if self._options.exists("random_seed"):
            return int(self._options.random_seed)
        return torch.initial_seed()


# Tensors of a wrapped model by name: weights, buffers, and gradients of the last update.
#
# PopART has names for activations too; here these exist only while the model runs.


_GRADIENT = "Gradient___"
"""PopART's prefix for the gradient of a tensor."""


class Anchored(Stateful):
    """A wrapped model whose tensors can be read."""

    def getTensorNames(self) -> list[str]:
        """Names of tensors that ``options.anchorTensor`` can refer to.

        Returns:
            Parameters and buffers by the module's names; ``Gradient___<parameter>`` for those that
            the last update had a gradient for.

        Raises:
            Error: The model is not compiled.
        """
        return list(self._tensors())

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """Reads a tensor that ``options.anchorTensor`` named.

        Args:
            short_name: The name that the program gave it.

        Returns:
            A copy. A gradient is the one that the last update used: summed over all replicas of the
            job, and divided as the options say.

        Raises:
            Error: It was not named, or there is no such tensor.
        """
        named = self._options.anchored_tensors
        if short_name not in named:
            raise Error(
                "PD305",
                "no tensor was anchored under this name",
                value=short_name,
                accepted=", ".join(sorted(named)) or None,
                hint="call options.anchorTensor(short_name, long_name) before the model is wrapped",
            )
        tensors = self._tensors()
        long_name = named[short_name]
        if long_name not in tensors:
            raise Error(
                "PD305",
                "the model has no such tensor",
                value=long_name,
                accepted="the names of getTensorNames()",
                hint=did_you_mean(long_name, tensors, shown="{!r}"),
            )
        return tensors[long_name].detach().clone()

    def _tensors(self) -> dict[str, torch.Tensor]:
        model = self._require_compiled().model
        model.buffers.use(0)
        found = dict(model.module.named_parameters()) | dict(model.module.named_buffers())
        for name, parameter in model.module.named_parameters():
            if parameter.grad is not None:
                found[_GRADIENT + name] = parameter.grad
        return found


logger = logging.getLogger("popdist.torch")


class Executor(Measured, Anchored, ABC):
    """Runs a copy of a module, a whole call at a time.

    The first call (or `compile`) copies the module to the device and fixes what calls look like.
    Attributes of the module are reachable through the executor.

    Args:
        model: The module, or an executor of it.
        options: Its options; frozen from here on.
        default_output: What ``OutputMode.Default`` means.
    """

    compileAndExport = missing("popdist_torch", "PoplarExecutor.compileAndExport")
    cycleCount = missing("popdist_torch", "PoplarExecutor.cycleCount")
    loadExecutable = missing("popdist_torch", "PoplarExecutor.loadExecutable")
    save = missing("popdist_torch", "PoplarExecutor.save")

    def __init__(
        self, model: nn.Module | Executor, options: Options | None, default_output: OutputMode
    ) -> None:
        super().__init__()
        self._user_model: nn.Module = model.model if isinstance(model, Executor) else model
        given = Options() if options is None else options
        if not isinstance(given, Options):
            raise Error("PD305", "options must be a poptorch.Options", value=type(given).__name__)
        _require_module(self._user_model)
        given._freeze()  # noqa: SLF001 - what freezing is for
        self._options = given.resolved(default_output)
        self._batching = Batching.of(self._options)
        # Programs change their module between train and eval; a live wrapper keeps its own.
        self._training_flags = [part.training for part in self._user_model.modules()]
        self._signature: inputs.Signature | None = None
        self._replicas: Replicas | None = None
        self._attached = False
        self._synthetic: inputs.Arguments | None = None
        self._loaded_replicas: list[replica_state.Row] = []

    @property
    def model(self) -> nn.Module:
        """The program's module."""
        return self._user_model

    @property
    def options(self) -> Options:
        """The options in use: a frozen copy with the output mode settled."""
        return self._options

    @property
    def _executable(self) -> Replicas | None:
        """What programs test to see whether the model is compiled."""
        return self._replicas

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Prepares the model for calls like this one, without running it.

        Weights, buffers, optimizer state and random streams stay as they are.

        Args:
            *args: A full combined batch.
            **kwargs: As above.

        Raises:
            BatchError: A tensor's first dimension does not divide.
            Error: The model does not accept such arguments.
        """
        if self.isCompiled():
            logger.warning("the model is compiled already; compile() does nothing")
            return
        self._prepare(args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model on a combined batch.

        Args:
            *args: The model's arguments; tensors of shape ``[D * A * R * mb, ...]``.
            **kwargs: As above.

        Returns:
            The model's outputs, as the output mode says.

        Raises:
            OfflineError: The job is offline.
            BatchError: A tensor's first dimension does not divide.
            Error: The arguments differ from those of the first call, or the instances disagree.
        """
        if self._options.connection_type == ConnectionType.Never:
            raise OfflineError(
                "PD305",
                "Trying to run a model on an offline device (ConnectionType.Never)",
                hint="leave out --offline-mode, or guard the call; compile() works offline",
            )
        if self._replicas is None:
            self._prepare(args, kwargs)
        with self._latencies.total.timed():
            replicas = self._require_compiled()
            with self._latencies.inputs.timed():
                arguments = self._collect(args, kwargs)
            if not self._attached:
                self.attachToDevice()
            outputs = Outputs(
                self._options.output_mode,
                self._options.output_return_period,
                self._batching,
                self._shared,
            )
            with self._latencies.compute.timed(), wrapped_call():
                self._run(replicas, arguments, outputs)
            replicas.model.buffers.require_unchanged(broadcast=self._options.broadcast_buffers)
            self._timeline = Timeline(
                arguments.tensors(), tuple(arguments.taken), outputs.tensors, tuple(outputs.given)
            )
            with self._latencies.outputs.timed():
                return outputs.joined()

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Takes an optimizer's hyper-parameters, where the model trains.

        Args:
            optimizer: The optimizer.

        Raises:
            Error: It does not.
        """
        raise Error(
            "PD305",
            "this model does not train, so it has no optimizer",
            value=type(optimizer).__name__,
            hint="call setOptimizer of the trainingModel",
        )

    def detachFromDevice(self) -> None:
        """Brings everything back to the program's module; the next call attaches again.

        Raises:
            Error: The device is not attached.
        """
        if not self._attached:
            raise Error("PD305", "Device is not attached")
        self.copyWeightsToHost()
        self._attached = False

    def attachToDevice(self) -> None:
        """Gives the model back to the device after `detachFromDevice`.

        Raises:
            Error: The device is attached already, or the model is not compiled.
        """
        if self._attached:
            raise Error("PD305", "Device is already attached")
        self.copyWeightsToDevice()
        self._attached = True

    def destroy(self) -> None:
        """Ends the executor's hold on the program's module; a later call compiles anew."""
        self._replicas = None
        self._signature = None
        self._synthetic = None
        self._timeline = Timeline()
        self._attached = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self._user_model, name)

    @abstractmethod
    def _run(self, replicas: Replicas, arguments: inputs.Arguments, outputs: Outputs) -> None:
        """Runs one call."""

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        compile_hooks.run(compile_hooks.before)
        with self._latencies.compilation.timed():
            self._compile(args, kwargs)
        compile_hooks.run(compile_hooks.after)

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs.require_callable_with(self._user_model.forward, args, kwargs)
        device = choose(self._options)
        arguments = inputs.collect(args, kwargs, self._batching, device)
        here = self._options.placement
        model = DeviceModel(self._user_model, self._training_flags, device, self._batching.replicas)
        indices = range(here.first_replica, here.first_replica + here.local_replicas)
        streams = RandomStreams(self._seed(), indices, device)
        self._replicas = Replicas(model, streams, MarkedLayers(model.module))
        replica_state.restore(self._replicas, self._loaded_replicas)
        self._shared = model.storages()
        self._signature = arguments.signature
        # The copy is fresh, so there is nothing to bring until somebody detaches.
        self._attached = self._options.connection_type != ConnectionType.Never

    def _collect(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inputs.Arguments:
        device = self._require_compiled().streams.device
        arguments = inputs.collect(args, kwargs, self._batching, device)
        assert self._signature is not None  # noqa: S101 - set by _compile
        inputs.require_same(self._signature, arguments.signature)
        if not self._options.synthetic_data:
            return arguments
        if self._synthetic is None:
            self._synthetic = inputs.synthetic(arguments)
        self._synthetic.taken.clear()
        return self._synthetic


def _require_module(model: Any) -> None:
    """Refuses what is no module, and compiled ones: they hide losses and buffers."""
    if not isinstance(model, torch.nn.Module):
        raise Error(
            "PD305",
            "only modules can be wrapped",
            value=type(model).__name__,
            accepted="a torch.nn.Module",
            hint="put the function into the forward method of a module",
        )
    for name, part in model.named_modules():
        compiled = getattr(part, "_compiled_call_impl", None)  # what Module.compile() sets
        if hasattr(part, "_orig_mod") or compiled is not None:
            raise Error(
                "PD305",
                "a module compiled with torch.compile cannot be wrapped: its losses, the replicas' "
                "buffers and recomputation are followed while it runs eagerly",
                value=f"{name or 'the model'}: {type(part).__name__}",
                hint="wrap the module itself; compiled modules train in plain loops, with "
                "popdist_torch.horovod.DistributedOptimizer",
            )
