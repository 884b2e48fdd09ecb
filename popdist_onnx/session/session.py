"""What training and inference sessions have in common."""

from __future__ import annotations

import difflib
import time
from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.errors import popart_exception
from popdist_onnx.runtime.engine import Engine, Layout
from popdist_onnx.runtime.execution import Execution, default_threads
from popdist_onnx.session.anchors import StepPort, array_shape, elements
from popdist_onnx.session.arguments import require_step_io
from popdist_onnx.session.devices import DeviceInfo, require
from popdist_onnx.session.progress import bar
from popdist_onnx.session.random_streams import RandomStreams
from popdist_onnx.session.reports import Reports
from popdist_onnx.session.step_io import PyStepIO
from popdist_onnx.session.variables import Variables
from popdist_onnx.session.weights import HostTensors
from popdist_onnx.types import (
    DataFlow,
    DataType,
    Patterns,
    SessionOptions,
    SyntheticDataMode,
    TensorInfo,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    import onnx

    from popdist_onnx.runtime.cells import Array
    from popdist_onnx.runtime.reading import Reading, Spec
    from popdist_onnx.session.step_io import StepIO


class Session(Variables, RandomStreams, Reports):
    """A model with its data flow, on a device.

    Args:
        proto: The model as the program gave it, with known input shapes.
        reading: What is to be run.
        dataFlow: Batches per step, and anchors.
        deviceInfo: The device.
        layout: Micro-batches per update.
        userOptions: Options.
        patterns: Kept; ONNX Runtime optimises by rules of its own.
        name: For messages.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
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
        self._proto = proto
        self._reading = reading
        self._layout = layout
        self._anchors = {anchor: self._anchor(anchor) for anchor in dataFlow.anchors()}
        self._host = HostTensors(reading)
        self._engine: Engine | None = None
        self._loaded = False
        self._ran = False
        self._cycles = 0

    def prepareDevice(self, loadEngine: bool = True) -> None:
        """Compiles the model for the device, with a progress bar where somebody watches.

        Args:
            loadEngine: Kept; there is nothing to load beyond what is compiled.

        Raises:
            popart_runtime_error: Nothing is to be computed.
            poplar_exception: ONNX Runtime does not take the model.
        """
        del loadEngine
        checks = self._options.enableFloatingPointChecks
        with bar(f"Compiling {self.name}") as advance:
            self._engine = Engine(
                self._reading,
                execution=Execution(providers=self.deviceInfo.providers, threads=default_threads()),
                anchors=list(self._anchors),
                layout=self._layout,
                check_finite=checks,
                progress=advance,
            )
        self._prepared(self._engine)

    def run(self, stepio: StepIO, debugName: str = "") -> None:
        """Runs one step.

        Args:
            stepio: The data.
            debugName: Kept, for profilers.

        Raises:
            popart_exception: The session is not ready, or the data do not fit.
            popart_runtime_error: The step failed.
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
            stepio.check(inputs, factors, outputs)
        port = StepPort(
            None if synthetic else stepio,
            self.dataFlow,
            self._layout,
            inputs,
            self._anchors,
            {name: self._invent(spec) for name, spec in inputs.items()} if synthetic else {},
        )
        started = time.perf_counter_ns()
        for _ in range(self.dataFlow.batchesPerStep()):
            engine.update(port)
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

    def _prepared(self, _engine: Engine) -> None:
        """Completes `prepareDevice`."""

    def _needs_weights(self) -> bool:
        return bool(self._host.data)

    def _ready(self) -> Engine:
        engine = self._require_prepared("run")
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

    def _anchor(self, name: str) -> Spec:
        if name not in self._reading.specs:
            raise popart_exception(
                "PD576",
                f"Anchor tensor `{name}' not in Ir Tensors. It was not created, or was removed",
                value=name,
                hint=_closest(name, self._reading.specs),
            )
        return self._reading.specs[name]

    def _invent(self, spec: Spec) -> Array:
        dtype, shape = spec.dtype.numpy(), spec.shape or ()
        normal = self._options.syntheticDataMode is SyntheticDataMode.RandomNormal
        if normal and spec.dtype.is_floating_point():
            return np.random.default_rng(0).normal(size=shape).astype(dtype)
        return np.zeros(shape, dtype)


def _closest(name: str, known: Collection[str]) -> str | None:
    near = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(near)}?" if near else None
