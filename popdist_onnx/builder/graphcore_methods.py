"""Methods of ``ai.graphcore``: PopART's own operators."""

from __future__ import annotations

from functools import cache
from typing import Any

import onnx_ir as ir

from popdist_onnx.builder.attributes import Kind
from popdist_onnx.builder.methods import Method, OperatorSet, Parameter, make
from popdist_onnx.errors import ArgumentError
from popdist_onnx.graph.compat import replace_inside
from popdist_onnx.lowering.registry import DOMAIN
from popdist_onnx.types.enums import InitType, ReductionType, ScatterReduction

# What some operators of ``ai.graphcore`` make of their arguments before a node is written.


def require_init_type(inputs: list[Any], bound: dict[str, Any]) -> None:
    """Checks what ``init`` fills with, and takes a name in the place of the batch axis.

    Raises:
        ArgumentError: It is not an `InitType`.
    """
    del inputs
    if not isinstance(bound["init_type"], InitType):
        raise ArgumentError(
            "PD501", "init takes an InitType", value=bound["init_type"], accepted="NoInit, Zero"
        )
    if not isinstance(bound["batch_axis"], int):
        # The published method has a form without the axis.
        bound["debugContext"], bound["batch_axis"] = bound["batch_axis"], -1


def name_reduction(inputs: list[Any], bound: dict[str, Any]) -> None:
    """Puts the name of a reduction in the place of the member.

    Raises:
        ArgumentError: It is not a `ScatterReduction`.
    """
    del inputs
    reduction = bound["reduction"]
    if not isinstance(reduction, ScatterReduction):
        raise ArgumentError(
            "PD501",
            "scatterreduce takes a ScatterReduction",
            value=reduction,
            accepted=", ".join(one.name for one in ScatterReduction),
        )
    bound["reduction"] = reduction.value


FROM_PARENT = "popdist.from_parent"
"""Key of a sub-graph's meta data: where tensors of the graph around stand among its inputs."""


def bind_arguments(inputs: list[Any], bound: dict[str, Any]) -> None:
    """Makes inputs of the tensors that a called graph takes from around, if asked for it."""
    callee = getattr(bound["callee"], "graph", None)
    if not isinstance(callee, ir.Graph):
        return
    taken: list[tuple[int, ir.Value]] = callee.meta.get(FROM_PARENT, [])
    formals = [value for value in callee.inputs if value.name not in callee.initializers]
    if not taken or len(inputs) != len(formals) + len(taken):
        return
    del callee.meta[FROM_PARENT]
    for before, (place, value) in enumerate(taken):
        formal = ir.Value(
            name=f"{callee.name}/{value.name}/{before}", shape=value.shape, type=value.type
        )
        callee.inputs.insert(place + before, formal)
        replace_inside(callee, value, formal)


def flatten_convolutions(inputs: list[Any], bound: dict[str, Any]) -> None:
    """Writes lists of several convolutions one after the other, as the node's attributes hold them.

    Args:
        inputs: A list of ids for each convolution, changed in place.
        bound: Its arguments by name, changed in place.

    Raises:
        ArgumentError: There is not one list for each convolution.
    """
    groups = list(inputs)
    if not all(isinstance(one, (list, tuple)) for one in groups):
        raise ArgumentError(
            "PD501",
            "multiconv takes a list of lists of ids, one list per convolution",
            value=groups,
            hint="write [[x0, w0], [x1, w1, b1]]",
        )
    counts = [len(group) for group in groups]
    for wrong, sentence in (
        (min(counts, default=2) < 2, "must have at least two inputs - data and weights"),  # noqa: PLR2004
        (max(counts, default=2) > 3, "can have at most three inputs - data, weights, and bias"),  # noqa: PLR2004
    ):
        if wrong:
            raise ArgumentError("PD501", f"Each convolution of multiconv {sentence}", value=groups)
    for name in ("dilations", "inDilations", "pads", "outPads", "strides"):
        per_convolution = bound[name]
        if any(per_convolution) and len(per_convolution) != len(groups):
            raise ArgumentError(
                "PD501",
                f"number of {name} parameter sets ({len(per_convolution)}) does not match the "
                f"number of input sets ({len(groups)})",
                value=per_convolution,
            )
        if not all(isinstance(one, (list, tuple)) for one in per_convolution) or (
            any(per_convolution) and not all(per_convolution)
        ):
            raise ArgumentError(
                "PD501",
                f"multiconv takes for {name} a list of numbers for each convolution, or nothing",
                value=per_convolution,
            )
        bound[name] = [number for one in per_convolution for number in one]
    inputs[:] = [tensor for group in groups for tensor in group]
    bound["inputCounts"] = [len(group) for group in groups]
    bound["num_outputs"] = len(groups)


_ANY = 1 << 30

_REDUCTION = Parameter("reduction", Kind.REDUCTION, ReductionType.Mean)
_AXES_AND_SIZES = (Parameter("axes", Kind.INTS), Parameter("sizes", Kind.INTS))
_NO_OVERLAP = Parameter("noOverlap", Kind.FLAG, 0)
_SCATTER = (
    Parameter("axis_size", Kind.INT),
    Parameter("axis", Kind.INT, -1),
    Parameter("reduction", Kind.STRING, ScatterReduction.Sum),
    Parameter("enable_index_broadcast", Kind.INT, 1),
)


def _method(
    name: str,
    op_type: str,
    inputs: int | tuple[int, int],
    summary: str,
    *parameters: Parameter,
    outputs: int | tuple[int, int] = 1,
    prepare: Any = None,
    outputs_follow: bool = False,
    takes_id: bool = False,
) -> Method:
    least_most = (inputs, inputs) if isinstance(inputs, int) else inputs
    made = (outputs, outputs) if isinstance(outputs, int) else outputs
    return Method(
        name,
        op_type,
        DOMAIN,
        1,
        least_most,
        made,
        parameters,
        summary,
        prepare,
        outputs_follow=outputs_follow,
        takes_id=takes_id,
    )


METHODS = (
    _method("abort", "Abort", (0, 1), "Ends the run; with a condition, if not zero.", outputs=0),
    _method("atan2", "Atan2", 2, "The angle of the point (x, y); inputs are [y, x]."),
    _method(
        "bucketize",
        "Bucketize",
        2,
        "The number of boundaries before each element; inputs are [x, boundaries].",
        Parameter("right", Kind.INT, 0),
    ),
    _method("bitwiseand", "BitwiseAnd", 2, "And of each bit."),
    _method("bitwisenot", "BitwiseNot", 1, "Not of each bit."),
    _method("bitwiseor", "BitwiseOr", 2, "Or of each bit."),
    _method("bitwisexnor", "BitwiseXnor", 2, "Ones where the bits agree."),
    _method("bitwisexor", "BitwiseXor", 2, "Ones where the bits differ."),
    _method(
        "call",
        "Call",
        (0, _ANY),
        "Calls a sub-graph; its inputs are bound in their order.",
        Parameter("callee", Kind.GRAPH),
        outputs=(1, _ANY),
        prepare=bind_arguments,
    ),
    _method(
        "ctcbeamsearchdecoder",
        "CtcBeamSearchDecoder",
        2,
        "The likeliest labels of log probabilities [T, N, C] with lengths [N]: log probabilities"
        " [N, P], lengths [N, P] and labels [N, P, T] of P paths.",
        Parameter("blank", Kind.INT, 0),
        Parameter("beamWidth", Kind.INT, 100, attribute_name="beam_width"),
        Parameter("topPaths", Kind.INT, 1, attribute_name="top_paths"),
        outputs=3,
    ),
    _method(
        "ctcloss",
        "Ctc",
        4,
        "CTC loss of log probabilities [T, N, C], targets [N, S], input lengths [N] and target"
        " lengths [N].",
        _REDUCTION,
        Parameter("blank", Kind.INT, 0),
        Parameter("outDataType", Kind.DTYPE_NAME, "UNDEFINED"),
        Parameter("zeroInfinity", Kind.FLAG, default=False),
    ),
    _method(
        "depthtospace",
        "DepthToSpace",
        1,
        "Moves channels into space.",
        Parameter("blocksize", Kind.INT),
        Parameter("mode", Kind.STRING, "DCR"),
    ),
    _method("detach", "Detach", 1, "The input, through which no gradient passes."),
    _method(
        "dynamicadd",
        "DynamicAdd",
        3,
        "Adds a slice at an offset; inputs are [tensor, offset, slice].",
        *_AXES_AND_SIZES,
    ),
    _method(
        "dynamicslice",
        "DynamicSlice",
        (2, 3),
        "A slice at an offset; inputs are [tensor, offset] and a tensor of the result's shape.",
        *_AXES_AND_SIZES,
        _NO_OVERLAP,
    ),
    _method(
        "dynamicupdate",
        "DynamicUpdate",
        3,
        "Replaces a slice at an offset; inputs are [tensor, offset, slice].",
        *_AXES_AND_SIZES,
        _NO_OVERLAP,
    ),
    _method(
        "dynamiczero",
        "DynamicZero",
        2,
        "Clears a slice at an offset; inputs are [tensor, offset].",
        *_AXES_AND_SIZES,
    ),
    _method("expm1", "Expm1", 1, "exp(x) - 1 without cancellation."),
    _method("fmod", "Fmod", 2, "Rest of a division rounded toward zero."),
    _method("gelu", "Gelu", 1, "Gelu, in its tanh approximation."),
    _method("geluerf", "GeluErf", 1, "Gelu, exact."),
    _method(
        "groupedgather",
        "GroupedGather",
        2,
        "Gathers of [x, indices] in groups, their first dimension; the axis counts with it.",
        Parameter("axis", Kind.INT, 0),
        Parameter("group_size", Kind.INT, 1),
    ),
    _method(
        "groupedscatterreduce",
        "ScatterReduce",
        (2, 3),
        "`scatterreduce` in groups, their first dimension; the axis counts with it.",
        *_SCATTER[:3],
        Parameter("group_size", Kind.INT, 1),
        _SCATTER[3],
        prepare=name_reduction,
    ),
    _method(
        "groupnormalization",
        "GroupNormalization",
        3,
        "Normalises groups of channels; inputs are [x, scale, bias], outputs y, mean, invStd.",
        Parameter("num_groups", Kind.INT),
        Parameter("epsilon", Kind.FLOAT, 1e-5),
        outputs=3,
    ),
    _method("identityloss", "IdentityLoss", 1, "The input, reduced to a loss.", _REDUCTION),
    _method(
        "incrementmod",
        "IncrementMod",
        1,
        "(x + increment) mod modulus, with the sign of the sum.",
        Parameter("increment", Kind.FLOAT),
        Parameter("modulus", Kind.FLOAT),
    ),
    _method(
        "init",
        "Init",
        0,
        "A tensor of zeros (or of anything).",
        Parameter("shape", Kind.INTS),
        Parameter("data_type", Kind.DTYPE),
        Parameter("init_type", Kind.INT),
        Parameter("batch_axis", Kind.INT, -1),
        prepare=require_init_type,
    ),
    _method(
        "l1loss",
        "L1",
        1,
        "lambda * |x|, reduced to a loss.",
        Parameter("lambda_", Kind.FLOAT, attribute_name="lambda"),
        _REDUCTION,
    ),
    _method("log1p", "Log1p", 1, "log(1 + x) without loss at small x."),
    _method(
        "lstm",
        "LSTM",
        (2, 4),
        "LSTM of [x, weights, biases, initial state]; outputs are the sequence and the cell state.",
        Parameter("outputFullSequence", Kind.INT, 1),
        outputs=2,
    ),
    _method(
        "multiconv",
        "MultiConv",
        (1, _ANY),
        "Several convolutions; the inputs are a list of [x, weights] or [x, weights, bias].",
        Parameter("dilations", Kind.INTS, []),
        Parameter("inDilations", Kind.INTS, []),
        Parameter("pads", Kind.INTS, []),
        Parameter("outPads", Kind.INTS, []),
        Parameter("strides", Kind.INTS, []),
        Parameter("availableMemoryProportions", Kind.FLOATS, []),
        Parameter("partialsTypes", Kind.STRINGS, []),
        Parameter("planType", Kind.STRING, None),
        Parameter("perConvReservedTiles", Kind.INT, None),
        Parameter("cycleBackOff", Kind.FLOAT, None),
        Parameter("enableConvDithering", Kind.INTS, []),
        Parameter("inputCounts", Kind.INTS, None, hidden=True),
        outputs=(1, _ANY),
        outputs_follow=True,
        prepare=flatten_convolutions,
    ),
    _method(
        "nllloss",
        "Nll",
        2,
        "Negative log likelihood of [probabilities, labels], reduced to a loss.",
        _REDUCTION,
        Parameter("ignoreIndex", Kind.INT, None),
        Parameter("inputIsLogProbability", Kind.FLAG, default=False),
    ),
    _method("nearbyint", "NearbyInt", 1, "The nearest whole number, the even one of two."),
    _method("nop", "Nop", 1, "The input."),
    _method(
        "normalize_image",
        "NormalizeImage",
        3,
        "(scale * image - offsets) * scales, and a fourth channel of zeros; channels are last.",
        Parameter("scale", Kind.FLOAT, 1.0),
    ),
    _method(
        "packedDataBlock",
        "PackedDataBlock",
        (1, _ANY),
        "A sub-graph over packed sequences: data, offsets and lengths [N] of each, then offsets and"
        " lengths in the result. It gets [callbackBatchSize, maximum length, ...] of each, padded"
        " with zeros.",
        Parameter("maxSequenceLengths", Kind.INTS),
        Parameter("resultSize", Kind.INT),
        Parameter("callbackBatchSize", Kind.INT),
        Parameter("callback", Kind.GRAPH),
    ),
    _method(
        "printtensor",
        "PrintTensor",
        1,
        "The input; the session prints it, and its gradient, in each micro-batch.",
        Parameter("print_gradient", Kind.INT, 1),
        Parameter("title", Kind.STRING, "", late=True),
    ),
    _method(
        "reducemedian",
        "ReduceMedian",
        1,
        "The lower median along axes, and its indices.",
        Parameter("axes", Kind.INTS, None, keep_empty=True),
        Parameter("keepdims", Kind.INT, 1),
        outputs=2,
    ),
    _method("remainder", "Remainder", 2, "Rest of a division rounded down."),
    _method(
        "replicatedallreduce",
        "ReplicatedAllReduce",
        1,
        "The sum over the replicas of all instances, or of this one's group; with one, the input.",
        Parameter("commGroup", Kind.INTS, None),
    ),
    _method(
        "reshape",
        "Reshape",
        1,
        "The input in another shape; its id may be given without a list.",
        Parameter("shape", Kind.INTS, [], keep_empty=True),
        takes_id=True,
    ),
    _method(
        "reverse",
        "Reverse",
        1,
        "The input, backwards along dimensions.",
        Parameter("dimensions", Kind.INTS),
    ),
    _method("round", "Round", 1, "The nearest whole number, the even one of two."),
    _method("scale", "Scale", 1, "The input times a number.", Parameter("scale", Kind.FLOAT)),
    _method(
        "scaledadd",
        "ScaledAdd",
        (2, 4),
        "scale0 * a + scale1 * b; scales may be given as two more inputs.",
        Parameter("scale0", Kind.FLOAT, 1.0),
        Parameter("scale1", Kind.FLOAT, 1.0),
    ),
    _method(
        "scatterreduce",
        "ScatterReduce",
        (2, 3),
        "Moves [values, indices] along an axis, combining what meets; a third input is the start.",
        *_SCATTER,
        prepare=name_reduction,
    ),
    _method(
        "sequenceslice",
        "SequenceSlice",
        5,
        "Copies runs of rows; inputs are [source, destination, lengths, source offsets,"
        " destination offsets].",
        Parameter("zeroUnused", Kind.FLAG, 0),
    ),
    _method(
        "shapeddropout",
        "ShapedDropout",
        1,
        "Dropout whose mask has a shape of its own, and is broadcast.",
        Parameter("shape", Kind.INTS),
        Parameter("ratio", Kind.FLOAT, 0.5),
    ),
    _method(
        "slice",
        "Slice",
        1,
        "A part of the input.",
        Parameter("ends", Kind.INTS),
        Parameter("starts", Kind.INTS),
        Parameter("axes", Kind.INTS),
    ),
    _method(
        "sort",
        "Sort",
        1,
        "The elements along an axis in order, and their places.",
        Parameter("axis", Kind.INT, -1),
        Parameter("descending", Kind.FLAG, 0),
        Parameter("stable", Kind.FLAG, 0),
        outputs=2,
    ),
    _method(
        "subsample",
        "Subsample",
        1,
        "Every n-th element along each dimension.",
        Parameter("strides", Kind.INTS),
    ),
    _method("swish", "Swish", 1, "x sigmoid(x)."),
    _method(
        "tensorremap",
        "TensorRemap",
        1,
        "The input; hosts have no tiles to map it to.",
        Parameter("remap_type", Kind.INT, 0),
    ),
)
"""Every method of ``aiGraphcore``."""


@cache
def ai_graphcore() -> type[OperatorSet]:
    """PopART's own operators, of the one opset that there is."""
    members = {method.name: make(method) for method in METHODS}
    described = {"domain": DOMAIN, "version": 1, "__doc__": "PopART's own operators."}
    return type("AiGraphcoreOpset1", (OperatorSet,), {**described, **members})
