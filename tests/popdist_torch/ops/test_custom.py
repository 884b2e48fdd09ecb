"""Host functions of custom operators, against torch in double precision."""

import os
import subprocess
import sys

import onnx.parser
import pytest
import torch
from onnxruntime import InferenceSession
from torch import nn
from torch.nn import functional

import popdist_torch as poptorch
from popdist_torch.ops.custom.registry import REGISTRY
from tests.distributed.jobs import ROOT


def test_a_registered_function_computes_an_operator_with_its_gradient():
    @poptorch.host_op("Scaled", "mine.ops", 2)
    def scaled(call):
        return call.inputs[0] * call.attributes["by"], call.inputs[0].sum()

    x = torch.ones(3, requires_grad=True)
    found = poptorch.custom_op(
        [x], "Scaled", "mine.ops", 2, example_outputs=[x, x[0]], attributes={"by": 4.0}
    )
    assert [one.tolist() for one in found] == [[4, 4, 4], 3]
    found[0].sum().backward()
    assert x.grad.tolist() == [4, 4, 4]
    assert scaled.__name__ == "scaled"


def test_an_unknown_operator_is_an_error_that_says_how_to_register_one():
    with pytest.raises(poptorch.Error, match="PD360") as error:
        poptorch.custom_op([torch.ones(1)], "RemapCC", "ai.graphcore", 1, [torch.ones(1)])
    assert isinstance(error.value, NotImplementedError)
    assert "ai.graphcore.RemapCE" in error.value.hint
    with pytest.raises(poptorch.Error) as error:
        poptorch.custom_op([torch.ones(1)], "Unheard", "of.this", 1, [torch.ones(1)])
    assert "host_op('Unheard', 'of.this', 1)" in error.value.hint


def test_the_number_of_results_is_that_of_the_examples():
    poptorch.host_op("One", "mine.ops")(lambda call: call.inputs[0])
    with pytest.raises(poptorch.Error, match="PD362"):
        poptorch.custom_op([torch.ones(1)], "One", "mine.ops", 1, [torch.ones(1)] * 2)


PROGRAM = """
import poptorch, torch
x = torch.ones(2)
print(poptorch.custom_op([x], "Doubled", "their.ops", 1, [x])[0].tolist())
"""


@pytest.mark.parametrize("how", ["a file", "a module"])
def test_an_unchanged_program_gets_functions_that_a_variable_names(tmp_path, how):
    code = "import torch, popdist_torch\n"
    code += "double = popdist_torch.host_op('Doubled', 'their.ops')\n"
    code += "double(lambda call: torch.mul(call.inputs[0], 2))\n"
    (tmp_path / "their_ops.py").write_text(code)
    (tmp_path / "program.py").write_text(PROGRAM)
    source = str(tmp_path / "their_ops.py") if how == "a file" else "their_ops"
    done = subprocess.run(
        [sys.executable, "-m", "popdist.sdk", "program.py"],
        env={**os.environ, "POPDIST_CUSTOM_OPS": source, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "[2.0, 2.0]\n", done.stderr


def test_a_file_that_cannot_be_imported_is_named(monkeypatch):
    monkeypatch.setenv("POPDIST_CUSTOM_OPS", "/nowhere/ops.py")
    monkeypatch.setattr(REGISTRY, "_loaded", False)
    with pytest.raises(poptorch.Error, match="PD361") as error:
        REGISTRY.find("Cube", "custom.ops", 1)
    assert error.value.value == "/nowhere/ops.py"


X = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

SUPPRESSION = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["" : 11]>
    graph (float[2, 9, 4] boxes, float[2, 3, 9] scores) => (int64[n, 3] kept)
    <int64 most = {100}, float overlap = {0.3}, float lowest = {0.2}> {
        kept = NonMaxSuppression(boxes, scores, most, overlap, lowest)
    }"""
)

ELEMENTWISE = {
    ("RemapCE", "ai.graphcore"): ({"grain_size": 8}, lambda x: x),
    ("CopyTensor", "ai.graphcore"): ({}, lambda x: x),
    ("LeakyRelu", "custom.ops"): ({"alpha": 0.3}, lambda x: torch.where(x > 0, x, 0.3 * x)),
    ("Cube", "custom.ops"): ({}, lambda x: x * x * x),
}


@pytest.mark.parametrize("key", ELEMENTWISE, ids=lambda key: key[0])
def test_elementwise_operators(key):
    attributes, reference = ELEMENTWISE[key]
    both = [X.clone().requires_grad_() for _ in range(2)]
    (found,) = poptorch.custom_op([both[0]], *key, 1, [X], attributes)
    expected = reference(both[1])
    torch.testing.assert_close(found, expected)
    assert found is not both[0]
    for one in (found, expected):
        (one * Y[:4]).sum().backward()
    torch.testing.assert_close(both[0].grad, both[1].grad)


@pytest.mark.parametrize("norm", [1, 2])
def test_distances(norm):
    (found,) = poptorch.custom_op([X, Y], f"L{norm}Distance", "ai.graphcore", 1, [X @ Y.T])
    difference = (X[:, None] - Y[None]).abs() ** norm
    torch.testing.assert_close(found, difference.sum(-1) ** (1 / norm))


@pytest.mark.parametrize("most", [3, 40])
def test_boxes_are_suppressed_as_by_onnx(most):
    generator = torch.Generator().manual_seed(7)
    scores = torch.rand(2, 9, 3, generator=generator)
    low = torch.rand(2, 9, 2, generator=generator)
    boxes = torch.cat([low, low + torch.rand(2, 9, 2, generator=generator)], -1)
    limits = {"threshold": 0.3, "scoreThreshold": 0.2, "numDetections": most}
    shapes = [torch.zeros(2, most), torch.zeros(2, most), torch.zeros(2, most, 4)]
    found = poptorch.custom_op(
        [scores, boxes], "Nms", "ai.graphcore", 1,
        [shapes[0].int(), *shapes[1:], shapes[0].int(), torch.zeros(2).int()],
        {**limits, "useGather": 1},
    )  # fmt: skip
    places, values, corners, kinds, counts = found
    session = InferenceSession(SUPPRESSION.SerializeToString())
    (kept,) = session.run(None, {"boxes": boxes.numpy(), "scores": scores.mT.numpy()})
    for row in range(2):
        own = kept[kept[:, 0] == row][:, 1:]
        best = sorted(own.tolist(), key=lambda one: -scores[row, one[1], one[0]])[:most]
        assert counts[row] == len(best)
        pairs = torch.stack([kinds[row], places[row]], 1)[: len(best)]
        assert pairs.tolist() == best
        expected = torch.stack([scores[row, place, kind] for kind, place in best])
        torch.testing.assert_close(values[row, : len(best)], expected)
        torch.testing.assert_close(corners[row, : len(best)], boxes[row, [b for _, b in best]])
        assert (places[row, len(best) :] == -1).all()
        assert not values[row, len(best) :].any()


def test_the_gradient_of_a_proxy():
    value, proxy = X.clone().requires_grad_(), Y[:4].clone().requires_grad_()
    (found,) = poptorch.custom_op([value, proxy], "AutogradProxy", "ai.graphcore", 1, [X])
    torch.testing.assert_close(found, X)
    found.sum().backward()
    assert value.grad is None
    assert proxy.grad.unique().tolist() == [1]


@pytest.mark.parametrize("reduction", ["Sum", "Mean", "None"])
def test_ctc_has_the_loss_and_the_gradient_of_torch(reduction):
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(7, 2, 5, generator=generator).log_softmax(-1)
    labels = torch.tensor([[1, 2, 3], [4, 1, 0]], dtype=torch.int32)
    times, lengths = torch.tensor([7, 6]), torch.tensor([3, 2])
    mine, torchs = scores.clone().requires_grad_(), scores.double().requires_grad_()
    loss, gradient = poptorch.custom_op(
        [mine, labels, times, lengths], "Ctc", "ai.graphcore", 1,
        [torch.zeros(()), scores], {"reduction": reduction, "blank": 0},
    )  # fmt: skip
    expected = functional.ctc_loss(
        torchs, labels.long(), times, lengths, reduction=reduction.lower()
    )
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    loss.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(mine.grad.double(), torchs.grad, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, mine.grad)
    with pytest.raises(poptorch.Error, match="PD363"):
        poptorch.custom_op(
            [mine, labels, times, lengths], "Ctc", "ai.graphcore", 1, [loss], {"reduction": "Max"}
        )


class Averaged(nn.Module):
    """A student with a teacher that follows it, as self-distillation has."""

    def __init__(self):
        super().__init__()
        self.student = nn.Linear(2, 1, bias=False)
        self.teacher = nn.Linear(2, 1, bias=False).requires_grad_(requires_grad=False)

    def forward(self, x, factor):
        poptorch.custom_op(
            [self.student.weight, self.teacher.weight, factor], "ExpMovAvg", "com.acme", 1,
            [self.student.weight], {},
        )  # fmt: skip
        return poptorch.identity_loss((self.student(x) ** 2).mean(), "none")


def test_a_moving_average_moves_once_for_an_update_and_before_it():
    torch.manual_seed(4)
    model = Averaged()
    student = model.student.weight.detach().clone().double()
    teacher = model.teacher.weight.detach().clone().double()
    options = poptorch.Options()
    options.Training.gradientAccumulation(3)
    options.replicationFactor(2)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer=optimizer)
    rows = torch.randn(4, 12, 2)
    for x in rows:
        training(x, torch.full((6,), 0.9))
        teacher = 0.9 * teacher + 0.1 * student
        student = student - 0.1 * 2 * (x.double().T @ (x.double() @ student.T)).T / len(x)
    torch.testing.assert_close(model.teacher.weight.double(), teacher, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.student.weight.double(), student, rtol=1e-5, atol=1e-6)
    assert model.teacher.weight.grad is None


def test_collectives_of_one_replica_change_nothing():
    for name in ("ReplicatedAllReduce", "ReplicatedAllReduceTP", "ReplicatedAllToAll"):
        assert torch.equal(poptorch.custom_op([X], name, "ai.graphcore", 1, [X])[0], X)
    (found,) = poptorch.custom_op([X], "ReplicatedAllGather", "ai.graphcore", 1, [X[None]])
    assert torch.equal(found, X[None])
    with pytest.raises(poptorch.Error, match="PD363"):
        poptorch.custom_op([X], "ReplicatedAllReduceTP", "ai.graphcore", 1, [X], {"op": "max"})


@pytest.mark.parametrize("mode", ["sparse_dense", "dense_sparse"])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16])
def test_a_constant_matrix_of_blocks_is_multiplied_as_a_dense_one(mode, kind):
    generator = torch.Generator().manual_seed(4)
    blocks = torch.randn(3, 2, 2, generator=generator)
    rows, columns = [0, 2, 4], [2, 0, 2]  # of the first element of each block
    matrix = torch.zeros(6, 4)
    for row, column, block in zip(rows, columns, blocks, strict=True):
        matrix[row : row + 2, column : column + 2] = block
    shape = (4, 5) if mode == "sparse_dense" else (5, 6)
    dense = torch.randn(shape, generator=generator).to(kind).requires_grad_()
    attributes = {
        "mode": mode, "n_rows": 6, "n_cols": 4, "block_size": 2, "rows": rows, "cols": columns,
        "values": blocks.flatten().tolist(),
    }  # fmt: skip
    (found,) = poptorch.custom_op(
        [dense], "StaticSparseMatmul", "ai.graphcore", 1, [dense], attributes=attributes
    )
    other = dense.detach().double().requires_grad_()
    whole = matrix.double()
    wanted = whole @ other if mode == "sparse_dense" else other @ whole
    (found.double() ** 2).sum().backward()
    (wanted**2).sum().backward()
    assert found.dtype == kind
    near = {"rtol": 1e-5, "atol": 1e-5} if kind == torch.float32 else {"rtol": 1e-2, "atol": 2e-2}
    torch.testing.assert_close(found.double(), wanted, **near)
    torch.testing.assert_close(dense.grad.double(), other.grad, **near)


def quantised(x, *, fwd=True, bwd="ste", rounding="nearest"):
    attributes = {
        "exponent_bits": 5, "mantissa_bits": 2, "rounding": rounding, "fwd": fwd, "bwd": bwd
    }  # fmt: skip
    return poptorch.custom_op([x], "SimulatedQuant", "ai.graphcore", 1, [x], attributes=attributes)[
        0
    ]


def test_simulated_values_are_those_of_a_type_of_eight_bits():
    scales = torch.logspace(-6, 4.7, 4001)
    x = torch.cat([scales, -scales, torch.zeros(1)]).requires_grad_()
    eight = x.detach().to(torch.float8_e5m2fnuz).float()
    assert torch.equal(quantised(x), eight)
    assert torch.equal(quantised(x, fwd=False), x)
    assert torch.equal(quantised(torch.tensor([1e9, -1e9])), torch.tensor([57344.0, -57344.0]))
    for mode, wanted in (("ste", x.detach()), ("quantise", eight), ("stop", None)):
        x.grad = None
        (quantised(x, bwd=mode) * x.detach()).sum().backward() if mode != "stop" else None
        assert x.grad is None if wanted is None else torch.equal(x.grad, wanted)
    assert not quantised(x.detach(), bwd="stop").requires_grad


def test_random_rounding_is_right_on_average():
    torch.manual_seed(6)
    found = quantised(torch.full((20_000,), 1.2), rounding="stochastic")
    assert set(found.tolist()) == {1.0, 1.25}
    assert abs(found.mean().item() - 1.2) < 4 * 0.25 * (0.8 * 0.2 / 20_000) ** 0.5
