"""What cannot work says why, and loses nothing."""

import numpy as np
import onnx
import pytest

import popdist_onnx as popart
from popdist_onnx.session.arguments import rearranged
from popdist_onnx.session.step_io import _warn_of_order
from tests.popdist_onnx import networks

MICRO_BATCH = 4
CPU = popart.DeviceManager().createCpuDevice()


def make(model=None, loss="loss", anchors=("loss",), device=CPU, optimizer=None, shapes=None, **o):
    options = popart.SessionOptions()
    for name, value in o.items():
        setattr(options, name, value)
    return popart.TrainingSession(
        model or networks.perceptron(MICRO_BATCH),
        popart.DataFlow(2, list(anchors)),
        loss,
        optimizer or popart.SGD({"defaultLearningRate": (0.1, False)}),
        device,
        inputShapeInfo=shapes,
        userOptions=options,
    )


def ready(**o):
    made = make(**o)
    made.prepareDevice()
    made.weightsFromHost()
    return made


def data():
    x, target = networks.batches(2, MICRO_BATCH)
    return {"x": x, "target": target}


def step(inputs, outputs=None, **o):
    made = ready(**o)
    made.run(popart.PyStepIO(inputs, made.initAnchorArrays() if outputs is None else outputs))


def refused(text):
    return pytest.raises(popart.popart_exception, match=text)


def test_a_missing_loss():
    with refused("Could not find loss tensor 'los'"):
        make(loss="los")


def test_a_loss_that_is_no_scalar():
    with refused("Loss tensor, 'hidden', must be a scalar tensor"):
        make(loss="hidden")


def test_an_unknown_anchor_names_what_is_close():
    with refused("Anchor tensor `hiden' not in Ir Tensors.*\n.*\n.*did you mean hidden"):
        make(anchors=["hiden"])


def test_no_device():
    with refused("Must pass a valid deviceInfo"):
        make(device=None)


def test_an_offline_device_compiles_but_does_not_run():
    made = ready(device=popart.DeviceManager().createOfflineIPUDevice())
    with refused("Cannot run a session on an offline device"):
        made.run(popart.PyStepIO(data(), made.initAnchorArrays()))


def test_running_before_preparing_and_before_loading():
    made = make()
    with refused(
        r"Devicex::prepare\(\) must be called before Devicex::run\(const IStepIO &\) is called"
    ):
        made.run(popart.PyStepIO(data(), {}))
    made.prepareDevice()
    with refused("Must call weightsFromHost before run as the model has initializers"):
        made.run(popart.PyStepIO(data(), made.initAnchorArrays()))


def test_a_missing_input():
    with refused("No tensor target provided in PyStepIO's inputs"):
        step({"x": data()["x"]})


def test_an_input_that_the_model_does_not_have():
    with refused("y2 was provided as an input to PyStepIO, but is not an input"):
        step({**data(), "y2": np.zeros(3)})


def test_data_of_one_number_per_sample_have_no_order_but_that_of_batches():
    assert rearranged((4, 2), (4,), (2,))
    for shape in ((2, 4), (8,), (2, 4, 1), (1, 2, 4)):
        assert not rearranged(shape, (4,), (2,))


def test_a_missing_output():
    with refused("No tensor loss provided in PyStepIO's outputs"):
        step(data(), {})


def test_wrong_counts():
    with refused(r"input elements for Tensor x. Expected 40, but received 20\."):
        step({**data(), "x": data()["x"][:1]})
    with refused(r"output elements for Tensor loss. Expected 2, but received 3\."):
        step(data(), {"loss": np.zeros(3)})


def test_wrong_types():
    with refused("Type discrepancy for tensor x: expected float64, but the array holds float32"):
        step({**data(), "x": data()["x"].astype(np.float32)})
    with refused("Type discrepancy for tensor loss"):
        step(data(), {"loss": np.zeros(2, np.float32)})


def test_arrays_that_are_not_contiguous():
    with refused("x is not c-contiguous"):
        popart.PyStepIO({"x": np.zeros((4, 4)).T[:, :2]}, {})
    with pytest.raises(TypeError, match="not a numpy array"):
        popart.PyStepIO({"x": [1.0]}, {})


def test_things_of_another_kind():
    with refused("a step takes a PyStepIO"):
        ready().run(data())
    with refused("PyStepIO takes arrays by id"):
        popart.PyStepIO([np.zeros(3)], {})
    with refused("PyWeightsIO takes arrays by id"):
        popart.PyWeightsIO([np.zeros(3)])
    with refused("loss takes the id of a tensor"):
        make(loss=None)
    with refused("dataFlow is not a DataFlow object"):
        popart.InferenceSession(networks.perceptron(MICRO_BATCH), {"y": "All"}, CPU)
    with refused("userOptions is not a SessionOptions object"):
        popart.InferenceSession(
            networks.perceptron(MICRO_BATCH), popart.DataFlow(1, ["y"]), CPU, userOptions={}
        )


def test_anchors_that_cannot_be_written():
    fixed = np.zeros(2)
    fixed.flags.writeable = False
    with refused("the output array for tensor loss is read-only"):
        popart.PyStepIO({}, {"loss": fixed})


def test_a_label_beyond_the_last_class():
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2, 3])
    labels = builder.addInputTensor("INT32", [2])
    w = builder.addInitializedInputTensor(np.ones((3, 3), np.float32))
    scores = builder.aiOnnx.softmax([builder.aiOnnx.matmul([x, w])])
    loss = builder.aiGraphcore.nllloss([scores, labels])
    made = make(builder.getModelProto(), loss=loss, anchors=[loss])
    made.prepareDevice()
    made.weightsFromHost()
    inputs = {x: np.ones((2, 2, 3), np.float32), labels: np.full((2, 2), 3, np.int32)}
    with pytest.raises(popart.poplar_exception, match=r"a label or another index is negative"):
        made.run(popart.PyStepIO(inputs, made.initAnchorArrays()))


def test_an_open_shape_and_shapes_that_contradict():
    model = onnx.load_from_string(networks.perceptron(MICRO_BATCH))
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    with refused("the shape of input x is not known"):
        make(model.SerializeToString())
    shapes = popart.InputShapeInfo()
    shapes.add("x", popart.TensorInfo("DOUBLE", [MICRO_BATCH, networks.FEATURES]))
    shapes.add("target", popart.TensorInfo("DOUBLE", [MICRO_BATCH, networks.OUTPUTS]))
    make(model.SerializeToString(), shapes=shapes).prepareDevice()
    shapes.add("x", popart.TensorInfo("DOUBLE", [MICRO_BATCH, 7]))
    with refused("InputShapeInfo contradicts the model's input x"):
        make(model.SerializeToString(), shapes=shapes)
    other = popart.InputShapeInfo()
    other.add("nothing", popart.TensorInfo("FLOAT", [1]))
    with refused("has tensor nothing, which is not an input"):
        make(shapes=other)


def test_a_weight_of_whole_numbers_cannot_be_trained():
    """It is left alone where no gradient flows; where nothing else is left, that is said."""
    info = popart.TensorInfo("FLOAT", [2])
    builder = popart.Builder()
    x = builder.addInputTensor(info)
    w = builder.addInitializedInputTensor(np.ones(2, np.int32))
    product = builder.aiOnnx.mul([x, builder.aiOnnx.cast([w], "FLOAT")])
    loss = builder.aiGraphcore.identityloss([product])
    with refused("no weight of the model has a gradient"):
        make(builder.getModelProto(), loss=loss, anchors=[loss])


def test_arrays_that_fit_no_weight():
    made = make()
    with refused("the array for weight w1 does not fit"):
        made.writeWeights(popart.PyWeightsIO({"w1": np.zeros(3)}))
    made.prepareDevice()
    made.weightsFromHost()
    made.weightsToHost()
    with refused("the array for weight w1 does not fit"):
        made.readWeights(popart.PyWeightsIO({"w1": np.zeros((5, 8), np.float32)}))
    # As many bytes, but other numbers at every place.
    for use in (made.writeWeights, made.readWeights):
        with refused("w1 has its dimensions in another order"):
            use(popart.PyWeightsIO({"w1": np.zeros((8, 5))}))
    made.writeWeights(popart.PyWeightsIO({"w1": np.arange(40.0)}))
    np.testing.assert_array_equal(made.host_tensors["w1"], np.arange(40.0).reshape(5, 8))


@pytest.mark.parametrize(
    ("shape", "warns"),
    [
        *(((2, 5, 4), True), ((5, 4, 2), True), ((5, 2, 4), True)),
        *(((2, 4, 5), False), ((8, 5), False), ((40,), False), ((4, 2, 5), False)),
    ],
)
def test_step_data_in_another_order_are_warned_of(shape, warns, caplog):
    """Two batches of [4, 5]: what is read is what lies in memory, as in PopART."""
    _warn_of_order.cache_clear()
    step({**data(), "x": np.zeros(shape)})
    assert ("x, of shape" in caplog.text) == warns


def test_gradients_that_nobody_sums():
    with refused("nothing is connected there"):
        step(data(), hostAllReduce=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"hostWeightUpdate": True}, "Host weight update can't be enabled without hostAllReduce"),
        (
            {"hostAllReduce": True, "mergeVarUpdate": popart.MergeVarUpdateType.All},
            "hostAllReduce does not work with MergeVarUpdates",
        ),
        ({"enableGradientAccumulation": True, "accumulationFactor": 0}, "accumulationFactor"),
        (
            {"enableDistributedReplicatedGraphs": True, "globalReplicationFactor": 4},
            "replicas in other processes, but there are none",
        ),
    ],
)
def test_options_that_contradict(options, text):
    with refused(text):
        make(**options).prepareDevice()


def test_streams_that_do_not_exist():
    made = ready(hostAllReduce=True)
    with refused("there is no stream 'gradientStore__x'"):
        made.connectStreamToCallback("gradientStore__x", print, 0)
    with refused("has no such index"):
        made.connectStreamToCallback(made.getHostReduceStreamIds()[0], print, 1)
    with refused("the session has no streams"):
        ready().connectStreamToCallback("gradientStore__w1", print, 0)


def test_numbers_that_are_not_finite_name_the_first_tensor():
    bad = data()
    bad["x"][1, 2, 0] = np.inf
    with refused("Tensor x is not finite: it came into the step like that"):
        step(bad, enableFloatingPointChecks=True)
    huge = data()
    huge["target"][:] = 1e200
    with refused(r"Tensor squares is not finite: the first one, made by Mul"):
        step(huge, enableFloatingPointChecks=True)
    step(data(), enableFloatingPointChecks=True)
    step(huge)  # without the option a step runs through


def test_an_accumulated_gradient_that_is_not_finite_names_the_first_tensor():
    huge = data()
    huge["target"] = np.concatenate([huge["target"], huge["target"]], 1)
    huge["x"] = np.concatenate([huge["x"], huge["x"]], 1)
    huge["target"][-1, -1] = 1e200
    with refused(r"Tensor squares is not finite: the first one, made by Mul"):
        step(
            huge,
            enableFloatingPointChecks=True,
            enableGradientAccumulation=True,
            accumulationFactor=2,
        )


def steep(optimizer, gradient, dtype="FLOAT", steps=3):
    """Runs a session whose only weight has the given gradient in each of its elements."""
    builder = popart.Builder()
    kind = {"FLOAT": np.float32, "FLOAT16": np.float16}[dtype]
    x = builder.addInputTensor(dtype, [4], "x")
    w = builder.addInitializedInputTensor(np.ones(4, kind), "w")
    loss = builder.aiGraphcore.identityloss([builder.aiOnnx.mul([w, x])], popart.ReductionType.Sum)
    options = popart.SessionOptions()
    options.enableFloatingPointChecks = True
    model, flow = (
        builder.getModelProto(),
        popart.DataFlow(steps, {loss: popart.AnchorReturnType("All")}),
    )
    made = popart.TrainingSession(model, flow, loss, optimizer, CPU, userOptions=options)
    made.prepareDevice()
    made.weightsFromHost()
    fed = np.full((steps, 4), gradient, kind)
    made.run(popart.PyStepIO({"x": fed}, made.initAnchorArrays()))


def test_optimizer_state_that_overflows_is_named():
    # The second moment is infinite then, and divides every later update to nothing.
    with refused("Tensor Accl2___w is not finite: a gradient was so large"):
        steep(popart.Adam({"defaultLearningRate": (1e-3, False)}), 1e25)


def test_ordinary_numbers_whose_sum_overflows_are_finite():
    steep(popart.SGD({"defaultLearningRate": (2e3, False)}), -10, "FLOAT16", steps=1)
    far = popart.SGD({"defaultLearningRate": (1e8, False)})
    steep(far, -1e30, steps=1)
    with refused("is not finite: the first one, made by Mul"):
        steep(far, -1e30, steps=2)


def test_a_failed_step_leaves_the_weights_alone():
    made = ready(enableFloatingPointChecks=True)
    huge = data()
    huge["target"][0] = 1e200
    with refused("is not finite"):
        made.run(popart.PyStepIO(huge, made.initAnchorArrays()))
    made.weightsToHost()
    found = {"w1": np.empty((5, 8))}
    made.readWeights(popart.PyWeightsIO(found))
    np.testing.assert_array_equal(found["w1"], networks.weights()["w1"])


def test_an_inference_session_keeps_its_constant_weights():
    model = networks.perceptron(MICRO_BATCH)
    made = popart.InferenceSession(model, popart.DataFlow(1, ["y"]), CPU)
    with refused("Cannot call resetHostWeights when constantWeights is set"):
        made.resetHostWeights(model)


def test_nothing_to_compute():
    with refused("All operations in the main graph were pruned, nothing to compute"):
        popart.InferenceSession(networks.perceptron(MICRO_BATCH), popart.DataFlow(1, ["x"]), CPU)


def refused_graph(build, *anchors):
    """The message with which a session refuses a graph; gradients are of the loss it returns."""
    builder = popart.Builder()
    loss = builder.aiGraphcore.identityloss([build(builder)])
    every = {name: popart.AnchorReturnType("All") for name in anchors or [loss]}
    flow, model = popart.DataFlow(1, every), builder.getModelProto()
    with pytest.raises(popart.popart_exception) as refusal:
        popart.TrainingSession(model, flow, loss, popart.ConstSGD(0.1), CPU)
    return str(refusal.value)


def test_a_missing_gradient_says_what_stands_between():
    def build(builder):
        x = builder.addInputTensor("FLOAT", [2], "x")
        n = builder.addInputTensor("INT32", [2], "n")
        builder.aiOnnx.exp([builder.addInputTensor("FLOAT", [2], "aside")])
        steps = builder.aiOnnx.cast([builder.aiOnnx.cast([x], "INT32")], "FLOAT")
        return builder.aiOnnx.add([steps, builder.aiOnnx.cast([n], "FLOAT")])

    assert "no gradient passes Cast (Cast:0)" in refused_graph(build, "Gradient___x")
    assert "n holds INT32: only floating-point" in refused_graph(build, "Gradient___n")
    assert "does not depend on aside" in refused_graph(build, "Gradient___aside")
    assert "did you mean" in refused_graph(build, "Gradient___Cast:7")


def test_a_weight_without_gradient_is_told_where_it_stops():
    def build(builder):
        w = builder.addInitializedInputTensor(np.ones(2, np.float32), "w")
        x = builder.addInputTensor("FLOAT", [2], "x")
        return builder.aiOnnx.mul(
            [x, builder.aiOnnx.cast([builder.aiOnnx.cast([w], "INT32")], "FLOAT")]
        )

    text = refused_graph(build)
    assert "no weight of the model has a gradient" in text
    assert "w: no gradient passes Cast (Cast:0" in text


def test_failed_shape_inference_names_its_node_and_reason():
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2, 3, 4, 4], "x")
    five = [builder.addInitializedInputTensor(np.ones(5, np.float32)) for _ in range(4)]
    with refused(r"(?s)BatchNormalization do not fit.*scale has shape \[5\], but must have \[3\]"):
        builder.aiOnnx.batchnormalization([x, *five], 1)
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[4, 5] x) => (h) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { h = MatMul(x, w) }"""
    )
    with refused(
        r"(?s)ai.onnx.MatMul:13.*contracting dimensions unequal.*(4, 5).*(3, 2).*Incompatible.*'h'"
    ):
        popart.InferenceSession(model.SerializeToString(), popart.DataFlow(1, ["h"]), CPU)
    with refused("must be equal to rank of input tensor, shape"):
        builder.aiOnnx.transpose([x], [1, 0])


def test_inference_without_anchors():
    builder = popart.Builder()
    builder.aiOnnx.relu([builder.addInputTensor("FLOAT", [2], "x")])
    with refused("User must specify an anchor tensor when doing inference"):
        popart.InferenceSession(builder.getModelProto(), popart.DataFlow(1, {}), CPU)


def test_a_loss_of_scores_without_shape_names_the_node_that_has_none():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[4, 5] x, int64[4] labels) => (float loss)
        <float[3, 2] w = {1, 2, 3, 4, 5, 6}>
        { h = MatMul(x, w)
          loss = SoftmaxCrossEntropyLoss(h, labels) }"""
    )
    with refused(r"(?s)contracting dimensions unequal.*(4, 5).*(3, 2).*'h'"):
        make(model)


MISFITS = {
    "longer than axis 2": ("maxpool", [[1, 1, 2, 3]], {"num_outputs": 1, "kernel_shape": [3, 3]}),
    "window of a mean": ("averagepool", [[1, 1, 4]], {"kernel_shape": [6], "pads": [1, 0]}),
    "dilation": ("conv", [[1, 1, 4], [1, 1, 3]], {"dilations": [2]}),
    "kernel": ("conv", [[1, 1, 2, 9], [1, 1, 3, 3]], {}),
    "kernel_shape": ("conv", [[1, 1, 5], [1, 1, 3]], {"kernel_shape": [2]}),
    # ONNX Runtime divides by it.
    "strides is": ("conv", [[1, 1, 5], [1, 1, 3]], {"strides": [0]}),
    "slope": ("prelu", [[1, 2, 4], [2]], {}),
    "channels do not divide": ("depthtospace", [[1, 3, 4, 4]], {"blocksize": 2}),
}


@pytest.mark.parametrize("named", MISFITS)
def test_operands_that_onnx_lets_pass(named):
    method, shapes, arguments = MISFITS[named]
    builder = popart.Builder()
    ids = [builder.addInputTensor("FLOAT", shape) for shape in shapes]
    sentence = "" if named == "kernel_shape" else "do not fit each other.*"
    with refused(f"{sentence}{'window' if named in WINDOWS else named}"):
        getattr(builder.aiOnnx, method)(ids, **arguments)


@pytest.mark.parametrize(
    ("method", "shapes", "arguments", "sentence"),
    [
        ("conv", [[1, 1, 4, 4], [1, 1, 3, 3]], {"strides": [1]}, "Length of strides vector 1 != "),
        ("pad", [[15]], {"pads": [2, 3, 4, 5]}, "Padding vector (length 4) doesn't contain 2"),
        (
            "conv",
            [[1, 1, 5], [1, 1, 3]],
            {"kernel_shape": [2]},
            "kernel_shape, [2], does not match",
        ),
        ("conv", [[1, 1, 2, 2], [1, 1, 9, 9]], {}, "invalid spatial output shape: [-6 -6]"),
        ("pad", [[2]], {"pads": [-3, -3]}, "Values must be non-negative in each shape dimension"),
    ],
)
def test_sentences_of_popart(method, shapes, arguments, sentence):
    builder = popart.Builder()
    ids = [builder.addInputTensor("FLOAT", shape) for shape in shapes]
    with pytest.raises(popart.popart_exception) as caught:
        getattr(builder.aiOnnx, method)(ids, **arguments)
    assert sentence in caught.value.args[0]


WINDOWS = ("window of a mean", "dilation", "kernel")


def test_operands_that_only_a_newer_form_refuses():
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2, 3], "x")
    builder.addOutputTensor(builder.aiOnnx.reducesum([x], [3]))
    with refused(r"(?s)Axis 3 is out of acceptable range \[-2, 1\].*ReduceSum"):
        popart.InferenceSession(
            builder.getModelProto(), popart.DataFlow(1, builder.getOutputTensorIds()), CPU
        )
    with refused("takes a shape of 6 elements"):
        builder.aiGraphcore.reshape([x], [4, 2])
    four = builder.aiOnnx.constant(np.ones(4, np.float32))
    with refused("takes a scale with one number per channel"):
        builder.aiGraphcore.groupnormalization([x, four, four], 1)
    with refused("(?s)Unknown tensor.*give one id"):
        builder.addOutputTensor([x])


def test_an_anchored_constant_comes_back():
    builder = popart.Builder()
    y = builder.aiOnnx.identity([builder.aiOnnx.constant(np.arange(3, dtype=np.float32))])
    made = popart.InferenceSession(builder.getModelProto(), popart.DataFlow(1, [y]), CPU)
    made.prepareDevice()
    anchors = made.initAnchorArrays()
    made.run(popart.PyStepIO({}, anchors))
    np.testing.assert_array_equal(anchors[y], [0, 1, 2])


def test_devices():
    manager = popart.DeviceManager()
    assert manager.acquireAvailableDevice(4).numIpus == 4
    with refused("must be a power of two"):
        manager.acquireAvailableDevice(3)
    with refused("connection type Never"):
        manager.acquireAvailableDevice(1, connectionType=popart.DeviceConnectionType.Never)
    with manager.createIpuModelDevice({"numIPUs": 2, "tilesPerIPU": 8}) as device:
        assert (device.numIpus, device.tilesPerIPU, device.isAttached) == (2, 8, True)
    assert not device.isAttached


def test_a_state_that_changes_its_shape_is_named():
    builder = popart.Builder(opsets={"ai.onnx": 11, "ai.graphcore": 1})
    x, h = builder.addInputTensor("FLOAT", [3, 4, 2]), builder.addInputTensor("FLOAT", [4, 2])
    body = builder.createSubgraphBuilder()
    state, piece = body.addUntypedInputTensor("state"), body.addUntypedInputTensor("piece")
    body.addOutputTensor(body.aiOnnx.add([state, piece]))
    with pytest.raises(popart.popart_exception, match=r"the state 'state' has shape \[4, 2\]"):
        builder.aiOnnx.scan([h, x], 1, body, 1)
