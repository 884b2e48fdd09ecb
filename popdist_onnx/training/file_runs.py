"""Runs of an exported file, as it trains but without dropout: outputs and gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.load import load, read
from popdist_onnx.graph.names import GRADIENT
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.lowering.apply import lower
from popdist_onnx.optimizers.sgd import SGD
from popdist_onnx.runtime.compiled import Execution, make_session
from popdist_onnx.session.devices import DeviceManager
from popdist_onnx.session.pipeline import read_with_shapes, training_graph
from popdist_onnx.session.step_io import PyStepIO
from popdist_onnx.session.training import TrainingSession
from popdist_onnx.session.weights import PyWeightsIO
from popdist_onnx.training.module_runs import to_array
from popdist_onnx.transforms.autodiff import gradients_of
from popdist_onnx.transforms.statistics import running_statistics
from popdist_onnx.types.data_flow import AnchorReturnType, DataFlow
from popdist_onnx.types.session_options import SessionOptions
from popdist_onnx.types.tensor_info import DataType, InputShapeInfo, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import onnx
    import torch

    from popdist_onnx.training.module_runs import Array, Gradients

_LOSS = "popdist.check/loss"


def _without_dropout(proto: onnx.ModelProto) -> ir.Model:
    """The model of a file, which drops nothing."""
    model = read(proto)
    for node in model.graph:
        if node.op_type == "Dropout":
            for index in range(1, len(node.inputs)):
                node.replace_input_with(index, None)
    return model


def file_of(
    proto: onnx.ModelProto,
    arguments: Sequence[Any],
    extra: Sequence[str],
    weights: Collection[str] = (),
) -> Callable[..., dict[str, Array]]:
    """What runs a file without dropout, for inputs of these shapes; also for further values.

    A second argument of the function is a factor of the weights.
    """
    still = _without_dropout(proto)
    inputs, values = _names(still), ir.convenience.create_value_mapping(still.graph)
    outputs = dict.fromkeys([*still.graph.outputs, *(values[name] for name in extra)])
    still.graph.outputs[:] = list(outputs)
    # What trains is compared: the model in the working opset, with its rewritten nodes.
    model = lower(load(read_with_shapes(still, _shapes(still, arguments))))
    running_statistics(model)
    contents = {}
    for name in weights:
        value = model.graph.initializers.pop(name, None)
        if value is not None and value.const_value is not None:
            contents[name] = value.const_value.numpy()
            value.const_value = None
            model.graph.inputs.append(value)
    # Folding would run batch statistics of weights, which are constants here, in a wrong way.
    session = make_session(ir.to_proto(model).SerializeToString(), Execution(optimise=False))
    fed = {one.name for one in session.get_inputs()}
    names = [one.name for one in session.get_outputs()]

    def run(given: Sequence[Any], factor: float = 1) -> dict[str, Array]:
        pairs = zip(inputs, given, strict=False)
        feeds = {name: to_array(one) for name, one in pairs if name in fed}
        feeds |= {name: _scaled(one, factor) for name, one in contents.items()}
        return dict(zip(names, session.run(names, feeds), strict=True))

    return run


def _scaled(array: Array, factor: float) -> Array:
    return array if factor == 1 else array * array.dtype.type(factor)


def _names(model: ir.Model) -> list[str]:
    return [str(value.name) for value in model.graph.inputs]


def _shapes(model: ir.Model, arguments: Sequence[Any]) -> InputShapeInfo:
    shapes = InputShapeInfo()
    for value, one in zip(model.graph.inputs, arguments, strict=False):
        kind = DataType.from_onnx(int(value.dtype or 0))
        shapes.add(str(value.name), TensorInfo(kind, list(one.shape)))
    return shapes


def gradients_of_file(
    proto: onnx.ModelProto,
    given: Sequence[torch.Tensor],
    factors: Sequence[np.ndarray[Any, Any]],
    weights: set[str],
) -> Callable[[Sequence[torch.Tensor], float], Gradients]:
    """A function of inputs and a factor of weights: gradients of the outputs' sum with factors."""
    still = _without_dropout(proto)
    shapes, tape = _shapes(still, given), Tape(still.graph)
    parts = [
        tape.ReduceSum(tape.Mul(output, np.asarray(factor, np.float32)), keepdims=0)
        for output, factor in zip(still.graph.outputs, factors, strict=False)
        if output.dtype == ir.DataType.FLOAT
    ]
    if not parts:
        return lambda *_: {}
    tape.many("Sum", [_LOSS], *parts)
    try:
        return _by_session(still, shapes, weights, weights)
    except popart_exception as error:
        if error.code != "PD576":
            raise
    # Some have no gradient at all: the others are asked for.
    optimizer = SGD({"defaultLearningRate": (0.0, False)})
    graph = training_graph(read_with_shapes(still, shapes), _LOSS, optimizer, SessionOptions())
    return _by_session(still, shapes, weights & {*gradients_of(graph)}, weights)


def _by_session(
    model: ir.Model,
    shapes: InputShapeInfo,
    weights: Collection[str],
    scaled: Collection[str],
) -> Callable[[Sequence[torch.Tensor], float], Gradients]:
    """Gives gradients of some weights; a factor changes those of ``scaled``."""
    if not weights:
        return lambda *_: {}
    session = TrainingSession(
        model,
        DataFlow(1, {GRADIENT + name: AnchorReturnType("All") for name in sorted(weights)}),
        _LOSS,
        SGD({"defaultLearningRate": (0.0, False)}),
        DeviceManager().createCpuDevice(),
        inputShapeInfo=shapes,
        name="comparison of gradients",
    )
    session.is_recorded = False  # no training of the program
    session.prepareDevice()
    session.weightsFromHost()
    arrays = session.initAnchorArrays()
    inputs = _names(model)
    contents = {name: one.copy() for name, one in session.host_tensors.items() if name in scaled}

    def gradients(given: Sequence[torch.Tensor], factor: float) -> Gradients:
        session.writeWeights(PyWeightsIO({n: _scaled(one, factor) for n, one in contents.items()}))
        session.weightsFromHost()
        fed = {name: one.detach().numpy() for name, one in zip(inputs, given, strict=False)}
        session.run(PyStepIO(fed, arrays))
        return {name.removeprefix(GRADIENT): one.astype("f8") for name, one in arrays.items()}

    return gradients
