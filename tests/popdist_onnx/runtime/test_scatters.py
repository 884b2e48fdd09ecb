"""Additions of scattered rows, with several threads of ONNX Runtime."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import popdist_onnx as popart
from popdist_onnx.runtime.scatters import add_in_order

RNG = np.random.default_rng(3)
REDUCTIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def scatter(shape, index_shape, reduction, *, known=True, dtype=TensorProto.FLOAT):
    """A model of one ScatterND."""
    depth = index_shape[-1]
    kinds = {
        "data": (dtype, shape),
        "indices": (TensorProto.INT64, index_shape),
        "updates": (dtype, [*index_shape[:-1], *shape[depth:]]),
    }
    open_ = {name: [f"{name}{i}" for i in range(len(dims))] for name, (_, dims) in kinds.items()}
    open_["indices"][-1] = depth
    node = helper.make_node("ScatterND", list(kinds), ["y"], reduction=reduction)
    graph = helper.make_graph(
        [node],
        "scatter",
        [
            helper.make_tensor_value_info(name, kind, dims if known else open_[name])
            for name, (kind, dims) in kinds.items()
        ],
        [helper.make_tensor_value_info("y", dtype, shape if known else open_["data"])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def rewritten(proto, threads=4):
    model = ir.from_proto(proto)
    add_in_order(model, threads)
    return ir.to_proto(model)


def computed(proto, feeds, threads=4):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options)
    return session.run(None, feeds)[0]


def operators(proto):
    return [node.op_type for node in proto.graph.node]


@pytest.mark.parametrize("known", [True, False], ids=["static", "open"])
@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
@pytest.mark.parametrize(
    ("shape", "index_shape"),
    [
        ([5], [7, 1]),
        ([5, 3], [7, 1]),
        ([5, 3], [2, 4, 1]),
        ([4, 3], [9, 2]),
        ([4, 3, 2], [2, 5, 2]),
        ([2, 3, 2], [8, 3]),
        ([1, 1], [3, 2]),
        ([4, 2], [0, 1]),
    ],
    ids=str,
)
def test_it_computes_what_numpy_computes(shape, index_shape, reduction, known):
    proto = scatter(shape, index_shape, reduction, known=known)
    made = rewritten(proto)
    assert "ScatterND" not in operators(made)
    onnx.checker.check_model(made, full_check=True)
    limits = np.array(shape[: index_shape[-1]])
    feeds = {
        "data": RNG.integers(-3, 4, shape).astype(np.float32),
        "indices": RNG.integers(-limits, limits, index_shape),
        "updates": RNG.integers(1, 4, [*index_shape[:-1], *shape[index_shape[-1] :]]).astype(
            np.float32
        ),
    }
    # The reference evaluator reduces at pairs of indices wrongly; numpy has the operation too.
    expected = feeds["data"].copy()
    REDUCTIONS[reduction].at(
        expected, tuple(np.moveaxis(feeds["indices"], -1, 0)), feeds["updates"]
    )
    np.testing.assert_array_equal(computed(made, feeds), expected)


@pytest.mark.parametrize("indices", [[[0, 3]], [[4, 0]], [[0, -4]], [[-5, 0]]])
def test_places_outside_are_refused(indices):
    made = rewritten(scatter([4, 3], [1, 2], "add"))
    feeds = {
        "data": np.zeros((4, 3), np.float32),
        "indices": np.array(indices),
        "updates": np.ones(1, np.float32),
    }
    with pytest.raises(Exception, match=r"out of (data )?bounds|must be within"):
        computed(made, feeds)


def test_one_thread_keeps_the_faster_operator():
    proto = scatter([5, 3], [7, 1], "add")
    assert operators(rewritten(proto, threads=1)) == ["ScatterND"]
    assert operators(rewritten(scatter([5, 3], [7, 1], "none"))) == ["ScatterND"]


def test_no_addition_is_lost_where_all_rows_go_to_few_places():
    shape, count = [4, 16], 100_000
    made = rewritten(scatter(shape, [count, 1], "add"))
    indices = RNG.integers(0, shape[0], (count, 1))
    feeds = {
        "data": np.zeros(shape, np.float32),
        "indices": indices,
        "updates": np.ones((count, shape[1]), np.float32),
    }
    expected = np.repeat(np.bincount(indices[:, 0])[:, None], shape[1], axis=1)
    for _ in range(3):
        np.testing.assert_array_equal(computed(made, feeds), expected)


def table_of(rows, width, count, within=None):
    """Builds a model that looks rows of a table up, and returns it with its table and its loss."""
    builder = popart.Builder()
    indices = builder.addInputTensor("INT64", [count], "indices")
    table = builder.addInitializedInputTensor(np.ones((rows, width), np.float32), "table")
    if within is None:
        found = builder.aiOnnx.gather([table, indices])
    else:
        branch = builder.createSubgraphBuilder()
        branch.addInputTensorFromParentGraph(table)
        branch.addInputTensorFromParentGraph(indices)
        branch.addOutputTensor(branch.aiOnnx.gather([table, indices]))
        other = builder.createSubgraphBuilder()
        other.addInputTensorFromParentGraph(table)
        other.addInputTensorFromParentGraph(indices)
        zero = other.aiOnnx.constant(np.array(0.0, np.float32))
        other.addOutputTensor(other.aiOnnx.mul([other.aiOnnx.gather([table, indices]), zero]))
        taken = builder.aiOnnx.constant(np.bool_(1))
        (found,) = builder.aiOnnx.logical_if([taken], 1, other, branch)
    loss = builder.aiGraphcore.identityloss([found], popart.ReductionType.Sum)
    return builder.getModelProto(), table, loss


ROWS, WIDTH, COUNT = 3, 32, 60_000


def assert_exact_gradients(monkeypatch, threads, prepared_with, within=None):
    """Trains an embedding in a session that is built, and then prepared, with so many threads."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    proto, table, loss = table_of(ROWS, WIDTH, COUNT, within)
    gradient = f"Gradient___{table}"
    flow = popart.DataFlow(1, {gradient: popart.AnchorReturnType("All")})
    device = popart.DeviceManager().createCpuDevice()
    session = popart.TrainingSession(proto, flow, loss, popart.ConstSGD(0.5), device)
    monkeypatch.setenv("OMP_NUM_THREADS", str(prepared_with))
    session.prepareDevice()
    session.weightsFromHost()
    anchors = session.initAnchorArrays()
    indices = RNG.integers(0, ROWS, COUNT)
    expected = np.repeat(np.bincount(indices)[:, None], WIDTH, axis=1)
    for _ in range(3):
        session.run(popart.PyStepIO({"indices": indices}, anchors))
        np.testing.assert_array_equal(anchors[gradient].reshape(ROWS, WIDTH), expected)


@pytest.mark.parametrize("within", [None, "a branch"])
def test_the_gradient_of_an_embedding_is_exact_with_several_threads(within, monkeypatch):
    assert_exact_gradients(monkeypatch, 4, 4, within)


def test_threads_that_are_asked_for_after_the_graph_was_written_are_not_started(monkeypatch):
    assert_exact_gradients(monkeypatch, 1, 4)
