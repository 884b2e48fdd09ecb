"""Graphs whose gradients are fed, and a loop that runs them on plain ONNX Runtime."""

import ctypes

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from popdist_onnx.graph import names
from popdist_onnx.graph.load import save
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.optimizers.weight_update import compute_type
from popdist_onnx.transforms.optimizer import scalar_inputs

LOSS_SEED = {names.ROLE: names.LOSS_SEED}


def gradient_graph(weights, states=()):
    """A model with ``Gradient___w = seed * grad_w`` for every weight, where grad_w is an input."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="fed")
    tape = Tape(graph)
    first = next(iter(weights.values()))
    seed = tape.constant(np.ones((), first.dtype), "Gradient___loss")
    seed.value.producer().metadata_props.update(LOSS_SEED)
    for name, content in weights.items():
        weight = tape.state(name, content)
        fed = tape.input(f"grad_{name}", weight.dtype, content.shape)
        # ONNX Runtime multiplies no bfloat16.
        wide = compute_type(fed.dtype)
        scaled = cast(tape, fed, wide) * cast(tape, seed, wide)
        tape.rename(cast(tape, scaled, fed.dtype), names.gradient(name))
    for name, content in dict(states).items():
        tape.state(name, content)
    return ir.Model(graph, ir_version=9)


def cast(tape, tensor, dtype):
    return tensor if tensor.dtype == dtype else tape.Cast(tensor, to=int(dtype))


class Loop:
    """Runs a training graph; what it computes for a state is what it reads the next time."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        proto = save(model)
        outputs = [value.name for value in proto.graph.output]
        self.states = {
            value.name: np.asarray(value.const_value.numpy())
            for value in model.graph.initializers.values()
            if names.updated(value.name) in outputs
        }
        for initializer in [i for i in proto.graph.initializer if i.name in self.states]:
            proto.graph.initializer.remove(initializer)
            info = ir.serde.serialize_value(model.graph.initializers[initializer.name])
            proto.graph.input.append(info)
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self.outputs = outputs
        self.set_optimizer(optimizer)

    def set_optimizer(self, optimizer):
        self.scalars = scalar_inputs(self.model, optimizer)

    def step(self, **fed):
        feeds = {k: self._value(v) for k, v in (self.states | self.scalars | fed).items()}
        values = self.session.run_with_ort_values(self.outputs, feeds)
        for name, value in zip(self.outputs, values, strict=True):
            state = name.removeprefix(names.UPDATED)
            if state in self.states:
                like = self.states[state]
                self.states[state] = _numpy(value, like.dtype).reshape(like.shape)
        return self

    def _value(self, array):
        if array.dtype.kind == "f":
            return ort.OrtValue.ortvalue_from_numpy(
                np.ascontiguousarray(array).reshape(array.shape)
            )
        raw = array.view(np.uint16)
        code = int(ir.DataType.from_numpy(array.dtype))
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, code)

    def __getitem__(self, name):
        return self.states[name]


def _numpy(value, dtype):
    if dtype.kind == "f":
        return value.numpy().copy()
    # ONNX Runtime hands out no bfloat16 as numpy knows none; its memory can be read all the same.
    size = int(np.prod(value.shape())) * dtype.itemsize
    return np.frombuffer(ctypes.string_at(value.data_ptr(), size), dtype).reshape(value.shape())
