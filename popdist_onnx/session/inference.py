"""`InferenceSession`: a model run as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.errors import popart_exception
from popdist_onnx.runtime.graph_reader import read
from popdist_onnx.session.arguments import options_of, require_data_flow
from popdist_onnx.session.pipeline import inference_graph, layout, read_with_shapes
from popdist_onnx.session.session import Session
from popdist_onnx.transforms.autodiff import variables

if TYPE_CHECKING:
    from popdist_onnx.graph.load import Source
    from popdist_onnx.runtime.engine import Engine
    from popdist_onnx.session.devices import DeviceInfo
    from popdist_onnx.types import DataFlow, InputShapeInfo, Patterns, SessionOptions


class InferenceSession(Session):
    """A session that computes a model's tensors.

    With ``constantWeights``, the default, weights are part of what is compiled.

    Args:
        fnModel: The model: a file's name or content.
        dataFlow: Batches per step, and what comes back.
        deviceInfo: The device.
        inputShapeInfo: Shapes of inputs that the model leaves open.
        patterns: Kept; ONNX Runtime optimises by rules of its own.
        userOptions: Options.
        name: For messages.

    Raises:
        popart_exception: The model or an option cannot be used.
    """

    def __init__(
        self,
        fnModel: Source,
        dataFlow: DataFlow,
        deviceInfo: DeviceInfo | None,
        inputShapeInfo: InputShapeInfo | None = None,
        patterns: Patterns | None = None,
        userOptions: SessionOptions | None = None,
        name: str = "inference",
    ) -> None:
        options = options_of(userOptions)
        require_data_flow(dataFlow)
        proto = read_with_shapes(fnModel, inputShapeInfo)
        if options.getAccumulationFactor() > 1:
            raise popart_exception(
                "PD572", "Gradient Accumulation only available when training", value=name
            )
        graph = inference_graph(proto, options)
        kept = [str(value.name) for value in variables(graph.graph)]
        self._fixed = options.constantWeights
        super().__init__(
            proto,
            read(graph, () if self._fixed else kept),
            dataFlow,
            deviceInfo,
            layout(options),
            options,
            patterns,
            name,
        )

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
            popart_exception: Weights are constant, or an initializer is unknown or does not fit.
        """
        if self._fixed:
            raise popart_exception(
                "PD574",
                "Cannot call resetHostWeights when constantWeights is set",
                hint="userOptions.constantWeights = False",
            )
        super().resetHostWeights(
            modelProtoOrFilename, ignoreWeightsInModelWithoutCorrespondingHostWeight
        )

    def _prepared(self, _engine: Engine) -> None:
        # Constant weights are on the device already.
        self._loaded = self._fixed
