"""The host-allreduce pass: copies, their names and order, and what the update reads."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from popdist_onnx.graph import names
from popdist_onnx.graph.load import save
from popdist_onnx.optimizers.adam import Adam
from popdist_onnx.optimizers.adaptive import Adaptive
from popdist_onnx.optimizers.sgd import SGD
from popdist_onnx.optimizers.values import ClipNormSettings
from popdist_onnx.transforms.accumulate import accumulate
from popdist_onnx.transforms.host_allreduce import (
    GRAPHCORE,
    StreamError,
    host_reduce_stream_ids,
    insert_host_allreduce,
)
from popdist_onnx.transforms.optimizer import grow_updates
from popdist_onnx.types.enums import AdamMode, AdaptiveMode, SGDAccumulatorAndMomentum
from tests.popdist_onnx.optimizers.graphs import gradient_graph

WEIGHTS = {"w": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}
MOMENTUM = {"defaultMomentum": (0.9, True), "defaultWeightDecay": (0.1, False)}
CLIP = [ClipNormSettings.clipAllWeights(1.0)]
OPTIMIZERS = [
    SGD({}),
    SGD({"lossScaling": (4.0, False)}, CLIP),
    SGD(MOMENTUM),
    SGD(MOMENTUM, accumulatorAndMomentum=SGDAccumulatorAndMomentum.Separate),
    *(Adam({}, mode=mode) for mode in AdamMode),
    *(Adaptive({}, mode=mode) for mode in AdaptiveMode),
]


def exchanged(optimizer, accumulation=1):
    model = gradient_graph(WEIGHTS)
    if accumulation > 1:
        accumulate(model, accumulation)
    return insert_host_allreduce(grow_updates(model, optimizer))


def copies(model):
    return [n for n in model.graph if n.domain == GRAPHCORE]


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_every_optimizer_is_covered(optimizer, accumulation):
    model = exchanged(optimizer, accumulation)
    onnx.checker.check_model(save(model))
    kinds = [node.op_type for node in copies(model)]
    assert kinds == ["GradCopyToHost"] * 2 + ["Sync"] + ["GradCopyFromHost"] * 2
    prefix = "Gradient___" if accumulation == 1 else "FinalReducedGradient___"
    assert {node.inputs[0].name for node in copies(model) if node.inputs} == {
        f"{prefix}w",
        f"{prefix}b",
    }


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_nothing_but_the_copies_reads_a_local_gradient(optimizer):
    model = exchanged(optimizer)
    for weight in WEIGHTS:
        gradient = next(
            v for n in model.graph for v in n.outputs if v.name == f"Gradient___{weight}"
        )
        kinds = {node.op_type for node in gradient.consumers()}
        assert kinds == {"GradCopyToHost", "GradCopyFromHost"}


def test_nodes_have_the_published_names():
    model = exchanged(SGD({}))
    d2h, _, sync, h2d, _ = copies(model)
    writer = next(v for v in model.graph.outputs if v.name == "UpdatedVar___w").producer()
    assert d2h.name == f"hostReduceGradCopy___d2h__{writer.name}"
    assert h2d.name == f"hostReduceGradCopy___h2d__{writer.name}"
    assert list(d2h.outputs) == []
    assert h2d.outputs[0].name == "HostReduceOut__Gradient___w"
    assert (h2d.outputs[0].dtype, h2d.outputs[0].shape) == (ir.DataType.FLOAT, ir.Shape([2, 3]))
    assert all(node.metadata_props[names.PHASE] == "update" for node in (d2h, sync, h2d))


def test_streams_have_their_published_handles():
    model = exchanged(SGD({}), accumulation=2)
    assert set(host_reduce_stream_ids(model)) == {
        f"gradient{way}__FinalReducedGradient___{weight}"
        for way in ("Store", "Load")
        for weight in WEIGHTS
    }


def test_a_model_without_exchange_has_no_streams():
    assert host_reduce_stream_ids(grow_updates(gradient_graph(WEIGHTS), SGD({}))) == []


def test_a_second_exchange_is_refused():
    model = exchanged(SGD({}))
    with pytest.raises(StreamError, match="exchanged on the host already"):
        insert_host_allreduce(model)


def test_an_unknown_gradient_is_refused():
    model = grow_updates(gradient_graph(WEIGHTS), SGD({}))
    with pytest.raises(StreamError, match="did you mean Gradient___w"):
        insert_host_allreduce(model, ["Gradient___v"])


def test_gradients_that_nothing_reads_come_back_as_outputs():
    model = insert_host_allreduce(gradient_graph(WEIGHTS))
    assert [value.name for value in model.graph.outputs] == [
        "HostReduceOut__Gradient___w",
        "HostReduceOut__Gradient___b",
    ]


def test_a_gradient_of_what_another_one_updates_is_refused():
    model = gradient_graph(WEIGHTS)
    by_name = {v.name: v for n in model.graph for v in n.outputs}
    second = by_name["Gradient___b"].producer()
    updated = ir.Node("", "ReduceSum", [by_name["Gradient___w"]], name="uses the first")
    model.graph.insert_before(second, updated)
    second.replace_input_with(1, updated.outputs[0])
    updated.outputs[0].name = "sum"
    with pytest.raises(StreamError, match="depends on what another gradient updates"):
        insert_host_allreduce(model)


# Any graph, made by any tool: layers of products whose gradients are written by hand, with updates
# strewn in between as early as they can be.


@st.composite
def training_graphs(draw):
    depth = draw(st.integers(1, 5))
    widths = [draw(st.integers(1, 4)) for _ in range(depth + 1)]
    early = [draw(st.booleans()) for _ in range(depth)]
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    nodes, weights = [], {}
    for i in range(depth):
        weights[f"w{i}"] = rng.normal(size=(widths[i], widths[i + 1])).astype(np.float32)
        nodes.append(helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]))
    late, gradient = [], "dy"
    for i in reversed(range(depth)):
        update = [
            helper.make_node("Mul", [f"Gradient___w{i}", "rate"], [f"step{i}"]),
            helper.make_node("Sub", [f"w{i}", f"step{i}"], [f"UpdatedVar___w{i}"]),
        ]
        nodes += [
            helper.make_node("Transpose", [f"x{i}"], [f"xt{i}"]),
            helper.make_node("MatMul", [f"xt{i}", gradient], [f"Gradient___w{i}"]),
        ]
        nodes += update if early[i] else []
        late += [] if early[i] else update
        nodes += [
            helper.make_node("Transpose", [f"w{i}"], [f"wt{i}"]),
            helper.make_node("MatMul", [gradient, f"wt{i}"], [f"dx{i}"]),
        ]
        gradient = f"dx{i}"
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes + late,
        "by hand",
        [
            info("x0", TensorProto.FLOAT, [2, widths[0]]),
            info("dy", TensorProto.FLOAT, [2, widths[-1]]),
        ],
        [info(f"UpdatedVar___w{i}", TensorProto.FLOAT, None) for i in range(depth)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()]
        + [numpy_helper.from_array(np.float32(0.5), "rate")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return onnx.shape_inference.infer_shapes(proto)


def run(proto, feeds, outputs=None):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    outputs = outputs or [value.name for value in session.get_outputs()]
    given = {value.name: feeds[value.name] for value in session.get_inputs()}
    return dict(zip(outputs, session.run(outputs, given), strict=True))


def cut(proto):
    """The halves before and after the exchange, by nothing but the order of the nodes."""
    order = [node.op_type for node in proto.graph.node]
    sync = order.index("Sync")
    halves = []
    inputs = list(proto.graph.input)
    for nodes in (proto.graph.node[:sync], proto.graph.node[sync:]):
        copied = [n for n in nodes if n.domain == GRAPHCORE]
        plain = [n for n in nodes if n.domain != GRAPHCORE]
        made = {name for node in plain for name in node.output}
        taken = [o for n in copied for o in n.output if n.op_type == "GradCopyFromHost"]
        given = [n.input[0] for n in copied if n.op_type == "GradCopyToHost"]
        outputs = [o for o in proto.graph.output if o.name in made]
        info = {v.name: v for v in proto.graph.value_info}
        graph = helper.make_graph(
            plain,
            "half",
            [*inputs, *(info[name] for name in taken)],
            [*outputs, *(info[name] for name in given)],
            proto.graph.initializer,
        )
        halves.append(helper.make_model(graph, opset_imports=proto.opset_import, ir_version=9))
    return halves


@settings(max_examples=40, deadline=None)
@given(proto=training_graphs(), factor=st.sampled_from([1.0, 2.0]))
def test_any_graph_trains_as_before_with_what_the_host_gives_back(proto, factor):
    count = len(proto.graph.output)
    changed = save(insert_host_allreduce(ir.from_proto(proto)))
    onnx.checker.check_model(changed)
    order = [node.op_type for node in changed.graph.node if node.domain == GRAPHCORE]
    assert order == ["GradCopyToHost"] * count + ["Sync"] + ["GradCopyFromHost"] * count

    rng = np.random.default_rng(0)
    feeds = {
        value.name: rng.normal(size=[d.dim_value for d in value.type.tensor_type.shape.dim]).astype(
            np.float32
        )
        for value in proto.graph.input
    }
    before, after = cut(changed)
    gradients = run(before, feeds)
    back = {
        f"HostReduceOut__{name}": factor * array
        for name, array in gradients.items()
        if name.startswith("Gradient___")
    }
    assert len(back) == count
    updated = run(after, feeds | back)
    old = {i.name: numpy_helper.to_array(i) for i in proto.graph.initializer}
    expected = run(proto, feeds)
    for name, weight in updated.items():
        start = old[name.removeprefix("UpdatedVar___")]
        np.testing.assert_allclose(
            weight, start + factor * (expected[name] - start), rtol=1e-4, atol=1e-4
        )


@settings(max_examples=30, deadline=None)
@given(proto=training_graphs(), data=st.data())
def test_a_gradient_leaves_as_soon_as_it_exists(proto, data):
    every = [f"Gradient___w{i}" for i in range(len(proto.graph.output))]
    chosen = data.draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
    model = insert_host_allreduce(ir.from_proto(proto), chosen)
    nodes = list(model.graph)
    for node in nodes:
        if node.op_type == "GradCopyToHost":
            assert nodes[nodes.index(node) - 1] is node.inputs[0].producer()
    assert sorted(host_reduce_stream_ids(model)) == sorted(
        way + one for way in ("gradientStore__", "gradientLoad__") for one in chosen
    )
