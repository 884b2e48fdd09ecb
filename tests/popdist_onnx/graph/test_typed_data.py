import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from popdist_onnx.graph.large_files import use_typed_fields

FIELDS = {
    "float32": "float_data",
    "float64": "double_data",
    "float16": "int32_data",
    "bfloat16": "int32_data",
    "int8": "int32_data",
    "uint8": "int32_data",
    "int16": "int32_data",
    "int32": "int32_data",
    "bool": "int32_data",
    "int64": "int64_data",
    "uint32": "uint64_data",
    "uint64": "uint64_data",
}


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("shape", [(3, 50), (), (0, 2), (1000,)], ids=str)
def test_typed_fields_hold_what_raw_data_held(name, shape):
    dtype = ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)
    array = np.random.default_rng(3).normal(size=shape) * 20
    array = np.abs(array).astype(dtype) if name.startswith("u") else array.astype(dtype)
    kind = (
        onnx.TensorProto.BFLOAT16 if name == "bfloat16" else helper.np_dtype_to_tensor_dtype(dtype)
    )
    tensor = onnx.TensorProto(name="w", data_type=kind, dims=shape, raw_data=array.tobytes())
    graph = onnx.helper.make_graph([], "g", [], [], [tensor])
    proto = onnx.helper.make_model(graph)
    use_typed_fields(proto)
    (typed,) = proto.graph.initializer
    assert not typed.HasField("raw_data")
    assert len(getattr(typed, FIELDS[name])) == array.size
    again = onnx.TensorProto.FromString(typed.SerializeToString())
    if name == "bfloat16":
        bits = np.asarray(again.int32_data, np.uint16).reshape(shape)
        np.testing.assert_array_equal(bits, array.view(np.uint16))
    else:
        np.testing.assert_array_equal(numpy_helper.to_array(again), array)
