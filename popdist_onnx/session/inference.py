"""`InferenceSession`: computes a model's tensors without training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.large_files import INLINE_UP_TO
from popdist_onnx.runtime.compiled import default_threads
from popdist_onnx.runtime.graph_reader import read
from popdist_onnx.runtime.scatters import add_in_order
from popdist_onnx.session.arguments import options_of, require_data_flow
from popdist_onnx.session.pipeline import inference_graph, layout, read_with_shapes
from popdist_onnx.session.session import Session
from popdist_onnx.transforms.autodiff import weights_and_statistics

if TYPE_CHECKING:
    from popdist_onnx.graph.load import Source
    from popdist_onnx.runtime.engine import Engine
    from popdist_onnx.session.devices import DeviceInfo
    from popdist_onnx.types.data_flow import DataFlow
    from popdist_onnx.types.enums import Patterns
    from popdist_onnx.types.session_options import SessionOptions
    from popdist_onnx.types.tensor_info import InputShapeInfo


class InferenceSession(Session):
    """A session that computes a model's tensors.

    With ``constantWeights``, the default, weights are part of what is compiled.

    Args:
        fnModel: The model: a file's name or content.
        dataFlow: Batches per step, and the tensors to return.
        deviceInfo: The device.
        inputShapeInfo: Shapes of inputs that the model leaves open.
        patterns: Kept; ONNX Runtime optimises by its own rules.
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
        model = read_with_shapes(fnModel, inputShapeInfo)
        if not dataFlow.nAnchors():
            raise popart_exception(
                "PD572", "User must specify an anchor tensor when doing inference.", value=name
            )
        if options.getAccumulationFactor() > 1:
            raise popart_exception(
                "PD572", "Gradient Accumulation only available when training", value=name
            )
        if options.automaticLossScalingSettings.enabled:
            raise popart_exception(
                "PD581",
                "[AutomaticLossScale transform] Only compatible when doing training",
                value=name,
            )
        graph = inference_graph(model, options)
        if deviceInfo is None or deviceInfo.runs_on_processor:
            add_in_order(graph, default_threads())
        weights = weights_and_statistics(graph.graph)
        self._fixed = options.constantWeights
        # Constants of ONNX Runtime's graph, unless they are too many for one message.
        total = sum(one.const_value.nbytes for one in weights if one.const_value is not None)
        compiled = self._fixed and total <= INLINE_UP_TO
        super().__init__(
            model,
            read(graph, () if compiled else [str(value.name) for value in weights]),
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
        if self._fixed:
            self.weightsFromHost()
