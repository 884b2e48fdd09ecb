"""What torch's exporters do to weights: merged ones become separate again, or the file is refused.

Both exporters write tensors of equal content once, unless they are asked not to. At the start of a
training many are equal: scales of ones, biases of zeros, running statistics, and the layers of a
stack that was made of copies. They must not train as one weight.

The older exporter, in evaluation mode, leaves an `Identity` for each of the others, with the name
of the weight. It writes none for a weight that the program ties (an embedding and the output
layer), and one with the name of an operator where the program copies a weight. In files of other
programs, tied weights look the same, but hold random numbers.

The newer exporter leaves nothing, unless it is called with ``optimize=False``. It also writes
constants as initializers, and weights that it has transposed. The metadata of its nodes name the
parameters and buffers that the program reads there, so that merged and lost ones are found. An
`Identity` of this exporter is a running statistic that a module writes and reads again.

tf2onnx writes constants as initializers too, and weights under the names of the operators that read
variables. It leaves out biases of zeros and scales of ones, which nothing in the file tells.

skl2onnx writes what scikit-learn fits to data without gradients as initializers (the factors of a
`MinMaxScaler`), and constants: the 1 from which a probability is subtracted.
"""

from __future__ import annotations

import json
import logging
import math
import re

import numpy as np
import onnx
from onnx import numpy_helper

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.compat import FLOATING
from popdist_onnx.graph.names import FROZEN, UNBIASED

logger = logging.getLogger("popdist.onnx")

_FX_NODE = "pkg.torch.onnx.fx_node"
_PLACEHOLDER = re.compile(r"%([pb]_\w+)")
_PRODUCER = "pytorch"

FROM_TENSORFLOW = "tf2onnx"
"""The producer that the files of tf2onnx name."""

_VARIABLE = re.compile("ReadVariableOp|ResourceGather|_fused_bn")
_CONSTANT = re.compile(r"/Const(_\d+)?:0$")

_FROM_SCIKIT_LEARN = "skl2onnx"
_COEFFICIENT = re.compile(r"(coef|coefficients?|intercepts?)\d*")

_SHOWN = 6


def untie(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Gives every `Identity` of a merged weight a weight of its own, in a copy."""
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    by_torch = proto.producer_name == _PRODUCER
    copies = {
        node.output[0]: node.input[0]
        for node in proto.graph.node
        if node.op_type == "Identity"
        and not node.domain
        and node.input[0] in weights
        and (_is_merge(node) if by_torch else _is_uniform(weights[node.input[0]]))
    }
    outputs = {value.name for value in proto.graph.output}
    copies = {copy: weight for copy, weight in copies.items() if copy not in outputs}
    if not copies:
        return proto
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    kept = [node for node in changed.graph.node if node.output[0] not in copies]
    del changed.graph.node[:]
    changed.graph.node.extend(kept)
    for copy, weight in copies.items():
        changed.graph.initializer.append(weights[weight])
        changed.graph.initializer[-1].name = copy
    return changed


def freeze_constants(proto: onnx.ModelProto) -> None:
    """Marks constants and buffers in files of the newer exporter and of converters, in place."""
    known = _placeholders(proto)
    floats = [one.name for one in proto.graph.initializer if one.data_type in FLOATING]
    if known:
        fixed = [name for name in floats if f"p_{_mangled(name)}" not in known]
    elif proto.producer_name == FROM_TENSORFLOW:
        # Weights that the converter has rewritten have names like those of constants.
        single = {one.name for one in proto.graph.initializer if math.prod(one.dims) == 1}
        fixed = [
            name
            for name in floats
            if not _VARIABLE.search(name) and (name in single or _CONSTANT.search(name))
        ]
    elif proto.producer_name == _FROM_SCIKIT_LEARN:
        fixed = [name for name in floats if not _COEFFICIENT.fullmatch(name)]
    else:
        return
    properties = {one.key: one.value for one in proto.metadata_props}
    frozen = dict.fromkeys([*json.loads(properties.get(FROZEN, "[]")), *fixed])
    if fixed and len(fixed) < len(floats):
        onnx.helper.set_model_props(proto, properties | {FROZEN: json.dumps(list(frozen))})


def warn_of_lost_weights(proto: onnx.ModelProto) -> None:
    """Reports what tf2onnx may have left out of a file that is about to be trained."""
    if proto.producer_name != FROM_TENSORFLOW:
        return
    stored = {one.name for one in proto.graph.initializer}
    twice = any(n.op_type == "LSTM" and stored.intersection(n.input[3:4]) for n in proto.graph.node)
    logger.warning(
        "tf2onnx leaves out biases of zeros, scales of ones and dropout, and folds batch "
        "normalisation away: what the file lacks is not trained.%s Give weights other initial "
        "values before the conversion, or train the network with popdist_tf",
        " It writes the bias of an LSTM as two, whose sum trains twice as fast; popdist_onnx.train "
        "trains one of them."
        if twice
        else "",
    )


def require_parameters(proto: onnx.ModelProto) -> None:
    """Checks that a file of torch's newer exporter has each parameter that its nodes stand for.

    Raises:
        popart_exception: Parameters are merged with others, or folded into constants.
    """
    stored = {f"p_{_mangled(one.name)}" for one in proto.graph.initializer}
    lost = sorted(
        name for name in _placeholders(proto) if name.startswith("p_") and name not in stored
    )
    if lost:
        more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        raise popart_exception(
            "PD593",
            "torch's exporter has merged or folded parameters, which would not train as in torch",
            value=", ".join(name.removeprefix("p_") for name in lost[:_SHOWN]) + more,
            accepted="a file with an initializer for each parameter",
            hint="popdist_onnx.from_torch(module, inputs), or torch.onnx.export(module.train(), "
            "..., optimize=False)",
        )


def _placeholders(proto: onnx.ModelProto) -> set[str]:
    """The parameters and buffers that nodes read in the program; none where torch is not asked."""
    if proto.producer_name != _PRODUCER or any(p.key == UNBIASED for p in proto.metadata_props):
        # `from_torch` has the module itself, and marks what is not trained.
        return set()
    inputs = {value.name for value in proto.graph.input}
    return {
        name
        for text in map(_fx_node, proto.graph.node)
        if text is not None
        for name in _PLACEHOLDER.findall(text.partition("(args = ")[2])
    } - inputs


def _fx_node(node: onnx.NodeProto) -> str | None:
    return next((one.value for one in node.metadata_props if one.key == _FX_NODE), None)


def _is_merge(node: onnx.NodeProto) -> bool:
    """Whether an `Identity` of torch stands for a weight, not for a copy that the program makes."""
    # Outputs of a program's operators are "/layer/Identity_output_0", or a number in old files.
    name = node.output[0]
    return _fx_node(node) is None and not name.startswith("/") and not name.isdigit()


def _mangled(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9]", "_", name)


def _is_uniform(tensor: onnx.TensorProto) -> bool:
    if tensor.data_type not in FLOATING or len(tensor.dims) != 1 or tensor.external_data:
        return False
    array = numpy_helper.to_array(tensor)
    return array.size > 0 and bool(np.all(array == array[0]))
