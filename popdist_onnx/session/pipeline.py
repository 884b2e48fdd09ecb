"""Turns a model into the graph that a session runs: the passes in their order."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import onnx_ir as ir

from popdist_onnx.errors import popart_exception
from popdist_onnx.gradients.registry import differentiable
from popdist_onnx.graph.compat import clone, replace_uses
from popdist_onnx.graph.exporters import (
    freeze,
    freeze_constants,
    require_parameters,
    warn_of_lost_weights,
)
from popdist_onnx.graph.fold import RANDOM
from popdist_onnx.graph.load import load, read
from popdist_onnx.graph.names import GRADIENT, reserved_prefix
from popdist_onnx.graph.passes import sound
from popdist_onnx.graph.values import add_initializer, constant
from popdist_onnx.lowering.apply import lower, require_one_local_replica
from popdist_onnx.lowering.registry import DOMAIN
from popdist_onnx.optimizers.optimizer import require_optimizer
from popdist_onnx.runtime.engine import Layout
from popdist_onnx.runtime.graph_reader import COLLECTIVE
from popdist_onnx.session.arguments import check_host_options
from popdist_onnx.transforms.accumulate import accumulate
from popdist_onnx.transforms.autodiff import autodiff, gradients_of
from popdist_onnx.transforms.loss import set_loss
from popdist_onnx.transforms.optimizer import grow_updates, scale_loss

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_onnx.graph.load import Source
    from popdist_onnx.optimizers.optimizer import Optimizer
    from popdist_onnx.types.session_options import SessionOptions
    from popdist_onnx.types.tensor_info import InputShapeInfo


logger = logging.getLogger("popdist.onnx")

NORMALIZED = frozenset({"BatchNormalization", "Conv", "ConvTranspose"})
"""Operators that `popdist_onnx.transforms.statistics` is about."""

OF_GELU = frozenset({"Erf", "Tanh"})
"""Operators that `popdist_onnx.transforms.recognition` finds a Gelu by."""

ON_WHOLE_NUMBERS = frozenset(
    {
        *("ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger"),
        *("QLinearConv", "QLinearMatMul", "QuantizeLinear"),
    }
)
"""Operators that `popdist_onnx.transforms.quantization` is about, beside the runtime's own."""

_OF_RUNTIME = "com.microsoft"


def layout(options: SessionOptions) -> Layout:
    """The micro-batches per update that the options set.

    Raises:
        popart_exception: A number is not positive.
    """
    replicas = options.replicatedGraphCount if options.enableReplicatedGraphs else 1
    for name, number in (
        ("replicatedGraphCount", replicas),
        ("accumulationFactor", options.getAccumulationFactor()),
    ):
        if number < 1:
            raise popart_exception("PD572", f"{name} is a positive number", value=number)
    distributed = options.enableDistributedReplicatedGraphs
    return Layout(
        accumulation=options.getAccumulationFactor(),
        replicas=replicas,
        first_replica=options.globalReplicaOffset if distributed else 0,
    )


def shared_by_collectives(options: SessionOptions) -> bool:
    """Whether this process holds only some of the replicas that share every update."""
    local = layout(options).replicas
    return options.enableDistributedReplicatedGraphs and options.globalReplicationFactor > local


def training_graph(
    source: ir.Model,
    loss: str,
    optimizer: Optimizer,
    options: SessionOptions,
    anchors: Sequence[str] = (),
) -> ir.Model:
    """A graph of standard operators and gradient copies; without weights it has gradients only.

    ``anchors`` may name gradients of any tensors, which are then computed too.

    Raises:
        popart_exception: The model or an option is not supported.
    """
    with sound(source):
        return _training_graph(source, loss, optimizer, options, anchors)


def _training_graph(
    source: ir.Model,
    loss: str,
    optimizer: Optimizer,
    options: SessionOptions,
    anchors: Sequence[str],
) -> ir.Model:
    check_host_options(options, require_optimizer(optimizer))
    scaling = options.automaticLossScalingSettings
    if scaling.enabled:
        from popdist_onnx.transforms.loss_scaling import require_variable_loss_scale

        require_variable_loss_scale(optimizer, options)
    require_parameters(source)
    warn_of_lost_weights(source)
    model = _forward(source, loss, options, anchors)
    asked = _gradients_asked_for(model, anchors)
    autodiff(model, wanted=asked)
    if scaling.enabled:
        from popdist_onnx.transforms.loss_scaling import count_large_gradients

        count_large_gradients(model, scaling)
    how = layout(options)
    reduction = options.accumulationAndReplicationReductionType
    replicas = options.getGlobalReplicationFactor()
    if not gradients_of(model) and (asked or not model.graph.initializers):
        if not asked:
            logger.warning("the model has no weights and no gradient is anchored: nothing trains")
        scale_loss(model, optimizer, reduction, replicas)
        return lower(model, keep=_summed_by_runtime(options))
    if how.runs > 1:
        accumulate(model, how.runs, optimizer.accum_type)
    if options.hostWeightUpdate:
        from popdist_onnx.transforms.host_allreduce import update_on_host

        update_on_host(scale_loss(model, optimizer, reduction, replicas))
    else:
        grow_updates(model, optimizer, reduction, how.accumulation, replicas)
    lower(model, keep=_summed_by_runtime(options))
    if options.hostAllReduce or shared_by_collectives(options):
        from popdist_onnx.transforms.host_allreduce import insert_host_allreduce

        insert_host_allreduce(model)
    return model


def _forward(
    source: ir.Model, loss: str, options: SessionOptions, anchors: Sequence[str]
) -> ir.Model:
    """The forward half with its loss, of operators that gradients flow through."""
    if is_quantized(source):
        from popdist_onnx.transforms import quantization

        quantization.require_known_kernels(source)
        quantization.warn_of_stored_integers(source)
        model = quantization.pair_quantization(_loaded(_held(source, anchors), options))
        _without_state(model, loss, anchors)
        return quantization.require_trainable_quantization(set_loss(model, loss))
    return set_loss(_without_state(_loaded(_held(source, anchors), options), loss, anchors), loss)


def is_quantized(model: ir.Model) -> bool:
    """Whether a model may have operators on whole numbers."""
    return any(
        node.domain == _OF_RUNTIME or node.op_type in ON_WHOLE_NUMBERS
        for node in model.graph.all_nodes()
    )


def _without_state(model: ir.Model, loss: str, anchors: Sequence[str]) -> ir.Model:
    """Lowers a model; random numbers become its inputs, and running statistics its states."""
    lower(model, keep=differentiable(DOMAIN))
    kinds = _kinds(model)
    if kinds & OF_GELU:
        from popdist_onnx.transforms.recognition import recognise_gelu

        recognise_gelu(model, {loss, *(name.removeprefix(GRADIENT) for name in anchors)})
    if kinds & RANDOM:
        from popdist_onnx.transforms.randomness import random_inputs

        random_inputs(model)
    if kinds & NORMALIZED:
        from popdist_onnx.transforms.statistics import running_statistics, warn_of_inference

        warn_of_inference(model)
        running_statistics(model)
    return model


def _kinds(model: ir.Model) -> set[str]:
    return {node.op_type for node in model.graph.all_nodes()}


def _held(source: ir.Model, anchors: Sequence[str]) -> ir.Model:
    """Constants whose gradients are anchored become frozen weights, which are not folded."""
    asked = {name.removeprefix(GRADIENT) for name in anchors if name.startswith(GRADIENT)}

    def constants(graph: ir.Graph) -> list[ir.Node]:
        return [n for n in graph if n.op_type == "Constant" and n.outputs[0].name in asked]

    if not constants(source.graph):
        return source
    model = clone(source)
    for node in constants(model.graph):
        (old,) = node.outputs
        if (content := constant(old)) is None:
            continue
        model.graph.remove(node)
        replace_uses(model.graph, old, add_initializer(model.graph, str(old.name), content))
        freeze(model, [str(old.name)])
    return model


def _gradients_asked_for(model: ir.Model, anchors: Sequence[str]) -> list[str]:
    """The tensors whose gradients are anchored, as far as the model has them."""
    graph = model.graph
    known = {str(value.name) for value in graph.inputs} | set(graph.initializers)
    known |= {str(value.name) for node in graph for value in node.outputs}
    asked = [name.removeprefix(GRADIENT) for name in anchors if name.startswith(GRADIENT)]
    return [name for name in asked if name in known]


def inference_graph(source: ir.Model, options: SessionOptions) -> ir.Model:
    """A graph of standard operators that computes a model of known input shapes."""
    with sound(source):
        model = lower(_loaded(source, options), keep=_summed_by_runtime(options))
        kinds = _kinds(model)
        if kinds & RANDOM:
            from popdist_onnx.transforms.randomness import random_inputs

            random_inputs(model, training=False)
        if kinds & NORMALIZED:
            from popdist_onnx.transforms.statistics import batch_statistics

            batch_statistics(model)
        return model


def _summed_by_runtime(options: SessionOptions) -> frozenset[str]:
    """The operators that the runtime carries out between stages, because others take part."""
    return frozenset({COLLECTIVE} if shared_by_collectives(options) else ())


def _loaded(source: ir.Model, options: SessionOptions) -> ir.Model:
    model = load(source)
    require_one_local_replica(model.graph, layout(options).replicas)
    if options.groupNormStridedChannelGrouping:
        from popdist_onnx.lowering.layers import stride_groups

        stride_groups(model.graph)
    return model


def read_with_shapes(source: Source, shapes: InputShapeInfo | None) -> ir.Model:
    """Reads a copy of a model and fixes the input shapes that the model leaves open.

    Raises:
        popart_exception: A shape is still open, contradicts the model, or belongs to no input.
    """
    model = read(source)
    with sound(model):
        freeze_constants(model)
        _fix_shapes(model.graph, shapes)
    return model


def _fix_shapes(graph: ir.Graph, shapes: InputShapeInfo | None) -> None:
    inputs = {str(value.name): value for value in graph.inputs if not value.is_initializer()}
    given = [] if shapes is None else shapes.getAllTensorIds()
    for name in given:
        if name not in inputs:
            raise popart_exception(
                "PD573",
                f"InputShapeInfo has tensor {name}, which is not an input of the model",
                accepted=", ".join(inputs) or "the model has no inputs",
            )
    for name, value in inputs.items():
        if (prefix := reserved_prefix(name)) is not None:
            raise popart_exception(
                "PD504", f"the prefix {prefix} of input {name} is reserved", value=name
            )
        if shapes is not None and shapes.has(name):
            _fix(value, shapes)
        _require_known(value)
    if given:
        _forget_open_shapes(graph)


def _fix(value: ir.Value, shapes: InputShapeInfo) -> None:
    info = shapes.get(str(value.name))
    have = None if value.shape is None else [_length(dim) for dim in value.shape]
    dtype = value.dtype or ir.DataType.UNDEFINED
    fits = have is None or (
        len(have) == info.rank()
        and all(a in {None, b} for a, b in zip(have, info.shape(), strict=True))
    )
    if not fits or dtype not in {ir.DataType.UNDEFINED, info.dataType().onnx}:
        raise popart_exception(
            "PD573",
            f"InputShapeInfo contradicts the model's input {value.name}",
            value=repr(info),
            accepted=f"{dtype.name} {have or []}",
        )
    value.type = ir.TensorType(ir.DataType(info.dataType().onnx))
    value.shape = ir.Shape(info.shape())


def _length(dim: int | ir.SymbolicDim) -> int | None:
    return dim if isinstance(dim, int) else None


def _forget_open_shapes(graph: ir.Graph) -> None:
    """Removes the shapes of all other tensors, so that inference computes them anew."""
    for value in (one for node in graph for one in node.outputs):
        if not value.is_graph_output():
            value.type, value.shape = None, None
        elif value.shape is not None:
            value.shape = ir.Shape([_length(dim) for dim in value.shape])


def _require_known(value: ir.Value) -> None:
    if not isinstance(value.type, ir.TensorType):
        raise popart_exception(
            "PD573",
            f"input {value.name} is not a tensor",
            value=_KINDS.get(type(value.type).__name__, "of unknown type"),
            accepted="inputs that are tensors; a batch has one shape",
            hint="give the model an input for each tensor of the sequence",
        )
    if value.shape is None or any(_length(dim) is None for dim in value.shape):
        raise popart_exception(
            "PD573",
            f"the shape of input {value.name} is not known",
            value=[dim if isinstance(dim, int) else dim.value or "?" for dim in value.shape or ()],
            hint=f'inputShapeInfo.add("{value.name}", TensorInfo("FLOAT", [...])), '
            "with the number of samples of a micro-batch",
        )


_KINDS = {
    "OptionalType": "optional_type",
    "SequenceType": "sequence_type",
    "SparseTensorType": "sparse_tensor_type",
}
"""The names in a file of types of inputs that are not tensors."""
