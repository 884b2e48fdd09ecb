"""States are overwritten only where every reader comes first by data flow."""

import onnx

from popdist_onnx.runtime.wiring import overwritable


def overwritten(text, states=("w",)):
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}')
    return set(overwritable(model, states))


SIGNATURE = "g (float[4,4] x, float[4,4] w) => (float[4,4] UpdatedVar___w, float[4,4] y)"


def test_a_reader_before_the_update_is_no_obstacle():
    assert overwritten(f"{SIGNATURE} {{ y = MatMul(x, w)  UpdatedVar___w = Sub(w, y) }}") == {"w"}


def test_a_reader_beside_the_update_is_one():
    assert not overwritten(f"{SIGNATURE} {{ y = MatMul(x, w)  UpdatedVar___w = Sub(w, x) }}")


def test_a_view_is_the_tensor_itself():
    body = "v = Identity(w)  y = MatMul(x, v)  UpdatedVar___w = Sub(w, x)"
    assert not overwritten(f"{SIGNATURE} {{ {body} }}")


def test_the_update_must_read_element_by_element():
    assert not overwritten(f"{SIGNATURE} {{ y = Relu(x)  UpdatedVar___w = MatMul(x, w) }}")
    assert not overwritten(f"{SIGNATURE} {{ y = Relu(x)  UpdatedVar___w = Gemm(w, x, x) }}")
    assert overwritten(f"{SIGNATURE} {{ y = Relu(x)  UpdatedVar___w = Gemm(x, x, w) }}") == {"w"}


def test_what_an_update_does_not_read_at_all_can_be_overwritten_once_it_was_read():
    body = "y = MatMul(x, w)  UpdatedVar___w = Relu(y)"
    assert overwritten(f"{SIGNATURE} {{ {body} }}") == {"w"}


def test_another_shape_is_not_overwritten():
    text = "g (float[4] x, float[1] w) => (float[4] UpdatedVar___w) { UpdatedVar___w = Add(x, w) }"
    assert not overwritten(text)
