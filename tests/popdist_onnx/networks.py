"""Small networks, as ONNX models and in plain torch."""

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

FEATURES, HIDDEN, OUTPUTS = 5, 8, 3


def weights(seed=0, dtype=np.float64):
    """First weights of the perceptron."""
    rng = np.random.default_rng(seed)
    return {
        "w1": rng.normal(size=(FEATURES, HIDDEN)).astype(dtype) / 2,
        "b1": rng.normal(size=HIDDEN).astype(dtype) / 2,
        "w2": rng.normal(size=(HIDDEN, OUTPUTS)).astype(dtype) / 2,
        "b2": rng.normal(size=OUTPUTS).astype(dtype) / 2,
    }


def perceptron(batch, *, dtype=np.float64, seed=0, dropout=None, batchnorm=False, opset=18):
    """Two layers and the mean squared error, as a serialized model; the loss is ``loss``."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    tensors = weights(seed, dtype)
    nodes = [helper.make_node("Gemm", ["x", "w1", "b1"], ["hidden"], name="first")]
    last = "hidden"
    if batchnorm:
        for name, value in (("scale", 1), ("shift", 0), ("mean", 0), ("var", 1)):
            tensors[name] = np.full(HIDDEN, value, dtype)
        nodes.append(
            helper.make_node(
                "BatchNormalization",
                [last, "scale", "shift", "mean", "var"],
                ["normed", "mean_out", "var_out"],
                training_mode=1,
                momentum=0.9,
            )
        )
        last = "normed"
    nodes.append(helper.make_node("Tanh", [last], ["active"]))
    last = "active"
    if dropout is not None:
        tensors["ratio"] = np.asarray(dropout, np.float32)
        tensors["train"] = np.asarray(True)  # noqa: FBT003 - a tensor's content
        nodes.append(helper.make_node("Dropout", [last, "ratio", "train"], ["dropped"]))
        last = "dropped"
    nodes += [
        helper.make_node("Gemm", [last, "w2", "b2"], ["y"], name="second"),
        helper.make_node("Sub", ["y", "target"], ["error"]),
        helper.make_node("Mul", ["error", "error"], ["squares"]),
        helper.make_node("ReduceMean", ["squares"], ["loss"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [
            helper.make_tensor_value_info("x", kind, [batch, FEATURES]),
            helper.make_tensor_value_info("target", kind, [batch, OUTPUTS]),
        ],
        [helper.make_tensor_value_info("y", kind, [batch, OUTPUTS])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    onnx.checker.check_model(model)
    return model.SerializeToString()


class TorchPerceptron(torch.nn.Module):
    """The same in torch, with weights stored as in the ONNX model."""

    def __init__(self, *, dtype=np.float64, seed=0):
        super().__init__()
        for name, array in weights(seed, dtype).items():
            self.register_parameter(name, torch.nn.Parameter(torch.from_numpy(array.copy())))

    def forward(self, x, target):
        hidden = torch.tanh(x @ self.w1 + self.b1)
        return ((hidden @ self.w2 + self.b2 - target) ** 2).mean()


def batches(*shape, seed=3, dtype=np.float64):
    """Inputs and targets, other numbers for every sample."""
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(*shape, FEATURES)).astype(dtype),
        rng.normal(size=(*shape, OUTPUTS)).astype(dtype),
    )


TENSOR = TensorProto
