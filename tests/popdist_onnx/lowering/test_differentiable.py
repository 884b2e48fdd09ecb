"""Gradients flow through every operator of aiGraphcore: its own rule's, or its lowering's."""

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from popdist_onnx.builder.builder import Builder
from popdist_onnx.gradients.registry import differentiable
from popdist_onnx.graph.load import load
from popdist_onnx.lowering import DOMAIN, OPERATORS, lower
from popdist_onnx.transforms.autodiff import autodiff
from popdist_onnx.transforms.loss import set_loss
from popdist_onnx.types.enums import ReductionType, ScatterReduction

RNG = np.random.default_rng(0)
OFFSET = np.array([1, 2], np.uint32)
LENGTHS = [np.array(one, np.uint32) for one in ([2, 1], [0, 3], [1, 4])]
SLICE = {"axes": [0, 1], "sizes": [2, 2]}


def reals(*shape):
    return RNG.standard_normal(shape)


def single(*shape):
    # ONNX Runtime has these kernels in single precision only.
    return RNG.standard_normal(shape).astype(np.float32)


def apart(*shape):
    """No two elements so near that a small change would change their order."""
    return RNG.permutation(np.arange(np.prod(shape), dtype=np.float64)).reshape(shape) / 3 + 0.1


def probabilities(*shape):
    raw = RNG.random(shape) + 0.1
    return raw / raw.sum(-1, keepdims=True)


SAMPLES = {
    "atan2": ([single(2, 3), single(2, 3) + 2], {}),
    "ctcloss": (
        [
            np.log(probabilities(4, 2, 3)),
            np.array([[1, 2], [2, 1]], np.int32),
            np.array([4, 3], np.uint32),
            np.array([2, 1], np.uint32),
        ],
        {},
    ),
    "depthtospace": ([reals(1, 4, 2, 2)], {"blocksize": 2}),
    "dynamicadd": ([reals(3, 4), OFFSET, reals(2, 2)], SLICE),
    "dynamicslice": ([reals(3, 4), OFFSET], SLICE),
    "dynamicupdate": ([reals(3, 4), OFFSET, reals(2, 2)], SLICE),
    "dynamiczero": ([reals(3, 4), OFFSET], SLICE),
    "expm1": ([reals(5)], {}),
    "fmod": ([apart(2, 3), np.full((1, 3), 0.77)], {}),
    "gelu": ([reals(5)], {}),
    "geluerf": ([single(5)], {}),
    "groupedgather": ([reals(2, 3, 2), np.array([[0, 2], [1, 1]])], {"axis": 1, "group_size": 2}),
    "groupedscatterreduce": (
        [reals(2, 3, 2), np.array([[0, 2, 2], [1, 1, 0]])],
        {"axis_size": 4, "axis": 1, "group_size": 2},
    ),
    "groupnormalization": ([reals(2, 4, 3), reals(4), reals(4)], {"num_groups": 2}),
    "identityloss": ([reals(2, 3)], {}),
    "incrementmod": ([apart(5)], {"increment": 3.0, "modulus": 0.77}),
    "l1loss": ([apart(2, 3)], {"lambda_": 0.3}),
    "log1p": ([np.abs(reals(5))], {}),
    "lstm": ([single(3, 2, 2), single(4, 5, 3), single(4, 3), single(2, 2, 3)], {}),
    "nllloss": (
        [probabilities(3, 4).astype(np.float32), np.array([0, 3, 1], np.int32)],
        {"ignoreIndex": 3},
    ),
    "nop": ([reals(3)], {}),
    "normalize_image": ([reals(2, 3), reals(3), reals(3)], {"scale": 0.5}),
    "printtensor": ([reals(3)], {}),
    "reducemedian": ([apart(3, 4)], {"axes": [1]}),
    "remainder": ([apart(2, 3), np.full((1, 3), -0.77)], {}),
    "replicatedallreduce": ([reals(3)], {}),
    "reshape": ([reals(2, 3)], {"shape": [3, 2]}),
    "reverse": ([reals(2, 3)], {"dimensions": [1]}),
    "scale": ([reals(3)], {"scale": 0.3}),
    "scaledadd": ([reals(3), reals(3), reals(), reals()], {}),
    "scatterreduce": (
        [reals(4, 2), np.array([0, 2, 2, 1], np.int32)],
        {"axis_size": 4, "axis": 0, "reduction": ScatterReduction.Sum},
    ),
    "sequenceslice": ([reals(5, 2), reals(6, 2), *LENGTHS], {"zeroUnused": 0}),
    "slice": ([reals(4, 3)], {"ends": [3], "starts": [1], "axes": [1]}),
    "sort": ([apart(3, 4)], {"axis": 0}),
    "subsample": ([reals(4, 3)], {"strides": [2, 1]}),
    "swish": ([reals(3)], {}),
    "tensorremap": ([reals(3)], {}),
}
"""Operands and arguments of every operator that gradients flow through."""

WITHOUT = {
    *("bitwiseand", "bitwiseor", "bitwisexor", "bitwisexnor", "bitwisenot"),  # whole numbers
    *("bucketize", "detach", "nearbyint", "round", "init"),  # no gradient by definition
    "abort",  # no result
    *("call", "packedDataBlock", "multiconv"),  # operands of another form; below
    "ctcbeamsearchdecoder",  # no gradient: it decides
    "shapeddropout",  # random; its mask is an input of the training graph
}


def training_graph(build, arrays):
    """A loss that weighs every element of the outputs differently, and its gradients."""
    builder = Builder()
    ids = [builder.addInputTensor(builder_type(one), one.shape) for one in arrays]
    total = None
    for output in build(builder, ids):
        if not builder.getTensorDtypeString(output).startswith("float"):
            continue
        shape = builder.getTensorShape(output)
        weights = np.cos(np.arange(np.prod(shape))).reshape(shape).astype(arrays[0].dtype)
        part = builder.aiOnnx.mul([output, builder.aiOnnx.constant(weights)])
        part = builder.aiGraphcore.identityloss([part], ReductionType.Sum)
        total = part if total is None else builder.aiOnnx.add([total, part])
    builder.addOutputTensor(total)
    model = load(builder.getModelProto())
    lower(model, keep=differentiable(DOMAIN))
    set_loss(model, total)
    wanted = [one for one, array in zip(ids, arrays, strict=True) if array.dtype.kind == "f"]
    autodiff(model, wanted=wanted, outputs=wanted)
    lower(model)
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    return session, ids, wanted, total


def builder_type(array):
    names = {"float32": "FLOAT", "float64": "DOUBLE"}
    return names.get(str(array.dtype), str(array.dtype).upper())


def check(build, arrays):
    arrays = [np.asarray(one) for one in arrays]
    session, ids, wanted, loss = training_graph(build, arrays)
    step = 1e-5 if arrays[0].dtype == np.float64 else 1e-2
    known = {one.name for one in session.get_inputs()}

    def feeds(changed=None, value=None):
        pairs = zip(ids, arrays, strict=True)
        given = {name: value if name == changed else array for name, array in pairs}
        return {name: array for name, array in given.items() if name in known}

    gradients = session.run([f"Gradient___{one}" for one in wanted], feeds())
    for name, gradient in zip(wanted, gradients, strict=True):
        array = arrays[ids.index(name)]
        expected = np.zeros_like(gradient)
        for place in np.ndindex(array.shape):
            sides = []
            for way in (1, -1):
                moved = array.copy()
                moved[place] += way * step
                sides.append(float(session.run([loss], feeds(name, moved))[0]))
            expected[place] = (sides[0] - sides[1]) / (2 * step)
        tolerance = {"rtol": 1e-5, "atol": 1e-6} if step < 1e-3 else {"rtol": 2e-2, "atol": 2e-2}
        np.testing.assert_allclose(gradient, expected, **tolerance)


@pytest.mark.parametrize("method", SAMPLES)
def test_gradients_are_slopes(method):
    arrays, arguments = SAMPLES[method]

    def build(builder, ids):
        found = getattr(builder.aiGraphcore, method)(ids, **arguments)
        return [found] if isinstance(found, str) else found

    check(build, arrays)


def test_gradients_of_several_convolutions_are_slopes():
    def build(builder, ids):
        x, w, y, v = ids
        return builder.aiGraphcore.multiconv([[x, w], [y, v]], strides=[[1, 1], [2]])

    check(build, [single(1, 2, 3, 3), single(2, 2, 2, 2), single(1, 1, 5), single(2, 1, 2)])


def test_gradients_of_calls_are_slopes():
    def build(builder, ids):
        callee = builder.createSubgraphBuilder()
        a, b = callee.addUntypedInputTensor(), callee.addUntypedInputTensor()
        callee.addOutputTensor(callee.aiGraphcore.gelu([callee.aiOnnx.mul([a, b])]))
        first = builder.aiGraphcore.call(ids, 1, callee)
        return builder.aiGraphcore.call([first[0], ids[1]], 1, callee)

    check(build, [reals(2, 3), reals(2, 3)])


def test_gradients_of_packed_sequences_are_slopes():
    def build(builder, ids):
        callee = builder.createSubgraphBuilder()
        a, b = callee.addUntypedInputTensor(), callee.addUntypedInputTensor()
        product = callee.aiOnnx.matmul([a, callee.aiOnnx.transpose([b], [0, 2, 1])])
        callee.addOutputTensor(product)
        return [builder.aiGraphcore.packedDataBlock(ids, [3, 2], 9, 2, callee)]

    numbers = [[0, 2, 5, 3], [2, 3, 1, 2], [1, 0, 3, 2], [2, 1, 1, 2], [0, 3, 7, 5], [2, 2, 1, 3]]
    offsets = [np.array(one, np.uint32) for one in numbers]
    check(build, [reals(6, 2), *offsets[:2], reals(5, 2), *offsets[2:4], *offsets[4:]])


def test_no_operator_is_forgotten():
    from popdist_onnx.builder.graphcore_methods import METHODS

    lowered = {one.name for one in METHODS if one.op_type in OPERATORS}
    assert lowered == {*SAMPLES, *WITHOUT}
