"""A wrapped model: the life cycle that training and inference share."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch

from popdist.sdk.surface import missing
from popdist_torch.errors import Error, OfflineError
from popdist_torch.executor import compile_hooks, inputs, replica_state
from popdist_torch.executor import device as devices
from popdist_torch.executor.anchors import Anchored
from popdist_torch.executor.batching import Batching
from popdist_torch.executor.latency import Measured, Timeline
from popdist_torch.executor.outputs import Outputs
from popdist_torch.executor.replicas import RandomStreams
from popdist_torch.executor.step import Replicas
from popdist_torch.executor.weights import DeviceModel
from popdist_torch.ops.recomputation import MarkedLayers
from popdist_torch.ops.scope import wrapped_call
from popdist_torch.options import ConnectionType, Options, OutputMode

if TYPE_CHECKING:
    from torch import nn

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
        device = devices.choose(self._options)
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
