"""Infers types and shapes of nodes' outputs, node by node."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

import onnx
import onnx_ir as ir

from popdist_onnx.graph.compat import subgraphs
from popdist_onnx.graph.names import FAILED_INFERENCE
from popdist_onnx.graph.values import Dim, constant, dims, operand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Info: TypeAlias = "tuple[ir.DataType | None, Sequence[Dim] | None] | None"
"""Type and shape of one output; None where nothing is known."""

Inference: TypeAlias = "Callable[[ir.Node], Sequence[Info]]"

_RULES: dict[tuple[str, str], Inference] = {}

_HOMES = {"com.microsoft": "popdist_onnx.graph.runtime_operators"}
"""Modules with the rules of a domain, which are imported where a model has its operators."""

_BEFORE_STATE = 2
"""Inputs of a `Loop` before its state: the most turns, and the condition."""


_MARK = "InferenceError]"

SHAPE_OPERANDS = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Pad": (1, 3),
    "Reshape": (1,),
    "Resize": (3,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
}
"""Inputs that are 64-bit numbers in ONNX; PopART takes 32 bits, too."""


# Constant inputs beyond this size never decide a shape.
_MOST_ELEMENTS = 4096


def inference(domain: str, *op_types: str) -> Callable[[Inference], Inference]:
    """Registers a function that infers outputs' types and shapes for a domain's operators."""

    def register(function: Inference) -> Inference:
        _RULES.update({(domain, op_type): function for op_type in op_types})
        return function

    return register


@inference("", "GroupNormalization", "MeanVarianceNormalization")
def _like_first(node: ir.Node) -> Sequence[Info]:
    """Like the first input; the function body is too general for onnx's own inference."""
    (first, *_) = node.inputs
    return [] if first is None or first.shape is None else [(first.dtype, dims(first))]


@inference("", "GatherND")
def _gather_nd(node: ir.Node) -> Sequence[Info]:
    """Onnx's own inference gives a scalar no shape."""
    data, indices = node.inputs
    known, places = (None if one is None else dims(one) for one in (data, indices))
    if data is None or known is None or not places or not isinstance(places[-1], int):
        return []
    taken = node.attributes.get_int("batch_dims", 0) + places[-1]
    return [(data.dtype, [*places[:-1], *known[taken:]])]


@inference("ai.onnx.ml", "Scaler", "Normalizer", "Binarizer", "Imputer")
def _scaled(node: ir.Node) -> Sequence[Info]:
    """Like the first input; of scikit-learn's preprocessing onnx infers nothing."""
    (first, *_) = node.inputs
    if first is None or first.shape is None:
        return []
    always_float = node.op_type in ("Scaler", "Normalizer")
    return [(ir.DataType.FLOAT if always_float else first.dtype, dims(first))]


@inference("", "Loop")
def _loop_outputs(node: ir.Node) -> Sequence[Info]:
    """Keeps the shape of a state that leaves the body with the shape it entered the loop with.

    ONNX infers no such shape, because a body may change its state's shape in each iteration.
    """
    body = node.attributes["body"].as_graph()
    begun = node.inputs[_BEFORE_STATE:]
    made = body.outputs[1:]
    turns = _turns(node, body)
    found: list[Info] = []
    for number, value in enumerate(made):
        shape = dims(value)
        if not _may_be_tensor(value):
            found.append(None)
            continue
        if number >= len(begun):
            found.append((value.dtype, None if shape is None else [turns, *shape]))
            continue
        first = begun[number]
        same = first is not None and shape is not None and dims(first) == shape
        found.append((value.dtype, shape if same else None))
    return found


def _turns(node: ir.Node, body: ir.Graph) -> int | None:
    """How often a loop runs, where a number is given and its condition stays true."""
    most, condition = (None if one is None else constant(one) for one in node.inputs[:2])
    goes_on = body.outputs[0]
    while (maker := goes_on.producer()) is not None and maker.op_type == "Identity":
        goes_on = maker.inputs[0] or goes_on
    stays = goes_on is body.inputs[1] if maker is None else bool(constant(goes_on))
    begins = node.inputs[1] is None or (condition is not None and bool(condition))
    return int(most) if most is not None and stays and begins else None


@inference("com.microsoft", "QuantizeLinear")
def _quantized(node: ir.Node) -> Sequence[Info]:
    """The type of the zero point; ONNX Runtime's own form of the operator has 16 bits as well."""
    x, zero = node.inputs[0], operand(node, 2)
    kind = ir.DataType.UINT8 if zero is None else zero.dtype
    return [(kind, None if x is None else dims(x))]


@inference("com.microsoft", "DequantizeLinear")
def _dequantized(node: ir.Node) -> Sequence[Info]:
    """The type of the scale."""
    x, scale = node.inputs[:2]
    return [(None if scale is None else scale.dtype, None if x is None else dims(x))]


@inference("", "If")
def _branch_outputs(node: ir.Node) -> Sequence[Info]:
    """The part of the shape that both branches share."""
    one, other = (node.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    found: list[Info] = []
    for a, b in zip(one.outputs, other.outputs, strict=True):
        if not (_may_be_tensor(a) and _may_be_tensor(b)):
            found.append(None)
            continue
        left, right = dims(a), dims(b)
        shape: list[Dim] | None = None
        if left is not None and right is not None and len(left) == len(right):
            shape = [x if x == y else None for x, y in zip(left, right, strict=True)]
        found.append((a.dtype or b.dtype, shape))
    return found


@inference("", "Scan")
def _scan_outputs(node: ir.Node) -> Sequence[Info]:
    """States as in the body; slices stacked, or concatenated as in PopART."""
    body = node.attributes["body"].as_graph()
    walked = node.attributes.get_int("num_scan_inputs", 0)
    count = len(body.inputs) - walked
    turns = turns_of_scan(node)
    found: list[Info] = [(value.dtype, dims(value)) for value in body.outputs[:count]]
    for number, value in enumerate(body.outputs[count:]):
        known = dims(value)
        if known is None:
            found.append((value.dtype, None))
            continue
        axis = scan_axis(node, "scan_output_axes", number)
        if keeps_axis(node):
            made = list(known)
            length = made[axis]
            made[axis] = length * turns if isinstance(length, int) and turns is not None else None
        else:
            axis %= len(known) + 1
            made = [*known[:axis], turns, *known[axis:]]
        found.append((value.dtype, made))
    return found


def scan_axis(node: ir.Node, name: str, number: int) -> int:
    """An axis of a Scan from the attribute ``name``; 0 where the attribute is missing."""
    listed = node.attributes.get(name)
    return int(listed.as_ints()[number]) if listed is not None else 0


def turns_of_scan(node: ir.Node) -> int | None:
    """The length of the first scanned axis; None where it is not known."""
    walked = node.attributes.get_int("num_scan_inputs", 0)
    first = node.inputs[len(node.inputs) - walked] if walked else None
    known = None if first is None else dims(first)
    length = None if known is None else known[scan_axis(node, "scan_input_axes", 0)]
    return length if isinstance(length, int) else None


def keeps_axis(node: ir.Node) -> bool:
    """Whether the body's slices have the rank of the whole tensor, as in PopART."""
    walked = node.attributes.get_int("num_scan_inputs", 0)
    body = node.attributes["body"].as_graph()
    for value, element in zip(reversed(node.inputs), reversed(body.inputs), strict=False):
        if walked and value is not None and value.shape is not None and element.shape is not None:
            return len(value.shape) == len(element.shape)
        break
    return False


_OLDEST_SCAN = 9


def _enter(node: ir.Node, opset: int) -> None:
    """Gives the values of a node's sub-graphs their types and shapes."""
    if node.op_type == "Loop":
        body = node.attributes["body"].as_graph()
        entering: list[Info] = [(ir.DataType.INT64, []), (ir.DataType.BOOL, [])]
        entering += [_known(value) for value in node.inputs[_BEFORE_STATE:]]
        _enter_loop(body, entering, opset)
    elif node.op_type == "Scan" and opset >= _OLDEST_SCAN:
        body = node.attributes["body"].as_graph()
        entering = [_known(value) for value in node.inputs]
        walked = node.attributes.get_int("num_scan_inputs", 0)
        for number in range(walked):
            place = len(entering) - walked + number
            whole = entering[place]
            if whole is not None and whole[1] is not None:
                shape = list(whole[1])
                # Bodies without declared shapes come from PopART's builder, whose slices keep the
                # axis.
                shape[scan_axis(node, "scan_input_axes", number)] = 1
                entering[place] = whole[0], shape
        _fill(body, entering)
        annotate_graph(body, opset)
    elif node.op_type == "If":
        for name in ("then_branch", "else_branch"):
            annotate_graph(node.attributes[name].as_graph(), opset)


def _enter_loop(body: ir.Graph, entering: list[Info], opset: int) -> None:
    """Annotates a body; lengths that its text leaves open are those of the first turn.

    A state that leaves the body with another shape grows, and keeps its open lengths.
    """
    text = [formal.shape for formal in body.inputs]
    before = [(value, value.shape) for value in _values(body)]
    while True:
        _fill(body, entering)
        annotate_graph(body, opset)
        grown = [
            number
            for number, (formal, made) in enumerate(
                zip(body.inputs[1:], body.outputs, strict=False), start=1
            )
            if text[number] is not None
            and entering[number] is not None
            and formal.shape != text[number]
            and dims(formal) != dims(made)
        ]
        if not grown:
            return
        for value, shape in before:
            value.shape = shape
        for number in grown:
            body.inputs[number].shape = text[number]
            entering[number] = None


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """The values that nodes of a graph make, and of the graphs in it all."""
    for node in graph:
        yield from node.outputs
        for inner in subgraphs(node):
            yield from inner.inputs
            yield from _values(inner)


def _known(value: ir.Value | None) -> Info:
    if value is None or not _may_be_tensor(value):
        return None
    return value.dtype, dims(value)


def _may_be_tensor(value: ir.Value) -> bool:
    """Whether a value is neither a sequence nor optional, as far as is known."""
    return value.type is None or isinstance(value.type, ir.TensorType | ir.SparseTensorType)


def _fill(body: ir.Graph, entering: Sequence[Info]) -> None:
    """Sets missing types and shapes of a body's inputs from the values passed to it."""
    for formal, info in zip(body.inputs, entering, strict=False):
        if info is None:
            continue
        dtype, shape = info
        if formal.dtype is None and dtype is not None:
            formal.type = ir.TensorType(dtype)
        if formal.shape is None and shape is not None:
            formal.shape = ir.Shape(shape)
        elif formal.shape is not None and shape is not None and len(formal.shape) == len(shape):
            pairs = zip(formal.shape, shape, strict=True)
            formal.shape = ir.Shape([old if isinstance(old, int) else new for old, new in pairs])


def annotate(node: ir.Node, opset: int) -> None:
    """Sets types and shapes of a node's outputs; known ones stay where inference knows less."""
    if node.domain in _HOMES:
        import_module(_HOMES[node.domain])
    rule = _RULES.get((node.domain, node.op_type))
    node.meta.pop(FAILED_INFERENCE, None)
    if not node.domain:
        _enter(node, opset)
    if rule is not None:
        found = rule(node)
    elif _reduces_nothing(node):
        found = _like_first(node)
    else:
        found = _by_schema(node, opset)
    if node.attributes.get_int("ceil_mode", 0) and not node.domain:
        found = [_without_late_windows(node, info) for info in found]
    if node.op_type == "ConvTranspose" and not node.domain:
        found = [_with_stated_lengths(node, info) for info in found]
    for output, info in zip(node.outputs, found, strict=False):
        if info is not None:
            _merge(output, *info)


def _without_late_windows(node: ir.Node, info: Info) -> Info:
    """Leaves windows out that begin in the padding at the end, as kernels and torch do.

    ONNX's text says so since opset 22; shape inference of older opsets counts them.
    """
    known = dims(node.inputs[0]) if node.inputs[0] is not None else None
    if info is None or info[1] is None or known is None:
        return info
    made, count = list(info[1]), len(known) - 2
    strides = node.attributes.get_ints("strides", [1] * count)
    before = node.attributes.get_ints("pads", [0] * count)[:count]
    for axis, (stride, pad) in enumerate(zip(strides, before, strict=True), start=2):
        whole, windows = known[axis], made[axis]
        if isinstance(whole, int) and isinstance(windows, int):
            made[axis] = windows - ((windows - 1) * stride >= whole + pad)
    return info[0], made


def _with_stated_lengths(node: ir.Node, info: Info) -> Info:
    """Lengths that attributes state; onnx's inference differs from its text in some of them."""
    stated = node.attributes.get_ints("output_shape", None)
    x, w = ((None if one is None else dims(one)) for one in node.inputs[:2])
    if not x or not w or info is None or not isinstance(w[1], int):
        return info
    if stated is None:
        if not node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME"):
            return info
        strides = node.attributes.get_ints("strides", [1] * (len(x) - 2))
        lengths = [
            length * stride if isinstance(length, int) else None
            for length, stride in zip(x[2:], strides, strict=True)
        ]
    else:
        lengths = list(stated[-(len(x) - 2) :])
    return info[0], [x[0], w[1] * node.attributes.get_int("group", 1), *lengths]


def _reason(said: str) -> str:
    """The sentence that names the cause in onnx's error text."""
    marked = [line for line in said.splitlines() if _MARK in line]
    return (marked[-1].rpartition(_MARK)[2] if marked else said).strip()


def _reduces_nothing(node: ir.Node) -> bool:
    """Whether a reduction has an empty list of axes, which in PopART makes it the identity."""
    axes = node.attributes.get("axes") if node.op_type.startswith("Reduce") else None
    return node.domain == "" and axes is not None and not list(axes.as_ints())


INDEX_OPERANDS = {
    **dict.fromkeys(("Gather", "GatherElements", "GatherND"), 1),
    **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND"), 1),
}
"""By operator: the operand that holds indices."""

_OTHER_INDICES = (
    *(ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64),
    *(ir.DataType.INT8, ir.DataType.INT16),
)
"""Types of indices that PopART takes, and ONNX does not."""


def operand_type(node: ir.Node, index: int, dtype: ir.DataType | None) -> ir.DataType | None:
    """ONNX's type of an operand: int64 for shapes and other indices, float32 for float16 scales."""
    if dtype in _OTHER_INDICES and index == INDEX_OPERANDS.get(node.op_type):
        return ir.DataType.INT64
    if dtype is ir.DataType.INT32 and index in SHAPE_OPERANDS.get(node.op_type, ()):
        return ir.DataType.INT64
    if dtype is ir.DataType.FLOAT16 and node.op_type == "Resize" and index in (1, 2):
        return ir.DataType.FLOAT
    return dtype


def annotate_graph(graph: ir.Graph, opset: int) -> None:
    """Sets types and shapes of all values of a sorted graph."""
    for node in graph:
        annotate(node, opset)


def annotate_value(value: ir.Value, proto: onnx.TypeProto) -> None:
    """Sets type and shape of one value; lengths that are known already stay."""
    info = _info(proto)
    if info is not None:
        _merge(value, *info)


def _merge(output: ir.Value, dtype: ir.DataType | None, shape: Sequence[Dim] | None) -> None:
    if dtype is not None:
        output.type = ir.TensorType(dtype)
    if shape is None:
        return
    known = None if output.shape is None else list(output.shape)
    if known is not None and len(known) == len(shape):
        shape = [
            new if isinstance(new, int) or not isinstance(old, int) else old
            for new, old in zip(shape, known, strict=True)
        ]
    output.shape = ir.Shape(shape)


def _by_schema(node: ir.Node, opset: int) -> Sequence[Info]:
    if node.domain not in ("", "ai.onnx"):
        return []
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return []
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for index, value in enumerate(node.inputs):
        if value is None or value.type is None:
            continue
        name = str(value.name)
        types[name] = type_proto(value)
        array = constant(value)
        wanted = operand_type(node, index, value.dtype)
        if wanted is not None and wanted != value.dtype:
            types[name].tensor_type.elem_type = int(wanted)
            array = None if array is None else array.astype(wanted.numpy())
        is_text = value.dtype is ir.DataType.STRING
        if array is not None and array.size <= _MOST_ELEMENTS and not is_text:
            # onnx's own helper does not support bfloat16.
            data[name] = ir.serde.serialize_tensor(ir.Tensor(array, name=name))
    proto = ir.serde.serialize_node(node)
    _complete(proto, node, types)
    opsets = [onnx.helper.make_opsetid("", opset)]
    try:
        found = onnx.shape_inference.infer_node_outputs(
            schema, proto, types, data, opset_imports=opsets
        )
        if not found:
            # For some operators that are functions (LessOrEqual) onnx infers nothing.
            found = _by_model(proto, types, data, opsets)
    except KeyError:
        # Operators that are functions have no inference of their own.
        found = _by_model(proto, types, data, opsets)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError) as why:
        # No error yet: the pass that needs the shape reports why it is not known.
        node.meta[FAILED_INFERENCE] = _reason(str(why))
        return []
    return [_info(found.get(str(value.name))) for value in node.outputs]


def _complete(proto: onnx.NodeProto, node: ir.Node, types: dict[str, onnx.TypeProto]) -> None:
    """Sets what PopART may omit or cut: a state's length, axes from the end, padding below zero."""
    if node.op_type == "Conv":
        _crop(proto, types)
    if node.op_type in RECURRENT and (length := hidden_size(node)) is not None:
        kept = [one for one in proto.attribute if one.name != "hidden_size"]
        del proto.attribute[:]
        proto.attribute.extend([*kept, onnx.helper.make_attribute("hidden_size", length)])
    known = dims(node.inputs[0]) if node.inputs and node.inputs[0] is not None else None
    if known is None:
        return
    for attribute in proto.attribute:
        if attribute.name == "axis" and attribute.i < 0 and node.op_type == "Flatten":
            attribute.i += len(known)
        if attribute.name == "axes":
            made = len(known) + (len(attribute.ints) if node.op_type == "Unsqueeze" else 0)
            counted = [axis % made if axis < 0 and made else axis for axis in attribute.ints]
            attribute.ints[:] = counted


def _crop(proto: onnx.NodeProto, types: dict[str, onnx.TypeProto]) -> None:
    """Takes padding below zero, which PopART has and newer onnx refuses, from the operand."""
    dims = types[proto.input[0]].tensor_type.shape.dim[2:] if proto.input[0] in types else ()
    for attribute in proto.attribute:
        if attribute.name != "pads" or len(attribute.ints) != 2 * len(dims):
            continue
        for index, pad in enumerate(attribute.ints):
            dim = dims[index % len(dims)]
            if pad < 0 and dim.HasField("dim_value"):
                dim.dim_value += pad
                attribute.ints[index] = 0


RECURRENT = ("LSTM", "GRU", "RNN")


def hidden_size(node: ir.Node) -> int | None:
    """The length of a recurrent node's state; None if neither attribute nor weights tell."""
    said = node.attributes.get_int("hidden_size", 0)
    weights = operand(node, 2)
    known = None if weights is None else dims(weights)
    length = known[-1] if known and not said else said
    return length if isinstance(length, int) and length else None


def _by_model(
    node: onnx.NodeProto,
    types: dict[str, onnx.TypeProto],
    data: dict[str, onnx.TensorProto],
    opsets: Sequence[onnx.OperatorSetIdProto],
) -> dict[str, onnx.TypeProto]:
    """Infers through a model that holds only this node."""
    inputs = [onnx.helper.make_value_info(name, kind) for name, kind in types.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = onnx.helper.make_graph([node], "node", inputs, outputs, list(data.values()))
    model = onnx.helper.make_model(graph, opset_imports=opsets)
    inferred = onnx.shape_inference.infer_shapes(model).graph
    return {one.name: one.type for one in [*inferred.output, *inferred.value_info]}


def type_proto(value: ir.Value) -> onnx.TypeProto:
    """A value's type and shape as onnx's message.

    Raises:
        ValueError: The type is not known.
    """
    if value.type is None:
        raise ValueError(f"the type of {value.name!r} is not known")
    if not isinstance(value.type, ir.TensorType):
        proto = onnx.TypeProto()
        ir.serde.serialize_type_into(proto, value.type)
        return proto
    shape = None if value.shape is None else [_dim(dim) for dim in value.shape]
    return onnx.helper.make_tensor_type_proto(int(value.type.dtype), shape)


def _dim(dim: int | ir.SymbolicDim) -> int | str | None:
    return dim if isinstance(dim, int) else dim.value


def _info(proto: onnx.TypeProto | None) -> Info:
    if proto is None or not proto.HasField("tensor_type"):
        return None
    tensor = proto.tensor_type
    dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return dtype, None
    return dtype, [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
        for dim in tensor.shape.dim
    ]
