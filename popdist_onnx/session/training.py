"""`TrainingSession`: trains a model with a loss and an optimizer."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np

from popdist import backend
from popdist.recording import recording
from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.names import LOSS_SCALE_ELEMENTS, reserved_prefix
from popdist_onnx.optimizers.optimizer import check_replacement, require_optimizer
from popdist_onnx.runtime.chains import block_chains
from popdist_onnx.runtime.collectives import (
    Allreduce,
    Streams,
    broadcast_tensors,
    combined,
    digest,
    require_rank,
)
from popdist_onnx.runtime.compiled import default_threads
from popdist_onnx.runtime.fusion import exchange_operands, fuse_updates, write_out_transposed
from popdist_onnx.runtime.graph_reader import read
from popdist_onnx.session.arguments import options_of, require_data_flow, require_id
from popdist_onnx.session.pipeline import (
    layout,
    read_with_shapes,
    shared_by_collectives,
    training_graph,
)
from popdist_onnx.session.printing import printed
from popdist_onnx.session.session import Session
from popdist_onnx.session.step_io import RecordedIO
from popdist_onnx.session.weights import PyWeightsIO
from popdist_onnx.transforms.autodiff import variables
from popdist_onnx.transforms.block_updates import block_updates
from popdist_onnx.transforms.optimizer import scalar_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import onnx_ir as ir

    from popdist.checks.trained import Trained
    from popdist.recording import Recording
    from popdist_onnx.graph.load import Source
    from popdist_onnx.optimizers.optimizer import Optimizer
    from popdist_onnx.runtime.engine import Engine
    from popdist_onnx.runtime.graph_reader import HostCopy, Spec
    from popdist_onnx.runtime.state import Array
    from popdist_onnx.session.devices import DeviceInfo
    from popdist_onnx.session.step_io import StepIO
    from popdist_onnx.types.data_flow import DataFlow
    from popdist_onnx.types.enums import Patterns
    from popdist_onnx.types.session_options import SessionOptions
    from popdist_onnx.types.tensor_info import InputShapeInfo

RANDOM_STATE = "popdist.random-state"
"""Metadata key of saved models: seed and position of the random streams."""

_LOSS_SCALE = "popdist.loss-scale"
"""Metadata key of saved models: the loss scale that automatic loss scaling has come to."""


class TrainingSession(Session):
    """A session that trains a model.

    Args:
        fnModel: The model: a file's name or content. Optimizer state in it is continued.
        dataFlow: Updates per step, and what is returned.
        loss: The tensor to minimise, a scalar.
        optimizer: How weights are updated.
        deviceInfo: The device.
        inputShapeInfo: Shapes of inputs that the model leaves open.
        patterns: Kept; ONNX Runtime optimises by rules of its own.
        userOptions: Options.
        name: For messages.

    Attributes:
        is_recorded: Whether ``poprun --compare-alone`` compares its updates.

    Raises:
        popart_exception: The model, the loss, the optimizer or an option cannot be used.
    """

    def __init__(
        self,
        fnModel: Source,
        dataFlow: DataFlow,
        loss: str,
        optimizer: Optimizer,
        deviceInfo: DeviceInfo | None,
        inputShapeInfo: InputShapeInfo | None = None,
        patterns: Patterns | None = None,
        userOptions: SessionOptions | None = None,
        name: str = "training",
    ) -> None:
        options = options_of(userOptions)
        require_data_flow(dataFlow)
        require_id("loss", loss)
        model = read_with_shapes(fnModel, inputShapeInfo)
        graph = training_graph(model, loss, optimizer, options, dataFlow.anchors())
        kept = [str(value.name) for value in variables(graph.graph)]
        read_by_session = [*dataFlow.anchors(), *printed(graph.graph)]
        if deviceInfo is None or deviceInfo.runs_on_processor:
            _use_kernels(graph, read_by_session, default_threads())
        exchange_operands(graph, keep=read_by_session)
        if layout(options).runs == 1:
            fuse_updates(graph, keep=read_by_session)
        write_out_transposed(graph)
        block_updates(graph, keep=read_by_session)
        super().__init__(
            model, read(graph, kept), dataFlow, deviceInfo, layout(options), options, patterns, name
        )
        self._watched = set(self._reading.inputs)
        # A copy: changes that a program makes to its own one are seen where it hands it in.
        self._optimizer = deepcopy(optimizer)
        self._since_scaled = 0
        self._grown = 1.0  # what automatic loss scaling has multiplied the loss scale by
        self._streams: Streams | None = None
        self._end: Trained | None = None
        self.is_recorded = True
        self._loss = loss
        self._continued: Mapping[str, str] = model.metadata_props

    def updateOptimizerFromHost(self, optimizer: Optimizer) -> None:
        """Takes over the optimizer's non-constant values.

        Args:
            optimizer: An optimizer that differs from the session's in these only.

        Raises:
            popart_exception: It differs in more.
        """
        grown = require_optimizer(optimizer)
        if self._grown != 1:
            grown = grown.with_loss_scaling(self._grown * grown.getLossScalingVal())
        self._replace_optimizer(grown)

    def _replace_optimizer(self, optimizer: Optimizer) -> None:
        check_replacement(self._optimizer, optimizer)
        factors = optimizer.state_factors(self._optimizer)
        self._optimizer = deepcopy(optimizer)
        if self._engine is not None:
            self._load_scalars(self._engine)
            for name in self._engine.state.names:
                for prefix, factor in factors.items():
                    if name.startswith(prefix):
                        state = self._engine.state.read(name)
                        state *= state.dtype.type(factor)

    def getHostReduceStreamIds(self) -> list[str]:
        """The streams of gradients to the host and back.

        Returns:
            Their handles; none before `prepareDevice`, and without ``hostAllReduce``.
        """
        return [] if self._streams is None else self._streams.handles

    def connectStreamToCallback(
        self, handle: str, callback: Callable[[Array], None], index: int = 0
    ) -> None:
        """Lets a function of the program take part in the exchange of a gradient.

        Once all streams have one, gradients are exchanged by them.

        Args:
            handle: The stream, one of `getHostReduceStreamIds`.
            callback: Called with an array that is the gradient's memory: stores may read it, loads
                are to fill it.
            index: The local replica.

        Raises:
            popart_exception: The session is not prepared, or there is no such stream.
        """
        engine = self.prepared_engine("connectStreamToCallback")
        if self._streams is None:
            raise popart_exception(
                "PD567",
                "the session has no streams of gradients",
                hint="set userOptions.hostAllReduce = True before the session is made",
            )
        self._streams.connect(handle, callback, index)
        if self._streams.connected:
            engine.connect(self._streams, self._streams.memory)

    def connect_horovod(self, horovod: Any, *, average: bool = False) -> None:
        """Lets Horovod sum the gradients.

        Args:
            horovod: The module ``horovod.torch``, or `popdist.exchange.mpi`, initialised.
            average: Whether sums are divided by the number of instances.

        Raises:
            popart_exception: The session is not prepared, or exchanges nothing.
        """
        engine = self.prepared_engine("insert_host_allreduce")
        if not engine.gradients:
            raise popart_exception(
                "PD567",
                "the session exchanges no gradients",
                hint="set userOptions.hostAllReduce = True before the session is made",
            )
        if self._options.hostWeightUpdate:
            raise popart_exception(
                "PD567",
                "with hostWeightUpdate the program's own functions compute the weights: what "
                "Horovod sums are gradients",
                hint="set hostWeightUpdate = False, or connect a function to every stream of "
                "getHostReduceStreamIds() with connectStreamToCallback",
            )
        from popdist.checks.trained import Trained

        reduce = Allreduce(
            engine.gradients,
            horovod,
            average=average,
            facts=lambda: self._facts(average=average),
            name=f"popdist_onnx gradients of {self.name}",
        )
        engine.connect(reduce, reduce.memory)
        self._end = Trained(self.name, self.trained_values)

    def trained_values(self) -> Iterator[tuple[str, Array]]:
        """The trained weights on the device.

        Yields:
            Names and values.
        """
        engine = self.prepared_engine("trained_values")
        for name in self.trained_weights:
            yield name, engine.state.read(name)

    def broadcastWeights(self, rootRank: int = 0) -> None:
        """Gives all processes of a job the host's tensor data of one of them.

        ``weightsFromHost`` must follow, as after ``popdist_onnx.horovod.broadcast_weights``.

        Args:
            rootRank: Whose data.

        Raises:
            popart_exception: The processes' sessions have other variables, or there is no such
                rank.
        """
        horovod = backend.connect(backend.ARRAYS)
        if horovod is None:
            require_rank(rootRank, 1)
            return
        self.writeWeights(PyWeightsIO(broadcast_tensors(self._host.data, rootRank, horovod)))

    @property
    def trained_weights(self) -> list[str]:
        """The ids of the weights that updates change."""
        states = self._reading.states.items()
        return [name for name, update in states if update and not reserved_prefix(name)]

    @property
    def gradients(self) -> Sequence[tuple[HostCopy, Spec]]:
        """Gradients of the exchange with type and shape, in the order of completion."""
        return self.prepared_engine("gradients").gradients

    def _prepared(self, _engine: Engine) -> None:
        engine = _engine
        self._load_scalars(engine)
        self._continue(self._continued)
        if engine.gradients:
            self._streams = Streams(engine.gradients, self._layout.replicas)
        exchanged = engine.gradients and not self._options.hostAllReduce
        if shared_by_collectives(self._options) and exchanged:
            self._connect_collectives()

    def _connect_collectives(self) -> None:
        horovod = backend.connect(backend.ARRAYS)
        if horovod is None:
            raise popart_exception(
                "PD569",
                "the options speak of replicas in other processes, but there are none",
                value=f"{self._options.globalReplicationFactor} replicas in the job, "
                f"{self._layout.replicas} here",
                hint="start the program with poprun, and let "
                "popdist.popart.configureSessionOptions(options) set them",
            )
        self.connect_horovod(horovod)

    def _load_scalars(self, engine: Engine) -> None:
        for name, value in scalar_inputs(self._reading.model, self._optimizer, self._grown).items():
            np.copyto(engine.scalars[name].array, value, casting="same_kind")

    def _saved_properties(self) -> dict[str, str]:
        engine = self.prepared_engine("modelToHost")
        state = f"{engine.seed} {engine.micro_batches}"
        found = {RANDOM_STATE: state} if len(engine.masks) else {}
        if self._options.automaticLossScalingSettings.enabled:
            found[_LOSS_SCALE] = repr(self._optimizer.getLossScalingVal())
        return found

    def _noted(self, stepio: StepIO) -> StepIO:
        found = self._recording
        return stepio if found is None else RecordedIO(stepio, found)

    @property
    def _recording(self) -> Recording | None:
        return recording() if self.is_recorded else None

    def _updating(self) -> None:
        if (found := self._recording) is not None:
            found.before_update(found.model(self, self.name), self.trained_values())

    def _updated(self, engine: Engine) -> None:
        self._scale_loss(engine)
        if (found := self._recording) is not None:
            found.after_update(found.model(self, self.name), self.trained_values())

    def _scale_loss(self, engine: Engine) -> None:
        """Updates the loss scale, where that is automatic."""
        settings = self._options.automaticLossScalingSettings
        if not settings.enabled:
            return
        from popdist_onnx.transforms.loss_scaling import LARGE, LARGEST, factor

        self._since_scaled += 1
        if self._since_scaled < max(settings.updatePeriod, 1):
            return
        counted = engine.state.read(LARGE)
        micro_batches = self._since_scaled * self._layout.runs
        each = int(self._reading.model.metadata_props[LOSS_SCALE_ELEMENTS])
        numbers = np.asarray([counted, each * micro_batches], np.float64)
        if engine.gradients and (horovod := backend.connect(backend.ARRAYS)) is not None:
            label = f"popdist_onnx.loss_scale.{self.name}"
            numbers = combined(
                numbers, horovod, lambda one: horovod.allreduce(one, op=horovod.Sum, name=label)
            )
        self._since_scaled = 0
        engine.state.write(LARGE, np.zeros((), np.int64))
        before = self._optimizer.getLossScalingVal()
        most = float(self._reading.model.metadata_props.get(LARGEST, "inf"))
        self._scale_loss_by(min(before * factor(settings, *numbers), max(most, before)) / before)

    def _scale_loss_by(self, ratio: float) -> None:
        self._grown *= ratio
        scale = self._optimizer.getLossScalingVal() * ratio
        self._replace_optimizer(self._optimizer.with_loss_scaling(scale))

    def _flags_of_all(self, _engine: Engine, counts: Array) -> Array:
        horovod = backend.connect(backend.ARRAYS) if _engine.gradients else None
        if horovod is None:
            return super()._flags_of_all(_engine, counts)
        rows = np.zeros((horovod.size(), len(counts)))
        rows[horovod.rank()] = counts
        label = f"popdist_onnx.abort.{self.name}"
        return combined(
            rows, horovod, lambda one: horovod.allreduce(one, op=horovod.Sum, name=label)
        )

    def _continue(self, _properties: Mapping[str, str]) -> None:
        """Takes over the last loss scale and the position of random streams of a saved model."""
        self._continued, engine = _properties, self._engine
        if engine is None:
            return
        if _LOSS_SCALE in _properties and self._options.automaticLossScalingSettings.enabled:
            scale = float(_properties[_LOSS_SCALE])
            self._grown *= scale / self._optimizer.getLossScalingVal()
            self._optimizer = self._optimizer.with_loss_scaling(scale)
            self._load_scalars(engine)
        if RANDOM_STATE in _properties:
            words = _properties[RANDOM_STATE].split()
            engine.seed, engine.micro_batches = (int(word) for word in words)

    def _facts(self, *, average: bool) -> dict[str, str]:
        """What must be equal on all instances."""
        engine = self.prepared_engine("run")
        stated = {
            "loss": self._loss,
            "optimizer": repr(self._optimizer),
            "batches per step": str(self.dataFlow.batchesPerStep()),
            "accumulation": str(self._layout.accumulation),
            "reduction": str(self._options.accumulationAndReplicationReductionType),
            "op": "Average" if average else "Sum",
        }
        for index, (copy, spec) in enumerate(engine.gradients):
            shape = list(spec.shape or ())
            stated[f"gradient of {copy.weight}"] = f"{spec.dtype.name} {shape}, number {index}"
        for name in engine.state.names:
            if self._reading.states.get(name, True):
                stated[f"values of {name}"] = digest(engine.state.read(name))
        return stated


def _use_kernels(model: ir.Model, keep: Sequence[str], threads: int) -> None:
    """Rewrites a graph for the kernels of ONNX Runtime on this processor."""
    kinds = {node.op_type for node in model.graph.all_nodes()}
    if kinds & {"Conv", "ConvTranspose"}:
        from popdist_onnx.runtime.convolutions import block_length, choose_convolutions

        choose_convolutions(model, block_length())
    block_chains(model, keep, threads)
    if "ScatterND" in kinds:
        from popdist_onnx.runtime.scatters import add_in_order

        add_in_order(model, threads)
