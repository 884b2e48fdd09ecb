"""Runs one operator of aiGraphcore as a user's model is run: build, load, lower, ONNX Runtime."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from popdist_onnx.builder.builder import Builder
from popdist_onnx.graph.load import load
from popdist_onnx.lowering import lower


def evaluate(method, arrays, *, weights=(), **arguments):
    """The operator's outputs; what the builder inferred of them is checked on the way."""
    builder = Builder()
    ids = [
        builder.addInputTensor(str(one.dtype).upper().replace("FLOAT32", "FLOAT"), one.shape)
        for one in arrays
    ]
    ids += [builder.addInitializedInputTensor(one) for one in weights]
    result = getattr(builder.aiGraphcore, method)(*[ids] if ids else [], **arguments)
    outputs = [result] if isinstance(result, str) else list(result)
    for output in outputs:
        builder.addOutputTensor(output)
    found = run(builder.getModelProto(), dict(zip(ids, arrays, strict=False)))
    for output, array in zip(outputs, found, strict=True):
        assert builder.getTensorShape(output) == list(array.shape)
        assert builder.getTensorDtypeString(output) == str(array.dtype)
    return found[0] if isinstance(result, str) else found


def run(model, feeds):
    """The outputs of a model, lowered and checked."""
    proto = ir.to_proto(lower(load(model)))
    assert all(node.domain == "" for node in proto.graph.node)
    onnx.checker.check_model(proto, full_check=True)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {name: np.ascontiguousarray(one) for name, one in feeds.items()})
