"""One operator, its gradient graph run by ONNX Runtime, held to torch's autograd in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import torch
from onnx import helper, numpy_helper

from popdist_onnx.graph.load import load, save
from popdist_onnx.transforms.autodiff import autodiff
from popdist_onnx.transforms.loss import set_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

FLOATS = (np.float32, np.float64, np.float16)

_RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return (_RANDOM.random(shape) + 0.3).astype(np.float32)


def within_one(*shape: int) -> np.ndarray:
    return ((_RANDOM.random(shape) - 0.5) * 1.6).astype(np.float32)


def integers(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


@dataclass
class Case:
    """A node with its operands and what torch says it does.

    Attributes:
        op_type: The operator.
        inputs: Operands; those of a float type are differentiated, None is left out.
        reference: The same in torch: from the tensors to the output or outputs.
        attributes: The node's attributes.
        outputs: How many outputs the node has.
        opset: Its opset.
        domain: Its domain.
        wanted: Which inputs' gradients are compared; None for all float ones.
        constants: Which float inputs are Constant nodes.
        tolerance: Relative to the largest element of the gradient.
    """

    op_type: str
    inputs: Sequence[np.ndarray | None]
    reference: Callable[..., Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int = 18
    domain: str = ""
    wanted: Sequence[int] | None = None
    constants: Sequence[int] = ()
    tolerance: float = 2e-4
    read: Sequence[int] | None = None


def session(model: ir.Model | onnx.ModelProto) -> onnxruntime.InferenceSession:
    proto = save(model) if isinstance(model, ir.Model) else model
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def model_of(case: Case, dtype: type = np.float32) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A graph of the node whose loss weighs every element of every output differently."""
    feeds, names, initializers, nodes = {}, [], [], []
    for index, array in enumerate(case.inputs):
        if array is None:
            names.append("")
            continue
        names.append(f"in{index}")
        if array.dtype not in FLOATS:
            initializers.append(numpy_helper.from_array(array, names[-1]))
        elif index in case.constants:
            kept = case.op_type in {"Resize", "Upsample"}
            tensor = numpy_helper.from_array(array if kept else array.astype(dtype))
            nodes.append(helper.make_node("Constant", [], [names[-1]], value=tensor))
        else:
            feeds[names[-1]] = array.astype(dtype)
    outputs = [f"out{index}" for index in range(case.outputs)]
    nodes.append(
        helper.make_node(
            case.op_type, names, outputs, name="subject", domain=case.domain, **case.attributes
        )
    )
    parts = []
    for index in read_outputs(case):
        weights = weights_of(case, index).astype(dtype)
        initializers.append(numpy_helper.from_array(weights, f"c{index}"))
        nodes += [
            helper.make_node("Mul", [f"out{index}", f"c{index}"], [f"w{index}"]),
            helper.make_node("ReduceSum", [f"w{index}"], [f"s{index}"], keepdims=0),
        ]
        parts.append(f"s{index}")
    nodes.append(helper.make_node("Sum", parts, ["loss"]))
    graph = helper.make_graph(
        nodes,
        "case",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in feeds.items()
        ],
        [
            helper.make_tensor_value_info(
                "loss", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), []
            )
        ],
        initializers,
    )
    opsets = [helper.make_opsetid("", case.opset)]
    if case.domain:
        opsets.append(helper.make_opsetid(case.domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds


def read_outputs(case: Case) -> Sequence[int]:
    return range(case.outputs) if case.read is None else case.read


def results_of(case: Case) -> tuple[list[torch.Tensor | None], list[torch.Tensor]]:
    tensors = [
        None
        if array is None
        else torch.tensor(array.astype(np.float64), requires_grad=True)
        if array.dtype in FLOATS
        else torch.tensor(array)
        for array in case.inputs
    ]
    made = case.reference(*tensors)
    return tensors, [made] if isinstance(made, torch.Tensor) else list(made)


def weights_of(case: Case, index: int) -> np.ndarray:
    _, made = results_of(case)
    shape = tuple(made[index].shape)
    return np.random.default_rng(index).standard_normal(shape)


def check(case: Case, dtype: type = np.float32) -> ir.Model:
    """Compares the gradient of every input with torch's."""
    proto, feeds = model_of(case, dtype)
    wanted = [
        f"in{index}"
        for index in (range(len(case.inputs)) if case.wanted is None else case.wanted)
        if f"in{index}" in feeds
    ]
    model = autodiff(set_loss(load(proto), "loss"), outputs=wanted)
    found = session(model).run(None, feeds)
    tensors, made = results_of(case)
    loss = sum(
        (made[index] * torch.tensor(weights_of(case, index))).sum() for index in read_outputs(case)
    )
    loss.backward()
    scale = max(1.0, abs(float(loss.detach())))
    assert abs(float(found[0]) - float(loss.detach())) <= case.tolerance * 10 * scale, "forward"
    made_names = [output.name for output in model.graph.outputs]
    for name in wanted:
        expected = tensors[int(name[2:])].grad
        expected = np.zeros(feeds[name].shape) if expected is None else expected.numpy()
        label = f"Gradient___{name}"
        got = found[made_names.index(label)] if label in made_names else np.zeros(expected.shape)
        assert got.shape == expected.shape, f"{name}: shape {got.shape} for {expected.shape}"
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        np.testing.assert_allclose(got / scale, expected / scale, atol=case.tolerance, err_msg=name)
    return model
