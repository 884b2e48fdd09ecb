"""The base class of wrapped models: compilation, calls, weights and latencies."""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from popdist.nearest import did_you_mean
from popdist.sdk.surface import missing
from popdist_torch.errors import Error, NotCompiledError, OfflineError
from popdist_torch.executor import compile_hooks, groups, inputs, replicas
from popdist_torch.executor.anchors import GRADIENT, UPDATED, Anchors
from popdist_torch.executor.batching import Batching
from popdist_torch.executor.compiled import original
from popdist_torch.executor.float_exceptions import exceptions
from popdist_torch.executor.latency import Latencies, Timeline
from popdist_torch.executor.mixed_precision import MixedPrecision
from popdist_torch.executor.outputs import Outputs
from popdist_torch.executor.step import Replicas
from popdist_torch.executor.weights import DeviceModel, choose
from popdist_torch.ops.annotations import module_repr
from popdist_torch.ops.recomputation import MarkedLayers
from popdist_torch.ops.running import wrapped_call
from popdist_torch.options import ConnectionType, Options, OutputMode

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger("popdist.torch")


class CallSettings(NamedTuple):
    """The options that each call reads, which are frozen.

    Attributes:
        output_mode: Which outputs are returned.
        output_return_period: Of ``OutputMode.EveryN``.
        synthetic_data: Whether calls get the values of the first one again.
        broadcast_buffers: Whether all replicas are to have equal buffers.
        is_offline: Whether nothing runs.
        is_strict: Whether floating-point exceptions are errors.
    """

    output_mode: OutputMode
    output_return_period: int
    synthetic_data: bool
    broadcast_buffers: bool
    is_offline: bool
    is_strict: bool

    @classmethod
    def of(cls, options: Options) -> CallSettings:
        """Those of some options."""
        return cls(
            options.output_mode,
            options.output_return_period,
            options.synthetic_data,
            options.broadcast_buffers,
            options.connection_type == ConnectionType.Never,
            options.Precision.values().get("floating_point_exceptions", False),
        )


class Executor(ABC):
    """Runs a program's module on its device, a whole call at a time.

    The first call (or `compile`) creates separate values on the device and fixes the arguments'
    signature. Attributes of the module are reachable through the executor.

    Args:
        model: The module, or an executor of it.
        options: Its options; the executor freezes them.
        default_output: The mode that ``OutputMode.Default`` stands for.
        trains: Whether calls change the weights.
    """

    compileAndExport = missing("popdist_torch", "PoplarExecutor.compileAndExport")
    cycleCount = missing("popdist_torch", "PoplarExecutor.cycleCount")
    loadExecutable = missing("popdist_torch", "PoplarExecutor.loadExecutable")
    save = missing("popdist_torch", "PoplarExecutor.save")

    def __init__(
        self,
        model: nn.Module | Executor,
        options: Options | None,
        default_output: OutputMode,
        *,
        trains: bool,
    ) -> None:
        self._user_model: nn.Module = model.model if isinstance(model, Executor) else model
        given = Options() if options is None else options
        if not isinstance(given, Options):
            raise Error(
                "PD390",
                "options must be a poptorch.Options",
                value=type(given).__name__,
                hint="trainingModel(model, options, optimizer), or optimizer=...",
            )
        _require_module(self._user_model)
        given._freeze()  # noqa: SLF001 - what freezing is for
        self._options = given.resolved(default_output)
        self._settings = CallSettings.of(self._options)
        self._placement = self._options.placement  # computed again at each access
        self._batching = Batching.of(self._options)
        self._given = self._batching  # of the program's calls; a comparison computes others
        self._trains = trains
        # Programs switch their module between train and eval; a live wrapper keeps its own flags.
        self._training_flags = {part: part.training for part in self._user_model.modules()}
        self._anchors = Anchors(self._options, self._batching.replicas)
        self._latencies = Latencies()
        self._timeline = Timeline()
        self._forward: inspect.Signature | None = None
        self._signature: inputs.Signature | None = None
        self._replicas: Replicas | None = None
        self._attached = False
        self._synthetic: inputs.Arguments | None = None
        self._loaded_replicas: list[replicas.Row] = []
        jobs = self._placement.total_replicas
        self.per_replica_params = groups.DeclaredGroups(self._user_model, jobs, self._require_open)

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
        """Published name by which programs test whether the model is compiled."""
        return self._replicas

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Prepares the model for calls like this one, without running it.

        Weights, buffers, optimizer state and random streams do not change.

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
        with torch.inference_mode(mode=False):
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
        if torch.is_inference_mode_enabled():
            # Values that are made there could never be changed again.
            with torch.inference_mode(mode=False):
                return self(*args, **kwargs)
        if self._settings.is_offline:
            raise OfflineError(
                "PD305",
                "Trying to run a model on an offline device (ConnectionType.Never)",
                hint="leave out --offline-mode, or guard the call; compile() works offline",
            )
        first = self._replicas is None
        if first:
            self._prepare(args, kwargs)
        try:
            return self._called(args, kwargs)
        except BaseException:
            if first:  # what forward refused is not what later calls have to be like
                self._signature = None
            raise

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the model, which is compiled."""
        with self._latencies.total.timed():
            compiled = self._require_compiled()
            with self._latencies.inputs.timed():
                arguments = self._collect(args, kwargs)
            if not self._attached:
                self.attachToDevice()
            outputs = Outputs(
                self._settings.output_mode,
                self._settings.output_return_period,
                self._batching,
                compiled.model.storages(),
            )
            self._before_run()
            with (
                self._latencies.compute.timed(),
                wrapped_call(self._placement),
                exceptions() if self._settings.is_strict else nullcontext(),
            ):
                self._run(compiled, arguments, outputs)
            compiled.model.buffers.require_unchanged(broadcast=self._settings.broadcast_buffers)
            self._timeline = Timeline.of(arguments, outputs, self._batching.replicas)
            with self._latencies.outputs.timed():
                return outputs.joined()

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
        """Copies the program's weights and buffers to the device, and overwrites the device's.

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
            Error: The model is not compiled, or the options name no buffer.
        """
        model = self._require_compiled().model
        names = self._options.values().get("updatable_named_buffers", [])
        if not names:
            raise Error(
                "PD392",
                "No named buffers marked as updatable via updatableNamedBuffers option",
                hint="options.updatableNamedBuffers([...]) takes names of model.named_buffers()",
            )
        model.buffers_from_host(names)

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

        Raises:
            RuntimeError: Names differ (with ``strict``) or shapes do, as in torch.
        """
        result = self._user_model.load_state_dict(state_dict, strict=strict)
        if self.isAttachedToDevice():
            self.copyWeightsToDevice()
        return result

    def replica_state(self) -> list[dict[str, Any]]:
        """The state that each local replica has separately: its random stream and its buffers.

        Returns:
            One dictionary of plain values a replica; none before the first call.
        """
        if self._replicas is None:
            return list(self._loaded_replicas)
        compiled = self._replicas
        return replicas.rows(compiled.streams, compiled.model.buffers, self._placement)

    def load_replica_state(self, rows: list[dict[str, Any]]) -> None:
        """Restores the local replicas from states of `replica_state`, at once or on the first call.

        Args:
            rows: The states of all replicas of the job.

        Raises:
            CheckpointError: They are of a job of another number of replicas.
        """
        self._loaded_replicas = replicas.of_this_process(rows, self._placement)
        if self._replicas is not None:
            self._restore(self._replicas)

    @property
    def rng_state(self) -> list[int]:
        """The seed, then the positions of all local replicas' random streams, as numbers.

        Raises:
            Error: The model is not compiled.
        """
        return replicas.random_words(self._seed(), self._require_compiled().streams)

    @rng_state.setter
    def rng_state(self, state: list[int]) -> None:
        replicas.restore_words(state, self._require_compiled().streams)

    def getTensorNames(self) -> list[str]:
        """Names of tensors that ``options.anchorTensor`` can refer to.

        Returns:
            Parameters and buffers by the module's names; ``Gradient___<parameter>`` and
            ``UpdatedVar___<parameter>`` for those that the last update had a gradient for; with
            automatic loss scaling ``finalLossScale``, the factor of the last update.

        Raises:
            Error: The model is not compiled.
        """
        return list(self._tensors())

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """Reads a tensor that ``options.anchorTensor`` named.

        Args:
            short_name: The program's name for the tensor.

        Returns:
            A copy, with the tensors of all local replicas along the first dimension. A gradient is
            that of a replica's micro-batch, times the loss scaling: nothing is accumulated, summed
            or divided. The output mode, by default that of the model's outputs, says which
            micro-batches it holds (of ``UpdatedVar___``: which updates), the slowest first, or
            whether it is their sum. The last value of a weight or a buffer is the present one.

        Raises:
            Error: It was not named, or there is no such tensor.
        """
        return self._anchors.read(short_name, self._tensors)

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Sets the optimizer; only models that train have one.

        Args:
            optimizer: The optimizer.

        Raises:
            Error: The model does not train.
        """
        raise Error(
            "PD305",
            "an inference model has no optimizer",
            value=type(optimizer).__name__,
            hint="call setOptimizer of the trainingModel",
        )

    def detachFromDevice(self) -> None:
        """Copies newer values to the program's module; the next call attaches again.

        Values that the program has set since the last call stay, and the next call uses them.

        Raises:
            Error: The device is not attached.
        """
        if not self._attached:
            raise Error("PD305", "Device is not attached")
        self.copyWeightsToHostIfNeeded()
        self._attached = False

    def attachToDevice(self) -> None:
        """Attaches the model to the device again after `detachFromDevice`.

        Raises:
            Error: The device is attached already, or the model is not compiled.
        """
        if self._attached:
            raise Error("PD305", "Device is already attached")
        self.copyWeightsToDevice()
        self._attached = True

    def destroy(self) -> None:
        """Releases the program's module; a later call compiles again."""
        self._replicas = None
        self._forward = self._signature = None
        self._synthetic = None
        self._timeline = Timeline()
        self._attached = False

    def getLatency(self) -> tuple[float, float, float]:
        """How long calls take.

        Returns:
            Shortest, longest and mean, in seconds; zeros where nothing ran.
        """
        return self._latencies.total.summary()

    def getComputeLatency(self) -> tuple[float, float, float]:
        """How long passes, exchange and updates of a call take.

        Returns:
            Shortest, longest and mean, in seconds; zeros where nothing ran.
        """
        return self._latencies.compute.summary()

    def getHostIpuLatency(self) -> tuple[float, float, float]:
        """How long the transfer of a call's arguments to the device takes.

        Returns:
            Shortest, longest and mean, in seconds; zeros where nothing ran.
        """
        return self._latencies.inputs.summary()

    def getIpuHostLatency(self) -> tuple[float, float, float]:
        """How long the transfer of a call's outputs to the program takes.

        Returns:
            Shortest, longest and mean, in seconds; zeros where nothing ran.
        """
        return self._latencies.outputs.summary()

    def compilationTime(self) -> float:
        """How long the preparation of the model took.

        Returns:
            Seconds, all preparations together; zero before the first.
        """
        return sum(self._latencies.compilation.seconds)

    def getPerfCounters(self) -> dict[str, list[list[float]]]:
        """When the last call read its inputs and returned its outputs.

        Returns:
            Four lists of seconds since an arbitrary moment: ``input`` and ``input_complete`` have a
            row for each input tensor and a value for each step (one micro-batch on every local
            replica), ``output`` and ``output_complete`` a row for each output tensor and a value
            for each step whose outputs are returned; sums are returned once. They are empty where
            nothing ran. The tensors of a step are read together, so rows are equal.
        """
        return self._timeline.counters()

    def __repr__(self) -> str:
        return module_repr(self._user_model)

    def __getattr__(self, name: str) -> Any:
        # Tools for modules read private names, too. A copy has no model yet when it is asked.
        if name.startswith("__") or "_user_model" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        try:
            return getattr(self._user_model, name)
        except AttributeError as error:
            near = did_you_mean(name, dir(type(self)))
            if near is None or error.obj is not self._user_model or error.name != name:
                raise
            said = f"neither the model nor its wrapper has an attribute {name!r}: {near}"
            raise AttributeError(said, name=name, obj=self) from None

    @abstractmethod
    def _run(self, compiled: Replicas, arguments: inputs.Arguments, outputs: Outputs) -> None:
        """Runs one call."""

    @abstractmethod
    def _before_run(self) -> None:
        """Applies the changes that the program has made since the last call."""

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        compile_hooks.run(compile_hooks.before)
        with self._latencies.compilation.timed():
            self._compile(args, kwargs)
        compile_hooks.run(compile_hooks.after)

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        device = choose(self._options)
        arguments = self._arguments(args, kwargs, device)
        if any(
            isinstance(v, torch.Tensor) and v.requires_grad
            for v in pytree.tree_leaves((args, kwargs))
        ):
            logger.warning(
                "Input tensor has requires_grad=True set. This tensor will be detached because "
                "backward pass via inputs is not supported."
            )
        here = self._placement
        model = DeviceModel(
            self._user_model,
            self._training_flags,
            device,
            here,
            trains=self._trains,
            settings=self._options.Jit.compile_settings,
        )
        indices = range(here.first_replica, here.first_replica + here.local_replicas)
        streams = replicas.RandomStreams(self._seed(), indices, device)
        marked = MarkedLayers(self._user_model, MixedPrecision)
        self._replicas = Replicas(model, streams, marked)
        model.buffers_named(self._options.values().get("updatable_named_buffers", []))
        self._restore(self._replicas)
        self._signature = arguments.signature
        # The device's values are new, so nothing needs to be copied until the program detaches.
        self._attached = not self._settings.is_offline

    def _restore(self, compiled: Replicas) -> None:
        replicas.restore(compiled.streams, compiled.model.buffers, self._loaded_replicas)

    def _arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
    ) -> inputs.Arguments:
        if self._forward is None:
            self._forward = inspect.signature(original(self._user_model).forward)
        return inputs.collect(args, kwargs, self._given, device, self._forward)

    def _collect(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inputs.Arguments:
        arguments = self._arguments(args, kwargs, self._require_compiled().streams.device)
        if self._signature is None:
            self._signature = arguments.signature
        inputs.require_same(self._signature, arguments.signature, self._forward)
        if not self._settings.synthetic_data:
            return arguments
        if self._synthetic is None:
            self._synthetic = inputs.synthetic(arguments)
        self._synthetic.taken.clear()
        return self._synthetic

    def _require_open(self) -> None:
        """Refuses groups of replicas that are declared too late."""
        if self.isCompiled():
            raise Error(
                "PD317",
                "the model is compiled already, so its replicas can no longer be grouped",
                hint="call replicaGrouping before the first call, or after destroy()",
            )

    def _tensors(self, replica: int = 0) -> dict[str, torch.Tensor]:
        """Weights, buffers and gradients of the last update by name, of a local replica."""
        model = self._require_compiled().model
        present = model.tensors(replica)
        gradients = {GRADIENT + name: value for name, value in model.gradients().items()}
        return present | gradients | {UPDATED + name: present[name] for name in model.gradients()}

    def _require_compiled(self) -> Replicas:
        if self._replicas is None:
            raise NotCompiledError(
                "PD305",
                "the model has not been compiled",
                hint="call the model once, or call compile() with a full batch",
            )
        return self._replicas

    def _seed(self) -> int:
        if self._options.exists("random_seed"):
            return int(self._options.random_seed)
        return torch.initial_seed()


def _require_module(model: Any) -> None:
    """Refuses objects that are not modules."""
    if not isinstance(model, torch.nn.Module):
        raise Error(
            "PD390",
            "only modules can be wrapped",
            value=type(model).__name__,
            accepted="a torch.nn.Module",
            hint="put the function into the forward method of a module",
        )
