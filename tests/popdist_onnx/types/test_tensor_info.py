"""Element types, shapes, and what is refused of them."""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from popdist_onnx.errors import popart_exception
from popdist_onnx.types.tensor_info import DataType, InputShapeInfo, TensorInfo


@given(shape=st.lists(st.integers(0, 5), max_size=4))
def test_a_tensor_info_describes_an_array(shape):
    array = np.zeros(shape, np.float16)
    for info in (TensorInfo(array), TensorInfo("FLOAT16", shape), TensorInfo(np.float16, shape)):
        assert info == TensorInfo(array.dtype, tuple(shape))
        assert (info.shape(), info.rank()) == (shape, array.ndim)
        assert (info.nelms(), info.nbytes()) == (array.size, array.nbytes)
        assert [info.dim(axis) for axis in range(info.rank())] == shape


def test_names_of_types():
    info = TensorInfo("FLOAT", [2])
    assert (info.dataType(), info.data_type(), info.data_type_lcase()) == (
        DataType.FLOAT,
        "FLOAT",
        "float32",
    )
    assert info != TensorInfo("INT32", [2])
    assert info != TensorInfo("FLOAT", [3])
    assert TensorInfo("float32", [2]) == info


@pytest.mark.parametrize("dtype", [one for one in DataType if one < DataType.COMPLEX64])
def test_types_agree_with_numpy_and_onnx(dtype):
    assert onnx.helper.tensor_dtype_to_np_dtype(dtype.onnx).itemsize in (dtype.numpy.itemsize, 4)
    assert DataType.from_onnx(dtype.onnx) is dtype
    assert DataType.of(dtype.numpy) is dtype


@pytest.mark.parametrize(
    "arguments",
    [
        ("FLOAT",),
        ("FLOATT", [1]),
        (3, [1]),
        ("FLOAT", 3),
        ("FLOAT", [1.5]),
        ("FLOAT", [-1]),
        (np.zeros(2), [2]),
    ],
)
def test_what_describes_no_tensor_is_refused(arguments):
    with pytest.raises(popart_exception, match="PD507") as error:
        TensorInfo(*arguments)
    assert isinstance(error.value, (TypeError, ValueError))


def test_a_dimension_that_does_not_exist():
    with pytest.raises(popart_exception, match="rank 1"):
        TensorInfo("FLOAT", [3]).dim(1)


def test_input_shapes_are_kept_by_id():
    shapes = InputShapeInfo()
    shapes.add("x", TensorInfo("FLOAT", [2]))
    assert shapes.has("x")
    assert not shapes.has("y")
    assert shapes.get("x").shape() == [2]
    assert shapes.getAllTensorIds() == ["x"]
    with pytest.raises(popart_exception, match="nothing is known of input 'y'"):
        shapes.get("y")
    with pytest.raises(popart_exception, match="TensorInfo"):
        shapes.add("z", [2])
