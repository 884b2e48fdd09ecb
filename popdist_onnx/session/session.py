"""`Session`: the base of training and inference sessions."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from tqdm import tqdm

from popdist.backend import launch
from popdist.popdist_core import topology
from popdist_onnx.errors import NotOnHostError, popart_exception, popart_runtime_error
from popdist_onnx.graph.compat import clone
from popdist_onnx.graph.large_files import release, write_model
from popdist_onnx.graph.load import read, save
from popdist_onnx.graph.names import ACCUMULATOR, LOSS_SCALE_COUNT, RANDOM
from popdist_onnx.runtime.compiled import Execution, default_threads, may_spin
from popdist_onnx.runtime.engine import Engine, Layout
from popdist_onnx.session.anchors import StepPort, array_shape, elements, failed_shape, why_missing
from popdist_onnx.session.arguments import require_step_io
from popdist_onnx.session.devices import DeviceInfo, require
from popdist_onnx.session.printing import (
    AbortPort,
    PrintPort,
    abort_flags,
    printed,
    require_no_abort,
)
from popdist_onnx.session.step_io import PyStepIO
from popdist_onnx.session.weights import HostTensors
from popdist_onnx.types.enums import Patterns, SyntheticDataMode
from popdist_onnx.types.tensor_info import DataType, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from os import PathLike

    import onnx
    import onnx_ir as ir

    from popdist_onnx.graph.load import Source
    from popdist_onnx.runtime.engine import Port
    from popdist_onnx.runtime.graph_reader import Reading, Spec
    from popdist_onnx.runtime.state import Array
    from popdist_onnx.session.step_io import StepIO
    from popdist_onnx.session.weights import PyWeightsIO
    from popdist_onnx.types.data_flow import DataFlow
    from popdist_onnx.types.enums import IrSerializationFormat
    from popdist_onnx.types.session_options import SessionOptions


logger = logging.getLogger("popdist.onnx")


class Session:
    """A model with its data flow, on a device.

    Args:
        model: The model as the program gave it, with known input shapes.
        reading: What is to be run.
        dataFlow: Batches per step, and anchors.
        deviceInfo: The device.
        layout: Micro-batches per update.
        userOptions: Options.
        patterns: Kept; ONNX Runtime optimises by rules of its own.
        name: For messages.

    Attributes:
        properties: What `modelToHost` writes into a model's metadata.
    """

    def __init__(
        self,
        model: ir.Model,
        reading: Reading,
        dataFlow: DataFlow,
        deviceInfo: DeviceInfo | None,
        layout: Layout,
        userOptions: SessionOptions,
        patterns: Patterns | None,
        name: str,
    ) -> None:
        self.dataFlow = dataFlow
        self.deviceInfo = require(deviceInfo)
        self.patterns = patterns
        self.name = name
        self.replicationFactor = layout.replicas
        self.accumulationFactor = layout.accumulation
        self._options = userOptions
        self._model = model
        self._reading = reading
        self._layout = layout
        self._anchors = {anchor: self._anchor(anchor) for anchor in dataFlow.anchors()}
        self._aborts = abort_flags(reading)
        self._prints = printed(reading.model.graph)
        self._require_work()
        self._host = HostTensors(reading)
        # What is run was written for so many threads.
        self._threads = default_threads()
        self._engine: Engine | None = None
        # Inputs that no NaN has been found in; None looks for none.
        self._watched: set[str] | None = None
        self.properties: dict[str, str] = {}
        self._loaded = False
        self._ran = False
        self._cycles = 0

    def prepareDevice(self, loadEngine: bool = True) -> None:
        """Compiles the model for the device, with a progress bar on a terminal.

        Args:
            loadEngine: Kept; there is nothing to load beyond what is compiled.

        Raises:
            poplar_exception: ONNX Runtime does not take the model.
        """
        del loadEngine
        checks = self._options.enableFloatingPointChecks
        with _bar(f"Compiling {self.name}") as advance:
            self._engine = Engine(
                self._reading,
                execution=Execution(
                    providers=self.deviceInfo.providers,
                    threads=self._threads,
                    spinning=may_spin(self._threads, alone=launch().alone),
                    gpu=self.deviceInfo.gpu,
                ),
                anchors=list(dict.fromkeys([*self._anchors, *self._aborts, *self._prints])),
                layout=self._layout,
                check_finite=checks,
                progress=advance,
            )
        self._prepared(self._engine)

    @property
    def host_tensors(self) -> Mapping[str, Array]:
        """The host's tensor data, by variable."""
        return self._host.data

    @property
    def fetched(self) -> Mapping[str, Array]:
        """What `weightsToHost` fetched, by variable."""
        return self._host.fetched

    def weightsFromHost(self) -> None:
        """Loads the host's tensor data onto the device.

        Raises:
            popart_exception: The session is not prepared.
        """
        engine = self.prepared_engine("weightsFromHost")
        for name, array in self._host.data.items():
            engine.state.write(name, array)
            release(array)
        self._loaded = True

    def attach_weights(self, weights: Mapping[str, Array]) -> None:
        """Lets weights lie in the given memory, which steps only read; the rest is loaded.

        Args:
            weights: Arrays of the weights' types and shapes; other ids are ignored.

        Raises:
            popart_exception: The session is not prepared.
        """
        engine = self.prepared_engine("attach_weights")
        given = {name: array for name, array in weights.items() if name in engine.state}
        engine.attach(given)
        for name in self._host.data.keys() - given.keys():
            engine.state.write(name, self._host.data[name])
        self._loaded = True

    def weightsToHost(self) -> None:
        """Fetches all variables from the device, for `readWeights`.

        The host's tensor data, which `weightsFromHost` loads, stay as they are.

        Raises:
            popart_exception: The session is not prepared.
        """
        engine = self.prepared_engine("weightsToHost")
        self._host.fetched = {name: engine.state.read(name).copy() for name in engine.state.names}

    def readWeights(self, weightsIo: PyWeightsIO) -> None:
        """Copies what `weightsToHost` fetched into arrays; ids of no weight are ignored.

        Args:
            weightsIo: The arrays.

        Raises:
            popart_exception: An array does not fit.
        """
        self._host.read_fetched(weightsIo.weights)

    def writeWeights(self, weightsIo: PyWeightsIO) -> None:
        """Replaces the host's tensor data; `weightsFromHost` then loads them.

        Args:
            weightsIo: The arrays; ids of no weight are ignored.

        Raises:
            popart_exception: An array does not fit.
        """
        self._host.write(weightsIo.weights)

    def resetHostWeights(
        self,
        modelProtoOrFilename: Source,
        ignoreWeightsInModelWithoutCorrespondingHostWeight: bool = False,
    ) -> None:
        """Replaces the host's tensor data by a model's initializers.

        Args:
            modelProtoOrFilename: The model.
            ignoreWeightsInModelWithoutCorrespondingHostWeight: Whether initializers that this
                session does not have are passed over.

        Raises:
            popart_exception: An initializer is unknown or does not fit.
        """
        model = read(modelProtoOrFilename)
        self._host.reset(
            model,
            {
                name: self._reading.constant(name)
                for name, value in self._reading.constants.items()
                if value.const_value is not None
            },
            ignore_unknown=ignoreWeightsInModelWithoutCorrespondingHostWeight,
        )
        self._continue(model.metadata_props)
        self._loaded = False

    def modelToHost(self, path: str | PathLike[str]) -> None:
        """Fetches all variables and writes the model with them to a file.

        The file of a training session holds optimizer state too; a session made from the file
        continues exactly from the saved state. The host's tensor data become the fetched data.
        Weights are in typed fields (``float_data``); more than a gibibyte of them in
        ``<path>.data``, from where the host's tensor data are then mapped.

        Args:
            path: The file.

        Raises:
            popart_exception: The session is not prepared.
        """
        self.write_variables(self._model, path)

    def write_variables(self, model: ir.Model, path: str | PathLike[str]) -> None:
        """Does what `modelToHost` does, with another model than the session's.

        Args:
            model: The model; it stays as it is.
            path: The file.
        """
        state = self.prepared_engine("modelToHost").state
        written = clone(model)
        written.metadata_props.update(self.properties | self._saved_properties())
        last = {name: state.read(name) for name in self.saved_variables}
        mapped = write_model(written, last, Path(path))
        rest = {name: state.read(name).copy() for name in state.names if name not in mapped}
        self._host.adopt({name: (mapped | rest)[name] for name in state.names})

    @property
    def saved_variables(self) -> list[str]:
        """The ids of all that `modelToHost` writes: weights, statistics, optimizer state."""
        # Accumulators are zero whenever an update is complete, and counts start anew.
        return [n for n in self._host.data if not n.startswith((ACCUMULATOR, LOSS_SCALE_COUNT))]

    def run(self, stepio: StepIO, debugName: str = "") -> None:
        """Runs one step.

        Args:
            stepio: The data.
            debugName: Kept, for profilers.

        Raises:
            popart_exception: The session is not ready, or the data do not fit.
            popart_runtime_error: The step failed, or the model ended it by an abort; instances that
                train together all raise it then.
        """
        del debugName
        engine = self._ready()
        if self._options.syntheticDataMode is SyntheticDataMode.Off:
            require_step_io(stepio)
        inputs = {name: self._reading.spec(name) for name in engine.data_inputs}
        synthetic = self._options.syntheticDataMode is not SyntheticDataMode.Off
        if isinstance(stepio, PyStepIO) and not synthetic:
            factors = {
                "batches per step": self.dataFlow.batchesPerStep(),
                "accumulation": self._layout.accumulation,
                "replicas": self._layout.replicas,
            }
            outputs = elements(self.dataFlow, self._anchors, self._layout)
            stepio.check(inputs, factors, outputs, {*self._model.graph.initializers})
        port = StepPort(
            None if synthetic else self._noted(stepio),
            self.dataFlow,
            self._layout,
            inputs,
            self._anchors,
            {name: self._invent(spec) for name, spec in inputs.items()} if synthetic else {},
            self._watched,
        )
        started = time.perf_counter_ns()
        watch = AbortPort(port, list(self._aborts)) if self._aborts else None
        seen: Port = watch or port
        if self._prints:
            seen = PrintPort(seen, self._prints, self._reading, self._anchors)
        for _ in range(self.dataFlow.batchesPerStep()):
            self._updating()
            engine.update(seen)
            self._updated(engine)
            if watch is not None:
                counts, watch.counts = watch.counts, watch.cleared()
                require_no_abort(self._aborts, self._flags_of_all(engine, counts))
            port.next_batch()
        port.finish()
        self._cycles = time.perf_counter_ns() - started
        self._ran = True

    def initAnchorArrays(self) -> dict[str, Array]:
        """Arrays for the anchors of a step.

        Returns:
            Empty arrays by id, as `PyStepIO` takes them.
        """
        return {
            name: np.empty(
                array_shape(
                    spec, self.dataFlow.art(name), self.dataFlow.batchesPerStep(), self._layout
                ),
                spec.dtype.numpy(),
            )
            for name, spec in self._anchors.items()
        }

    def getCycleCount(self, id: str = "") -> int:  # noqa: A002 - published name
        """Nanoseconds of the last step, which stand for cycles.

        Args:
            id: Which part of it; there is only the whole.

        Returns:
            The number.

        Raises:
            popart_exception: The option is off, nothing has run, or there is no such part.
        """
        if not self._options.instrumentWithHardwareCycleCounter:
            raise popart_exception(
                "PD575",
                "SessionOption 'instrumentWithHardwareCycleCounter' must be set to true to count "
                "cycles",
            )
        if not self._ran:
            raise popart_exception("PD575", "Must call run before getCycleCount")
        if id:
            raise popart_exception(
                "PD575", f"there is no cycle count '{id}'", accepted="the whole step, ''"
            )
        return self._cycles

    def getInfo(self, id: str) -> TensorInfo:  # noqa: A002 - published name
        """Type and shape of a tensor.

        Args:
            id: The tensor.

        Returns:
            Its description.

        Raises:
            popart_exception: There is no such tensor, or its shape depends on values.
        """
        spec = self._reading.specs.get(id)
        if spec is None or spec.shape is None:
            raise popart_exception(
                "PD576", f"no tensor '{id}' of known shape in this session", value=id
            )
        return TensorInfo(DataType.from_onnx(int(spec.dtype)), spec.shape)

    def setRandomSeed(self, seedValue: int) -> None:
        """Restarts all random streams from a seed.

        Args:
            seedValue: The seed.

        Raises:
            popart_exception: The session is not prepared, and its model has random operators.
        """
        if not any(RANDOM in one.metadata_props for one in self._reading.model.graph.inputs):
            logger.warning("setRandomSeed has no effect: the model has no random operators")
            return
        engine = self.prepared_engine("setRandomSeed")
        engine.seed = int(seedValue)
        engine.micro_batches = 0

    @property
    def is_random(self) -> bool:
        """Whether the model has random operators."""
        return bool(len(self.prepared_engine("is_random").masks))

    def getRNGState(self) -> list[int]:
        """The state of all random streams.

        Returns:
            Numbers for `setRNGState`.

        Raises:
            popart_exception: The session is not prepared, or the option is off.
        """
        self._require_rng_option()
        engine = self.prepared_engine("getRNGState")
        return [engine.seed, engine.micro_batches]

    def setRNGState(self, rngState: list[int]) -> None:
        """Continues random streams from the state of another session.

        Args:
            rngState: The result of `getRNGState`.

        Raises:
            popart_exception: The session is not prepared, the option is off, or it is not a state.
        """
        self._require_rng_option()
        engine = self.prepared_engine("setRNGState")
        if len(rngState) != 2:  # noqa: PLR2004 - seed and position
            raise popart_exception(
                "PD575",
                "this is not a state of random streams",
                value=rngState,
                accepted="what getRNGState returned",
            )
        engine.seed, engine.micro_batches = (int(number) for number in rngState)

    def _require_rng_option(self) -> None:
        if not self._options.enableLoadAndOffloadRNGState:
            raise popart_exception(
                "PD575",
                "SessionOption 'enableLoadAndOffloadRNGState' must be set to true to read or set "
                "the state of random streams",
            )

    def getIr(self) -> onnx.ModelProto:
        """The graph that runs, as an ONNX model.

        Returns:
            A model of its own, with standard operators and those that copy gradients.
        """
        return save(self._reading.model)

    def getSerializedGraph(self) -> bytes:
        """The graph that runs, as the content of an ONNX file.

        Returns:
            The bytes of `getIr`.
        """
        return bytes(self.getIr().SerializeToString())

    def getSummaryReport(self, resetProfile: bool = True) -> str:
        """How many operators of each kind a step runs.

        Args:
            resetProfile: Kept.

        Returns:
            A table.
        """
        del resetProfile
        steps = self._reading.steps
        counts = Counter(f"{one.node.domain or 'ai.onnx'}.{one.node.op_type}" for one in steps)
        lines = [f"{count:6} {name}" for name, count in sorted(counts.items())]
        return "\n".join([f"{len(steps):6} operators in all", *lines])

    def _serializeIr(self, format: IrSerializationFormat) -> str:  # noqa: A002 - published name
        """The graph that runs, as JSON.

        Args:
            format: JSON is the only one.

        Returns:
            The text, without the content of weights.
        """
        del format
        proto = self.getIr()
        for tensor in proto.graph.initializer:
            tensor.ClearField("raw_data")
        return json.dumps(MessageToDict(proto))

    def getReport(self, resetProfile: bool = True) -> NoReturn:
        """Raises: a profile of an IPU's memory and cycles does not exist here.

        Args:
            resetProfile: Has no meaning.

        Raises:
            NotOnHostError: Always.
        """
        del resetProfile
        raise _no_report("getReport", "getSummaryReport() counts operators")

    def compileAndExport(self, filename: str) -> NoReturn:
        """Raises: there are no executables to keep.

        Args:
            filename: Has no meaning.

        Raises:
            NotOnHostError: Always.
        """
        del filename
        raise _no_report("compileAndExport", "compiling takes seconds: prepareDevice() does it")

    def loadExecutable(self, filename: str) -> NoReturn:
        """Raises: there are no executables to load.

        Args:
            filename: Has no meaning.

        Raises:
            NotOnHostError: Always.
        """
        del filename
        raise _no_report("loadExecutable", "prepareDevice() compiles the model in seconds")

    def _continue(self, _properties: Mapping[str, str]) -> None:
        """Takes over what a saved model holds beside tensors."""

    def _prepared(self, _engine: Engine) -> None:
        """Completes `prepareDevice`."""

    def prepared_engine(self, call: str) -> Engine:
        """The compiled model; an error that names the call where `prepareDevice` was not called."""
        if self._engine is None:
            raise popart_exception(
                "PD577",
                "Devicex::prepare() must be called before "
                f"Devicex::{_DEVICE_CALLS.get(call, call)} is called.",
                value=self.name,
                hint=f"session.prepareDevice() before session.{call}(...)",
            )
        return self._engine

    def _saved_properties(self) -> dict[str, str]:
        """Metadata that a saved model holds beside its weights."""
        return {}

    def _noted(self, stepio: StepIO) -> StepIO:
        """The data of a step, as the session takes them."""
        return stepio

    def _updating(self) -> None:
        """Called before each update of a step."""

    def _updated(self, engine: Engine) -> None:
        """Called after each update of a step."""

    def _flags_of_all(self, _engine: Engine, counts: Array) -> Array:
        """The counts of raised flags of all instances that take part, one row for each."""
        return counts[None]

    def _needs_weights(self) -> bool:
        return bool(self._host.data)

    def _ready(self) -> Engine:
        engine = self.prepared_engine("run")
        if self.deviceInfo.offline:
            raise popart_exception(
                "PD570",
                "Cannot run a session on an offline device",
                hint="start the job without --offline-mode, or acquire another device",
            )
        if self._needs_weights() and not self._loaded:
            raise popart_exception(
                "PD577",
                "Must call weightsFromHost before run as the model has initializers (but "
                "weightsFromHost has not been called since the session was made or "
                "resetHostWeights was called)",
            )
        return engine

    def _require_work(self) -> None:
        made = {name for step in self._reading.steps for name in step.writes}
        constants = set(self._reading.constants) - set(self._reading.model.graph.initializers)
        if not self._reading.states and (made | constants).isdisjoint(self._anchors):
            raise popart_runtime_error(
                "PD562",
                "All operations in the main graph were pruned, nothing to compute",
                hint="anchor a tensor that an operator makes",
            )

    def _anchor(self, name: str) -> Spec:
        if name not in self._reading.specs or failed_shape(self._reading, name):
            raise popart_exception(
                "PD576",
                f"Anchor tensor `{name}' not in Ir Tensors. It was not created, or was removed",
                value=name,
                hint=why_missing(self._reading, name),
            )
        return self._reading.specs[name]

    def _invent(self, spec: Spec) -> Array:
        dtype, shape = spec.dtype.numpy(), spec.shape or ()
        normal = self._options.syntheticDataMode is SyntheticDataMode.RandomNormal
        if normal and spec.dtype.is_floating_point():
            return np.random.default_rng(0).normal(size=shape).astype(dtype)
        return np.zeros(shape, dtype)


_DEVICE_CALLS = {
    "modelToHost": "weightsToHost(const map<TensorId, MutableVoidData> &)",
    "run": "run(const IStepIO &)",
    "setRandomSeed": "setRandomSeedFromHost(uint64_t)",
}
"""The names of a session's methods in PopART's messages."""


def _no_report(call: str, hint: str) -> NotOnHostError:
    return NotOnHostError("PD503", f"{call} cannot be expressed for a host", hint=hint)


@contextmanager
def _bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Shows on a terminal how many stages are done, for a job's first instance only.

    Yields:
        A function to call with the number of finished stages and of all stages.
    """
    first = not topology().instance_index
    with tqdm(
        desc=title, unit="stage", disable=None if first else True, file=sys.stderr, leave=False
    ) as shown:

        def advance(done: int, total: int) -> None:
            shown.total = total
            shown.n = done
            shown.refresh()

        yield advance
