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
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.compat import FLOATING, replace_uses
from popdist_onnx.graph.names import FROZEN, UNBIASED
from popdist_onnx.graph.passes import Pass
from popdist_onnx.graph.tensor import Tape, Tensor
from popdist_onnx.graph.values import add_shared, constant_node, operand, put_first, stored

if TYPE_CHECKING:
    from collections.abc import Iterable

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


class Untie(Pass):
    """Replaces each `Identity` of a merged weight by a separate weight."""

    def change(self, model: ir.Model) -> bool:
        """Replaces them; false where there are none."""
        graph, by_torch = model.graph, model.producer_name == _PRODUCER
        copies = [
            (node, tensor)
            for node in graph
            if (node.op_type, node.domain) == ("Identity", "")
            and (weight := node.inputs[0]) is not None
            and weight.name in graph.initializers
            and (tensor := weight.const_value) is not None
            and (_is_merge(node) if by_torch else _is_uniform(weight))
            and not node.outputs[0].is_graph_output()
        ]
        for node, tensor in copies:
            (copy,) = node.outputs
            graph.remove(node)
            node.replace_input_with(0, None)
            twin = add_shared(graph, str(copy.name), tensor)
            replace_uses(graph, copy, twin)
        return bool(copies)


def freeze_constants(model: ir.Model) -> None:
    """Marks constants and buffers in files of the newer exporter and of converters, in place."""
    known = _placeholders(model)
    floats = _floats(model.graph)
    if known:
        fixed = [name for name in floats if f"p_{_mangled(name)}" not in known]
    elif model.producer_name == FROM_TENSORFLOW:
        # Weights that the converter has rewritten have names like those of constants.
        fixed = [
            name
            for name, tensor in floats.items()
            if not _VARIABLE.search(name) and (tensor.size == 1 or _CONSTANT.search(name))
        ]
    elif model.producer_name == _FROM_SCIKIT_LEARN:
        fixed = [name for name in floats if not _COEFFICIENT.fullmatch(name)]
    else:
        return
    if fixed and len(fixed) < len(floats):
        freeze(model, fixed)


def freeze(model: ir.Model, names: Iterable[str]) -> None:
    """Records weights as such that are not trained; earlier records stay."""
    recorded = json.loads(model.metadata_props.get(FROZEN, "[]"))
    model.metadata_props[FROZEN] = json.dumps(list(dict.fromkeys([*recorded, *names])))


def _floats(graph: ir.Graph) -> dict[str, ir.TensorProtocol]:
    contents = {name: value.const_value for name, value in graph.initializers.items()}
    return {
        name: one for name, one in contents.items() if one is not None and one.dtype in FLOATING
    }


def warn_of_lost_weights(model: ir.Model) -> None:
    """Reports what tf2onnx may have left out of a file that is about to be trained."""
    if model.producer_name != FROM_TENSORFLOW:
        return
    twice = any(
        node.op_type == "LSTM"
        and (bias := operand(node, _BIAS)) is not None
        and bias.is_initializer()
        for node in model.graph
    )
    logger.warning(
        "tf2onnx leaves out biases of zeros, scales of ones and dropout, and folds batch "
        "normalisation away: what the file lacks is not trained.%s Give weights other initial "
        "values before the conversion, or train the network with popdist_tf",
        " It writes the bias of an LSTM as two, whose sum trains twice as fast; popdist_onnx.train "
        "trains one of them."
        if twice
        else "",
    )


def require_parameters(model: ir.Model) -> None:
    """Checks that a file of torch's newer exporter has each parameter that its nodes stand for.

    Raises:
        popart_exception: Parameters are merged with others, or folded into constants.
    """
    stored = {f"p_{_mangled(name)}" for name in model.graph.initializers}
    lost = sorted(
        name for name in _placeholders(model) if name.startswith("p_") and name not in stored
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


def _placeholders(model: ir.Model) -> set[str]:
    """The parameters and buffers that nodes read in the program; none where torch is not asked."""
    if model.producer_name != _PRODUCER or UNBIASED in model.metadata_props:
        # `from_torch` has the module itself, and marks what is not trained.
        return set()
    inputs = {str(value.name) for value in model.graph.inputs}
    return {
        name
        for node in model.graph
        for name in _PLACEHOLDER.findall(
            node.metadata_props.get(_FX_NODE, "").partition("(args = ")[2]
        )
    } - inputs


def _is_merge(node: ir.Node) -> bool:
    """Whether an `Identity` of torch stands for a weight, not for a copy that the program makes."""
    # Outputs of a program's operators are "/layer/Identity_output_0", or a number in old files.
    name = str(node.outputs[0].name)
    return _FX_NODE not in node.metadata_props and not name.startswith("/") and not name.isdigit()


def _mangled(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9]", "_", name)


def _is_uniform(weight: ir.Value) -> bool:
    tensor = weight.const_value
    if tensor is None or isinstance(tensor, ir.ExternalTensor):
        return False
    if tensor.dtype not in FLOATING or len(tensor.shape) != 1:
        return False
    array = tensor.numpy()
    return array.size > 0 and bool(np.all(array == array[0]))


# Linear models of ai.onnx.ml.


_DOMAIN = "ai.onnx.ml"

_TRANSFORMS = {"NONE": "Identity", "SOFTMAX": "Softmax", "LOGISTIC": "Sigmoid"}
"""By ``post_transform`` the operator that computes the same over the last axis."""


def with_linear_weights(model: ir.Model) -> bool:
    """Makes coefficients and intercepts of linear models initializers, in place.

    Models with another transform, and classifiers with one row for two classes, stay as they are.

    Returns:
        Whether there were any.
    """
    nodes = [node for node in model.graph if node.domain == _DOMAIN]
    writer = _Writer(model.graph)
    rewritten = [writer.rewrite(node) for node in nodes]
    return any(rewritten)


class _Writer:
    def __init__(self, graph: ir.Graph) -> None:
        self._tape = Tape(graph)
        self._shares: set[str] = set()
        self._floats: dict[str, Tensor] = {}

    def rewrite(self, node: ir.Node) -> bool:
        """Writes nodes in place of a node; false where it stays."""
        said = {name: one.value for name, one in node.attributes.items()}
        known = said.get("post_transform", "NONE") in _TRANSFORMS
        with self._tape.at(node, f"{node.name or node.outputs[0].name}/", node.metadata_props):
            if known and node.op_type == "LinearRegressor":
                made: list[Tensor | None] = [self._linear(node, said, said.get("targets", 1))]
            elif known and node.op_type == "LinearClassifier" and _has_rows(said):
                made = self._classifier(node, said)
            elif node.op_type == "Normalizer" and self._is_share(node, said):
                made = [self._tape.Identity(node.inputs[0])]
            else:
                return False
        self._tape.substitute(node, made)
        return True

    def _is_share(self, node: ir.Node, said: dict[str, Any]) -> bool:
        """Whether a softmax is divided by its sum, which is one."""
        x = node.inputs[0]
        return x is not None and x.name in self._shares and said.get("norm") == "L1"

    def _classifier(self, node: ir.Node, said: dict[str, Any]) -> list[Tensor | None]:
        classes = np.asarray(said["classlabels_ints"], np.int64)
        label, output = node.outputs
        scores = self._linear(node, said, len(classes))
        if said.get("post_transform") == "SOFTMAX":
            self._shares.add(str(output.name))
        if not label.name:
            return [None, scores]
        best = self._tape.many("ArgMax", [f"{label.name}/best"], scores, axis=1, keepdims=0)[0]
        return [self._tape.Gather(self._stored("classes", classes), best), scores]

    def _linear(self, node: ir.Node, said: dict[str, Any], rows: int) -> Tensor:
        x = self._tape.optional(node, 0)
        if x is not None and x.value.is_graph_input() and x.dtype != ir.DataType.FLOAT:
            x = self._as_float(x)
        factors = np.asarray(said["coefficients"], np.float32).reshape(rows, -1)
        # The names of skl2onnx for what scikit-learn trains: `freeze_constants` knows them.
        read = [x, self._stored("coefficients", factors)]
        if "intercepts" in said:
            read.append(self._stored("intercepts", np.asarray(said["intercepts"], np.float32)))
        scores = self._tape.many("Gemm", [f"{node.outputs[-1].name}/scores"], *read, transB=1)[0]
        transform = said.get("post_transform", "NONE")
        axis = {"axis": -1} if transform == "SOFTMAX" else {}
        return self._tape.many(_TRANSFORMS[transform], 1, scores, **axis)[0]

    def _as_float(self, x: Tensor) -> Tensor:
        if x.name not in self._floats:
            cast = self._tape.many("Cast", [f"{x.name}/float"], x, to=int(ir.DataType.FLOAT))
            self._floats[x.name] = cast[0]
        return self._floats[x.name]

    def _stored(self, name: str, content: Array) -> Tensor:
        found, number = name, 0
        while found in self._tape.graph.initializers:
            number += 1
            found = f"{name}{number}"
        return self._tape.state(found, content)


def _has_rows(said: dict[str, Any]) -> bool:
    """Whether each class of a classifier, which is a number, has coefficients of its own."""
    classes = said.get("classlabels_ints", ())
    return len(classes) > 1 and len(said.get("intercepts", ())) == len(classes)


# The single biases of Keras.


_BIAS = 3


def with_single_biases(model: ir.Model) -> bool:
    """Stops the gradients of second biases in a file of tf2onnx, in place.

    Returns:
        Whether there were any.
    """
    if model.producer_name != FROM_TENSORFLOW:
        return False
    readers: dict[ir.Value, list[ir.Node]] = {}
    for node in model.graph:
        bias = operand(node, _BIAS)
        if bias is not None and bias.is_initializer() and _has_one_bias(node):
            readers.setdefault(bias, []).append(node)
    contents = {bias: array for bias in readers if (array := stored(bias)) is not None}
    found = {bias: array for bias, array in contents.items() if not _second_of(array).any()}
    for bias, array in found.items():
        kept = np.ones_like(array)
        _second_of(kept)[...] = 0
        mask = constant_node(kept, f"{bias.name}/kept", {})
        one = ir.Value(name=f"{bias.name}/one", type=bias.type, shape=bias.shape)
        put_first(model.graph, ir.Node("", "Mul", [bias, mask.outputs[0]], outputs=[one]))
        put_first(model.graph, mask)
        for node in readers[bias]:
            node.replace_input_with(_BIAS, one)
    return bool(found)


def _has_one_bias(node: ir.Node) -> bool:
    """Whether Keras has a single bias here; a GRU that resets after its product has two."""
    after = node.attributes.get_int("linear_before_reset", 0)
    return not node.domain and (
        node.op_type in ("LSTM", "RNN") or (node.op_type == "GRU" and not after)
    )


def _second_of(biases: Array) -> Array:
    """The biases of the hidden state, of ``[directions, 2 * gates * hidden]``."""
    return biases[:, biases.shape[1] // 2 :]
