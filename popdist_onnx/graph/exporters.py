"""What exporters of other libraries do to weights and layers: some of it is undone, or refused.

Both exporters of torch write tensors of equal content once, unless they are asked not to. At the
start of a training many are equal: scales of ones, biases of zeros, running statistics, and the
layers of a stack that was made of copies. They must not train as one weight.

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

skl2onnx writes linear models as `LinearRegressor` and `LinearClassifier` of ``ai.onnx.ml``, which
hold their coefficients as attributes. They become a `Gemm` with weights, and the classifier's
softmax or sigmoid.

A recurrent layer of Keras has one bias. ONNX has two, of the input and of the hidden state, and the
layer adds them. tf2onnx writes the bias of Keras as the first one, and zeros as the second. With a
gradient for both their sum changes twice as fast. The second half is therefore multiplied by zero,
which stops its gradient.
"""

from __future__ import annotations

import json
import logging
import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.compat import FLOATING
from popdist_onnx.graph.large_files import content
from popdist_onnx.graph.names import FROZEN, UNBIASED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from popdist_onnx.graph.values import Array


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


# Linear models of ai.onnx.ml.


_DOMAIN = "ai.onnx.ml"

_TRANSFORMS = {"NONE": "Identity", "SOFTMAX": "Softmax", "LOGISTIC": "Sigmoid"}
"""By ``post_transform`` the operator that computes the same over the last axis."""


def with_linear_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Makes coefficients and intercepts of linear models initializers, in a copy.

    Models with another transform, and classifiers with one row for two classes, stay as they are.
    """
    if all(node.domain != _DOMAIN for node in proto.graph.node):
        return proto
    written = onnx.ModelProto()
    written.CopyFrom(proto)
    writer = _Writer(written)
    nodes = [one for node in proto.graph.node for one in writer.written(node)]
    del written.graph.node[:]
    written.graph.node.extend(nodes)
    return written


class _Writer:
    def __init__(self, proto: onnx.ModelProto) -> None:
        self._graph = proto.graph
        self._kinds = {one.name: one.type.tensor_type.elem_type for one in proto.graph.input}
        self._taken = {one.name for one in proto.graph.initializer}
        self._taken |= {name for node in proto.graph.node for name in (*node.input, *node.output)}
        self._shares: set[str] = set()

    def written(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """The nodes in place of a node; the node itself where there are none."""
        said = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        transform = said.get("post_transform", b"NONE").decode()
        known = node.domain == _DOMAIN and transform in _TRANSFORMS
        if known and node.op_type == "LinearRegressor":
            yield from self._linear(node, said, transform, said.get("targets", 1), node.output[0])
        elif known and node.op_type == "LinearClassifier" and _has_rows(said):
            yield from self._classifier(node, said, transform)
        elif (node.domain, node.op_type) == (_DOMAIN, "Normalizer") and self._is_share(node, said):
            yield helper.make_node("Identity", node.input, node.output, node.name)
        else:
            yield node

    def _is_share(self, node: onnx.NodeProto, said: dict[str, Any]) -> bool:
        """Whether a softmax is divided by its sum, which is one."""
        return node.input[0] in self._shares and said.get("norm") == b"L1"

    def _classifier(
        self, node: onnx.NodeProto, said: dict[str, Any], transform: str
    ) -> Iterator[onnx.NodeProto]:
        classes = np.asarray(said["classlabels_ints"], np.int64)
        label, scores = node.output
        yield from self._linear(node, said, transform, len(classes), scores)
        if transform == "SOFTMAX":
            self._shares.add(scores)
        if label:
            best = self._free(f"{label}/best")
            yield helper.make_node("ArgMax", [scores], [best], axis=1, keepdims=0)
            yield helper.make_node("Gather", [self._stored("classes", classes), best], [label])

    def _linear(
        self, node: onnx.NodeProto, said: dict[str, Any], transform: str, rows: int, output: str
    ) -> Iterator[onnx.NodeProto]:
        x = node.input[0]
        if self._kinds.get(x, onnx.TensorProto.FLOAT) != onnx.TensorProto.FLOAT:
            x = self._free(f"{x}/float")
            yield helper.make_node("Cast", node.input[:1], [x], to=onnx.TensorProto.FLOAT)
        factors = np.asarray(said["coefficients"], np.float32).reshape(rows, -1)
        # The names of skl2onnx for what scikit-learn trains: `freeze_constants` knows them.
        read = [x, self._stored("coefficients", factors)]
        if "intercepts" in said:
            read.append(self._stored("intercepts", np.asarray(said["intercepts"], np.float32)))
        scores = self._free(f"{output}/scores")
        yield helper.make_node("Gemm", read, [scores], node.name, transB=1)
        axis: dict[str, Any] = {"axis": -1} if transform == "SOFTMAX" else {}
        yield helper.make_node(_TRANSFORMS[transform], [scores], [output], **axis)

    def _stored(self, name: str, content: np.ndarray[Any, Any]) -> str:
        name = self._free(name)
        self._graph.initializer.append(numpy_helper.from_array(content, name))
        return name

    def _free(self, name: str) -> str:
        found, number = name, 0
        while found in self._taken:
            number += 1
            found = f"{name}{number}"
        self._taken.add(found)
        return found


def _has_rows(said: dict[str, Any]) -> bool:
    """Whether each class of a classifier, which is a number, has coefficients of its own."""
    classes = said.get("classlabels_ints", ())
    return len(classes) > 1 and len(said.get("intercepts", ())) == len(classes)


# The single biases of Keras.


_BIAS = 3


def with_single_biases(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a file of tf2onnx in which second biases do not train; else the model itself."""
    stored = {one.name: one for one in proto.graph.initializer}
    if proto.producer_name != FROM_TENSORFLOW:
        return proto
    found = {
        node.input[_BIAS]: stored[node.input[_BIAS]]
        for node in proto.graph.node
        if _has_one_bias(node) and len(node.input) > _BIAS and node.input[_BIAS] in stored
    }
    found = {name: one for name, one in found.items() if not _second_of(content(one)).any()}
    if not found:
        return proto
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for node in made.graph.node:
        for index, name in enumerate(node.input):
            if name in found and index == _BIAS and _has_one_bias(node):
                node.input[index] = f"{name}/one"
    for name, one in found.items():
        kept = np.ones_like(content(one))
        _second_of(kept)[...] = 0
        mask = numpy_helper.from_array(kept, f"{name}/kept")
        nodes = [
            helper.make_node("Constant", [], [f"{name}/kept"], value=mask),
            helper.make_node("Mul", [name, f"{name}/kept"], [f"{name}/one"]),
        ]
        for node in reversed(nodes):
            made.graph.node.insert(0, node)
    return made


def _has_one_bias(node: onnx.NodeProto) -> bool:
    """Whether Keras has a single bias here; a GRU that resets after its product has two."""
    after = any(one.name == "linear_before_reset" and one.i for one in node.attribute)
    return not node.domain and (
        node.op_type in ("LSTM", "RNN") or (node.op_type == "GRU" and not after)
    )


def _second_of(biases: Array) -> Array:
    """The biases of the hidden state, of ``[directions, 2 * gates * hidden]``."""
    return biases[:, biases.shape[1] // 2 :]
