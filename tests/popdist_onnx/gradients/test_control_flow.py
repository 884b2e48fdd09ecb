"""Gradients through If, Loop and Scan and called graphs, nested too, beside torch in float64."""

import numpy as np
import pytest
import torch

import popdist_onnx as popart
from popdist_onnx.gradients.registry import differentiable
from popdist_onnx.graph.load import load
from popdist_onnx.lowering.apply import lower
from popdist_onnx.transforms.autodiff import autodiff
from popdist_onnx.transforms.loss import set_loss
from tests.popdist_onnx.gradients.harness import session

X = np.array([0.3, -1, 2], np.float32)
W = np.array([1.2, 0.7, -2], np.float32)


class Program:
    """A builder with two inputs, x and w."""

    def __init__(self, x=X, w=W):
        self.builder = popart.Builder(opsets={"ai.onnx": 11, "ai.graphcore": 1})
        self.ops = self.builder.aiOnnx
        self.x = self.builder.addInputTensor("FLOAT", x.shape)
        self.w = self.builder.addInputTensor("FLOAT", w.shape)
        self.feeds = {self.x: x, self.w: w}

    def constant(self, value, dtype=np.int64):
        return self.ops.constant(np.asarray(value, dtype))

    def summed(self, *tensors):
        sums = [self.ops.reducesum([self.ops.sin([one])], keepdims=0) for one in tensors]
        return self.ops.sum(sums)

    def check(self, loss, reference):
        """Compares loss and gradients with torch's."""
        self.builder.addOutputTensor(loss)
        model = lower(load(self.builder.getModelProto()), keep=differentiable("ai.graphcore"))
        model = lower(autodiff(set_loss(model, loss), outputs=[self.x, self.w]))
        found = dict(
            zip(
                [one.name for one in model.graph.outputs],
                session(model).run(None, self.feeds),
                strict=True,
            )
        )
        x, w = (
            torch.tensor(one, dtype=torch.float64, requires_grad=True)
            for one in self.feeds.values()
        )
        wanted = reference(x, w)
        wanted.backward()
        np.testing.assert_allclose(found[loss], wanted.detach().numpy(), rtol=2e-5, atol=1e-5)
        for name, tensor in ((self.x, x), (self.w, w)):
            zeros = np.zeros(tensor.shape)
            expected = zeros if tensor.grad is None else tensor.grad.numpy()
            got = found.get(f"Gradient___{name}", zeros)
            np.testing.assert_allclose(got, expected, rtol=2e-4, atol=1e-5)


def loop_body(parent):
    """A body with its turn, its condition and one state of whatever shape enters."""
    body = parent.createSubgraphBuilder()
    turn = body.addInputTensor("INT64", [])
    go_on = body.addInputTensor("BOOL", [])
    return body, turn, go_on, body.addUntypedInputTensor()


def end_loop(body, go_on, *outputs):
    body.addOutputTensor(body.aiOnnx.identity([go_on]))
    for one in outputs:
        body.addOutputTensor(one)


def sines(*tensors):
    return sum(one.sin().sum() for one in tensors)


@pytest.mark.parametrize("turns", [0, 1, 4])
def test_loop_with_states_and_slices(turns):
    program = Program()
    body, turn, go_on, state = loop_body(program.builder)
    ops = body.aiOnnx
    factor = ops.cast([ops.add([turn, ops.constant(np.array(1))])], "FLOAT")
    following = ops.mul([ops.sin([state]), ops.mul([program.w, factor])])
    end_loop(body, go_on, following, ops.exp([state]))
    last, slices = program.ops.loop(
        [program.constant(turns), program.constant(1, bool), program.x], 2, body
    )
    assert program.builder.getTensorShape(last) == [3]

    def reference(x, w):
        given = [torch.zeros(0, dtype=torch.float64)]
        for turn in range(turns):
            given.append(x.exp())
            x = x.sin() * (w * (turn + 1))
        return sines(x, *given)

    program.check(program.summed(last, slices), reference)


def test_loop_that_ends_when_its_state_says_so():
    program = Program()
    body, _, _, state = loop_body(program.builder)
    ops = body.aiOnnx
    following = ops.mul([state, program.w])
    size = ops.reducesum([ops.abs([following])], keepdims=0)
    body.addOutputTensor(ops.less([size, ops.constant(np.array(30, np.float32))]))
    body.addOutputTensor(following)
    (last,) = program.ops.loop(
        [program.constant(50), program.constant(1, bool), program.x], 1, body
    )

    def reference(x, w):
        while True:
            x = x * w
            if float(x.detach().abs().sum()) >= 30:
                return sines(x)

    program.check(program.summed(last), reference)


def test_loop_in_a_loop_with_a_branch_inside():
    program = Program()
    outer, _, go_on, state = loop_body(program.builder)
    inner, _, inner_go_on, inner_state = loop_body(outer)
    ops = inner.aiOnnx
    yes, no = inner.createSubgraphBuilder(), inner.createSubgraphBuilder()
    yes.addOutputTensor(yes.aiOnnx.mul([inner_state, program.w]))
    no.addOutputTensor(no.aiOnnx.sin([no.aiOnnx.add([inner_state, program.x])]))
    total = ops.reducesum([inner_state], keepdims=0)
    (branch,) = ops.logical_if(
        [ops.less([total, ops.constant(np.array(1, np.float32))])], 1, no, yes
    )
    end_loop(inner, inner_go_on, branch)
    (turned,) = outer.aiOnnx.loop(
        [outer.aiOnnx.constant(np.array(2)), outer.aiOnnx.constant(np.ones([], bool)), state],
        1,
        inner,
    )
    end_loop(outer, go_on, outer.aiOnnx.add([turned, state]))
    (last,) = program.ops.loop(
        [program.constant(3), program.constant(1, bool), program.x], 1, outer
    )

    def reference(x, w):
        begun = x
        for _ in range(3):
            state = x
            for _ in range(2):
                # then_branch is `yes`, taken below 1.
                below = float(state.detach().sum()) < 1
                state = state * w if below else (state + begun).sin()
            x = state + x
        return sines(x)

    program.check(program.summed(last), reference)


@pytest.mark.parametrize("x", [X, -X])
def test_branches_that_read_different_tensors(x):
    program = Program(x)
    yes, no = (program.builder.createSubgraphBuilder() for _ in range(2))
    yes.addOutputTensor(yes.aiOnnx.mul([program.x, program.w]))
    yes.addOutputTensor(yes.aiOnnx.exp([program.x]))
    no.addOutputTensor(no.aiOnnx.tanh([program.x]))
    no.addOutputTensor(no.aiOnnx.neg([program.x]))
    total = program.ops.reducesum([program.x], keepdims=0)
    positive = program.ops.greater([total, program.constant(0, np.float32)])
    first, second = program.ops.logical_if([positive], 2, no, yes)
    assert program.builder.getTensorShape(first) == [3]

    def reference(x, w):
        if float(x.detach().sum()) > 0:
            return sines(x * w, x.exp())
        return sines(x.tanh(), -x)

    program.check(program.summed(first, second), reference)


@pytest.mark.parametrize("ways", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_scan_with_axes_and_directions(ways):
    rows = np.random.default_rng(1).standard_normal([3, 4]).astype(np.float32)
    program = Program(rows)
    body = program.builder.createSubgraphBuilder()
    state, element = body.addInputTensor("FLOAT", [3]), body.addInputTensor("FLOAT", [3])
    following = body.aiOnnx.sin([body.aiOnnx.add([body.aiOnnx.mul([state, program.w]), element])])
    body.addOutputTensor(following)
    body.addOutputTensor(body.aiOnnx.mul([following, element]))
    start = program.ops.tanh([program.w])
    last, slices = program.ops.scan(
        [start, program.x],
        2,
        body,
        1,
        scan_input_axes=[1],
        scan_output_axes=[1],
        scan_input_directions=[ways[0]],
        scan_output_directions=[ways[1]],
    )
    assert program.builder.getTensorShape(slices) == [3, 4]
    weights = np.arange(12, dtype=np.float32).reshape(3, 4)
    loss = program.summed(last, program.ops.mul([slices, program.constant(weights, np.float32)]))

    def reference(x, w):
        state, given = w.tanh(), []
        for element in x.flip(1).unbind(1) if ways[0] else x.unbind(1):
            state = (state * w + element).sin()
            given.append(state * element)
        stacked = torch.stack(given[::-1] if ways[1] else given, 1)
        return sines(state, stacked * torch.tensor(weights))

    program.check(loss, reference)


def test_scan_whose_slices_keep_their_axis():
    """As PopART's do; what turns give is put one after the other."""
    rows = np.random.default_rng(1).standard_normal([2, 4, 3]).astype(np.float32)
    program = Program(rows)
    body = program.builder.createSubgraphBuilder()
    state, element = body.addUntypedInputTensor(), body.addUntypedInputTensor()
    following = body.aiOnnx.mul([body.aiOnnx.sin([body.aiOnnx.add([state, element])]), program.w])
    body.addOutputTensor(following)
    body.addOutputTensor(body.aiOnnx.concat([element, following], 1))
    start = program.constant(np.zeros([2, 1, 3]), np.float32)
    last, slices = program.ops.scan(
        [start, program.x], 2, body, 1, scan_input_axes=[1], scan_output_axes=[1]
    )
    assert program.builder.getTensorShape(slices) == [2, 8, 3]

    def reference(x, w):
        state, given = torch.zeros(2, 1, 3, dtype=torch.float64), []
        for element in x.split(1, 1):
            state = (state + element).sin() * w
            given += [element, state]
        joined = torch.cat(given, 1)
        assert list(joined.shape) == [2, 8, 3]
        return sines(state, joined)

    program.check(program.summed(last, slices), reference)


def test_called_graphs_with_tensors_of_the_graph_around_and_a_loop():
    program = Program()
    callee = program.builder.createSubgraphBuilder()
    callee.addInputTensorFromParentGraph(program.x)
    callee.addInputTensorFromParentGraph(program.w)
    body, _, go_on, state = loop_body(callee)
    end_loop(body, go_on, body.aiOnnx.sin([body.aiOnnx.mul([state, program.w])]))
    ops = callee.aiOnnx
    (turned,) = ops.loop(
        [ops.constant(np.array(3)), ops.constant(np.ones([], bool)), program.x], 1, body
    )
    callee.addOutputTensor(callee.aiGraphcore.gelu([turned]))
    (one,) = program.builder.aiGraphcore.call([program.x, program.w], 1, callee)
    # The other way round: arguments are bound in their order.
    (other,) = program.builder.aiGraphcore.call([program.w, program.x], 1, callee)

    def function(x, w):
        for _ in range(3):
            x = (x * w).sin()
        return torch.nn.functional.gelu(x, approximate="tanh")

    program.check(program.summed(one, other), lambda x, w: sines(function(x, w), function(w, x)))


def test_weights_inside_of_a_loop_train_as_in_torch():
    builder = popart.Builder(opsets={"ai.onnx": 11, "ai.graphcore": 1})
    x = builder.addInputTensor("FLOAT", [3])
    body, _, go_on, state = loop_body(builder)
    inside = body.addInitializedInputTensor(W)
    end_loop(body, go_on, body.aiOnnx.sin([body.aiOnnx.mul([state, inside])]))
    ops = builder.aiOnnx
    (y,) = ops.loop([ops.constant(np.array(3)), ops.constant(np.ones([], bool)), x], 1, body)
    loss = builder.aiGraphcore.identityloss([y], reduction=popart.ReductionType.Sum)
    training = popart.TrainingSession(
        builder.getModelProto(),
        popart.DataFlow(1, [loss]),
        loss,
        popart.SGD({"defaultLearningRate": (0.5, False)}),
        popart.DeviceManager().createCpuDevice(),
    )
    training.prepareDevice()
    training.weightsFromHost()
    for _ in range(2):
        training.run(popart.PyStepIO({x: X}, training.initAnchorArrays()))
    training.weightsToHost()
    found = np.empty_like(W)
    training.readWeights(popart.PyWeightsIO({inside: found}))

    w = torch.tensor(W, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        state = torch.tensor(X, dtype=torch.float64)
        for _ in range(3):
            state = (state * w).sin()
        (slope,) = torch.autograd.grad(state.sum(), w)
        w = (w - 0.5 * slope).detach().requires_grad_()
    np.testing.assert_allclose(found, w.detach().numpy(), rtol=1e-5)
