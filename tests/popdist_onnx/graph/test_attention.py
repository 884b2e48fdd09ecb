"""`Attention` of opset 23: forward as ONNX and ONNX Runtime, gradients as torch in float64."""

import itertools

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch.nn import functional

import popdist_onnx
from popdist_onnx.graph.load import load
from popdist_onnx.transforms.autodiff import autodiff
from popdist_onnx.transforms.loss import set_loss
from tests.popdist_onnx.gradients.harness import session
from tests.popdist_onnx.training.test_torch_modules import DYNAMO

BATCH, QUERIES, KEYS, WIDTH, OUT, PAST = 2, 3, 5, 4, 6, 2
CAP = 1.5
RELEASE = tuple(int(part) for part in onnx.__version__.split(".")[:2])
CORRECTED = (1, 23)
"""The first release whose reference follows today's text in all that is compared here."""

CASES = [
    {"flat": flat, "heads": heads, "mask": mask, "causal": causal, "cap": cap, "past": past}
    for flat, heads, mask, causal, cap, past in itertools.product(
        (False, True),
        ((4, 4), (4, 2), (4, 1)),
        (None, "bool", "float", "by sample", "empty row"),
        (False, True),
        (0.0, CAP),
        (0, PAST),
    )
][::7]  # a number that is prime to all lengths: each value meets each


def name_of(case):
    heads, groups = case["heads"]
    words = [f"{3 if case['flat'] else 4}d {heads}-{groups}", case["mask"] or "all"]
    return " ".join([*words, *(word for word in ("causal", "cap", "past") if case[word])])


def operands(case):
    rng = np.random.default_rng(1)
    heads, groups = case["heads"]
    total = KEYS + case["past"]

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    if case["flat"]:
        made = {
            "q": normal(BATCH, QUERIES, heads * WIDTH),
            "k": normal(BATCH, KEYS, groups * WIDTH),
            "v": normal(BATCH, KEYS, groups * OUT),
        }
    else:
        made = {
            "q": normal(BATCH, heads, QUERIES, WIDTH),
            "k": normal(BATCH, groups, KEYS, WIDTH),
            "v": normal(BATCH, groups, KEYS, OUT),
        }
    match case["mask"]:
        case "bool":
            made["mask"] = rng.random((QUERIES, total)) > 0.3
        case "float":
            made["mask"] = normal(QUERIES, total)
        case "by sample":
            made["mask"] = rng.random((BATCH, 1, QUERIES, total)) > 0.4
        case "empty row":
            made["mask"] = rng.random((QUERIES, total)) > 0.4
            made["mask"][1] = False
    if case["mask"] in ("bool", "by sample"):
        made["mask"][..., 0] = True
    if case["past"]:
        made |= {
            "past_key": normal(BATCH, groups, PAST, WIDTH),
            "past_value": normal(BATCH, groups, PAST, OUT),
        }
    return made


OUTPUTS = ("y", "present_key", "present_value", "scores")


def model_of(case, mode=0, read=None, **more):
    """The node alone; with ``read`` the loss is a sum of these outputs with factors."""
    given = operands(case)
    names = [
        name if name in given else "" for name in ("q", "k", "v", "mask", "past_key", "past_value")
    ]
    while not names[-1]:
        names.pop()
    heads, groups = case["heads"]
    settings = {"is_causal": int(case["causal"]), "qk_matmul_output_mode": mode}
    if case["flat"]:
        settings |= {"q_num_heads": heads, "kv_num_heads": groups}
    if case["cap"]:
        settings["softcap"] = case["cap"]
    settings |= more
    made = [one for one in OUTPUTS if case["past"] or not one.startswith("present")]
    nodes = [
        helper.make_node(
            "Attention",
            names,
            [one if one in made else "" for one in OUTPUTS],
            "subject",
            **settings,
        )
    ]
    stored = []
    for name in read or ():
        stored.append(numpy_helper.from_array(factors(case, name), f"c_{name}"))
        nodes += [
            helper.make_node("Mul", [name, f"c_{name}"], [f"w_{name}"]),
            helper.make_node("ReduceSum", [f"w_{name}"], [f"s_{name}"], keepdims=0),
        ]
    if read:
        nodes.append(helper.make_node("Sum", [f"s_{name}" for name in read], ["loss"]))
    graph = helper.make_graph(
        nodes,
        "attention",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in given.items()
        ],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [] if read else None)
            for name in (["loss"] if read else made)
        ],
        stored,
    )
    opsets = [helper.make_opsetid("", 23)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def results_of_torch(case, tensors, mode):
    """All outputs from torch: its own attention, or the formula where there is a cap."""
    q, k, v = (tensors[name] for name in "qkv")
    heads, groups = case["heads"]
    if case["flat"]:
        q, k, v = (
            one.unflatten(-1, (count, -1)).transpose(1, 2)
            for one, count in ((q, heads), (k, groups), (v, groups))
        )
    if case["past"]:
        k = torch.cat([tensors["past_key"], k], 2)
        v = torch.cat([tensors["past_value"], v], 2)
    present = {"present_key": k, "present_value": v}
    k, v = (one.repeat_interleave(heads // groups, 1) for one in (k, v))
    mask = tensors.get("mask")
    bias = torch.zeros(q.shape[2], k.shape[2], dtype=torch.float64)
    if mask is not None and mask.dtype == torch.bool:
        bias = bias.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        bias = bias + mask
    if case["causal"]:
        allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(case["past"])
        bias = bias.masked_fill(~allowed, -torch.inf)
    dead = (bias == -torch.inf).all(-1, keepdim=True)
    safe = bias.masked_fill(dead, 0.0)
    raw = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    capped = torch.tanh(raw / case["cap"]) * case["cap"] if case["cap"] else raw
    weights = (capped + safe).softmax(-1).masked_fill(dead, 0.0)
    y = (weights @ v).masked_fill(dead, 0.0)
    if not case["cap"]:
        own = functional.scaled_dot_product_attention(q, k, v, safe.broadcast_to(weights.shape))
        torch.testing.assert_close(own.masked_fill(dead, 0.0), y)
    if case["flat"]:
        y = y.transpose(1, 2).flatten(2)
    return {"y": y, **present, "scores": [raw, capped, capped + bias, weights][mode]}


def tensors_of(case):
    return {
        name: torch.tensor(array)
        if array.dtype == bool
        else torch.tensor(array).double().requires_grad_()
        for name, array in operands(case).items()
    }


def factors(case, name):
    shape = tuple(results_of_torch(case, tensors_of(case), 0)[name].shape)
    return np.random.default_rng(len(name)).normal(size=shape).astype(np.float32)


def reference_follows(case, mode):
    """Whether the installed release of onnx evaluates a case as the newest text says."""
    if case["cap"] and mode == 0:
        # It hands the capped scores out, also in the newest release; kernels do as the text says.
        return False
    if RELEASE >= CORRECTED:
        return True
    plain = not case["flat"] and case["heads"][0] == case["heads"][1] and mode != 1
    if case["mask"] is None:
        return plain and not (case["causal"] and case["past"])
    return plain and case["mask"] in ("bool", "float") and not case["cap"] and not case["causal"]


@pytest.mark.parametrize("case", CASES, ids=name_of)
@pytest.mark.parametrize("mode", range(4))
def test_forward_is_that_of_onnx_runtime_and_onnx(case, mode):
    model, given = model_of(case, mode), operands(case)
    loaded = load(model)
    assert "Attention" not in {node.op_type for node in loaded.graph}
    found = session(loaded).run(None, given)
    names = [one.name for one in model.graph.output]
    peers = {"ONNX Runtime": session(model).run(None, given)}
    if reference_follows(case, mode):
        peers["ONNX"] = ReferenceEvaluator(model).run(None, given)
    for peer, wanted in peers.items():
        for name, one, other in zip(names, found, wanted, strict=True):
            if name == "scores" and mode == 2:
                # ONNX Runtime has the smallest finite number where the text has minus infinity.
                other = np.where(other < -1e30, -np.inf, other)  # noqa: PLW2901
            np.testing.assert_allclose(one, other, atol=2e-6, rtol=2e-6, err_msg=f"{peer} {name}")


def test_the_reference_of_onnx_is_asked():
    asked = sum(reference_follows(case, mode) for case in CASES for mode in range(4))
    assert asked >= (len(CASES) * 3 if RELEASE >= CORRECTED else 3)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_gradients_are_those_of_torch(case):
    # Scores before the mask are finite, so that their gradient is compared too.
    mode = 1 if case["mask"] is None else 3
    read = [one for one in OUTPUTS if case["past"] or not one.startswith("present")]
    tensors = tensors_of(case)
    made = results_of_torch(case, tensors, mode)
    loss = sum((made[name] * torch.tensor(factors(case, name))).sum() for name in read)
    loss.backward()
    wanted = {name: one.grad.numpy() for name, one in tensors.items() if one.requires_grad}
    model = autodiff(set_loss(load(model_of(case, mode, read)), "loss"), outputs=[*wanted])
    names = [str(one.name) for one in model.graph.outputs]
    found = dict(zip(names, session(model).run(None, operands(case)), strict=True))
    assert float(found["loss"]) == pytest.approx(float(loss.detach()), abs=1e-4)
    for name, gradient in wanted.items():
        got = found[f"Gradient___{name}"]
        np.testing.assert_allclose(got, gradient, atol=2e-5, rtol=1e-4, err_msg=name)


def test_softmax_in_another_precision():
    case = next(one for one in CASES if one["mask"] is None and not one["cap"])
    found = session(load(model_of(case, 3, softmax_precision=TensorProto.DOUBLE)))
    kinds = {node.op_type: node for node in load(model_of(case, softmax_precision=11)).graph}
    assert kinds["Softmax"].inputs[0].dtype.name == "DOUBLE"
    wanted = results_of_torch(case, tensors_of(case), 3)["scores"].detach().numpy()
    np.testing.assert_allclose(found.run(["scores"], operands(case))[0], wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"q_num_heads": 3}, "do not divide into 3 heads"),
        ({"kv_num_heads": 0}, "kv_num_heads must be 1 or more"),
        ({"kv_num_heads": None}, "kv_num_heads"),
        ({"q_num_heads": 2, "kv_num_heads": 4}, "2 query heads do not divide into 4 key heads"),
    ],
)
def test_heads_that_do_not_fit_are_refused(change, said):
    case = next(one for one in CASES if one["flat"])
    with pytest.raises(popdist_onnx.popart_exception, match=said):
        load(model_of(case, **change))


# A network whose attention has all of it: groups, a mask that trains, causal positions, a cap.

STEPS, FEATURES, HEADS, GROUPS = 4, 5, 4, 2
SIZES = {"q": HEADS * WIDTH, "k": GROUPS * WIDTH, "v": GROUPS * WIDTH}


def network():
    rng = np.random.default_rng(2)
    made = {f"w{name}": rng.normal(size=(FEATURES, size)) for name, size in SIZES.items()}
    made |= {
        "bias": rng.normal(size=(HEADS, STEPS, STEPS)),
        "last": rng.normal(size=(HEADS * WIDTH, 3)),
    }
    return {name: (one * 0.4).astype(np.float32) for name, one in made.items()}


def network_file():
    nodes = [helper.make_node("MatMul", ["x", f"w{name}"], [name]) for name in SIZES]
    nodes += [
        helper.make_node(
            "Attention", ["q", "k", "v", "bias"], ["seen"],
            q_num_heads=HEADS, kv_num_heads=GROUPS, is_causal=1, softcap=CAP,
        ),
        helper.make_node("ReduceMean", ["seen", "axis"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["mean", "last"], ["scores"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", STEPS, FEATURES])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 3])],
        [
            *(numpy_helper.from_array(one, name) for name, one in network().items()),
            numpy_helper.from_array(np.array([1]), "axis"),
        ],
    )
    opsets = [helper.make_opsetid("", 23)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def network_samples():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(16, STEPS, FEATURES)).astype(np.float32)
    return x, x[:, 0, :3].argmax(1)


def network_by_torch(batch, learning_rate, epochs):
    """The weights after SGD, in float64 with torch's own attention but for the cap."""
    weights = {n: torch.tensor(one).double().requires_grad_() for n, one in network().items()}
    optimizer = torch.optim.SGD(weights.values(), lr=learning_rate)
    x, labels = (torch.from_numpy(one) for one in network_samples())
    case = {"flat": True, "heads": (HEADS, GROUPS), "causal": True, "cap": CAP, "past": 0}
    for _ in range(epochs):
        for rows in range(0, len(x), batch):
            given = x[rows : rows + batch].double()
            made = {name: given @ weights[f"w{name}"] for name in SIZES}
            seen = results_of_torch(case, {**made, "mask": weights["bias"]}, 0)["y"]
            optimizer.zero_grad()
            functional.cross_entropy(
                seen.mean(1) @ weights["last"], labels[rows : rows + batch]
            ).backward()
            optimizer.step()
    return {name: one.detach().numpy() for name, one in weights.items()}


def test_a_network_trains_as_in_torch():
    trainer = popdist_onnx.Trainer(network_file(), optimizer="sgd", learning_rate=0.3, batch_size=8)
    trainer.fit(*network_samples(), epochs=3, shuffle=False)
    start = network()
    for name, wanted in network_by_torch(8, 0.3, 3).items():
        assert np.abs(wanted - start[name]).max() > 1e-3
        np.testing.assert_allclose(
            trainer.weights[name], wanted, rtol=1e-5, atol=2e-6, err_msg=name
        )


@pytest.mark.skipif(not DYNAMO, reason="onnx-ir is too old for onnxscript")
def test_attention_of_torchs_newer_exporter_trains_as_in_torch():
    class Attends(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.q, self.k = torch.nn.Linear(FEATURES, 8), torch.nn.Linear(FEATURES, 4)

        def forward(self, x):
            q, k = self.q(x), self.k(x)
            q, k = (one.unflatten(-1, (-1, 2)).transpose(1, 2) for one in (q, k))
            return functional.scaled_dot_product_attention(
                q, k, k, is_causal=True, enable_gqa=True
            ).sum((1, 2))

    x = torch.from_numpy(network_samples()[0])
    # The export compares outputs and gradients with those of the module.
    proto = popdist_onnx.from_torch(Attends(), x[:4], exporter="dynamo", opset=23)
    assert "Attention" in {node.op_type for node in proto.graph.node}
    trainer = popdist_onnx.Trainer(
        proto, loss="mse", optimizer="sgd", learning_rate=0.1, batch_size=16
    )
    wanted, module = x[:, 0, :2], Attends()
    trainer.fit(x.numpy(), wanted.numpy(), shuffle=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    functional.mse_loss(module(x), wanted).backward()
    optimizer.step()
    for name, parameter in module.named_parameters():
        found = trainer.weights[name]
        np.testing.assert_allclose(found, parameter.detach().numpy(), rtol=1e-5, atol=1e-6)
