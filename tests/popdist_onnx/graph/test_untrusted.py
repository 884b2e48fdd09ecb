"""Files of anybody: what they name outside of their folder, sizes they lie about, broken graphs."""

import copy
import os
import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import popdist_onnx
from popdist.errors import PopdistError
from popdist_onnx.errors import popart_exception

CONTENT = np.arange(6, dtype=np.float32)


def model(weight):
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", 2])],
        [helper.make_tensor_value_info("y", 1, ["N", 3])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def outside(location, **stated):
    weight = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[2, 3], data_location=TensorProto.EXTERNAL
    )
    for key, value in {"location": location, "offset": 0, "length": 24, **stated}.items():
        weight.external_data.add(key=key, value=str(value))
    return weight


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "secret").write_bytes(CONTENT.tobytes())
    place = tmp_path / "model"
    place.mkdir()
    (place / "own.bin").write_bytes(CONTENT.tobytes())
    (place / "leaves").symlink_to(tmp_path / "secret")
    (place / "circle").symlink_to(place / "circle")
    (place / "zero").symlink_to("/dev/zero")
    os.mkfifo(place / "pipe")
    return place


def weights_of(folder, weight):
    path = folder / "m.onnx"
    path.write_bytes(model(weight).SerializeToString())
    return popdist_onnx.Trainer(path, loss="mse", batch_size=4).weights["w"]


def test_data_in_the_folder_are_read(folder):
    np.testing.assert_array_equal(weights_of(folder, outside("own.bin")).ravel(), CONTENT)


REFUSED = {
    "an absolute path": (lambda folder: outside(str(folder / "own.bin")), "outside"),
    "another folder": (lambda _: outside("../secret"), "outside"),
    "a link that leaves": (lambda _: outside("leaves"), "outside"),
    "links in a circle": (lambda _: outside("circle"), "outside"),
    "a device": (lambda _: outside("zero"), "outside"),
    "no name": (lambda _: outside(""), "outside"),
    "a zero byte": (lambda _: outside("own.bin\0"), "outside"),
    "a pipe": (lambda _: outside("pipe"), "not a regular file"),
    "the folder": (lambda _: outside("."), "not a regular file"),
    "no file": (lambda _: outside("none.bin"), "no data: No such file"),
    "beyond the end": (lambda _: outside("own.bin", offset=4), "other data than its shape"),
    "too short": (lambda _: outside("own.bin", length=20), "other data than its shape"),
    "a negative place": (lambda _: outside("own.bin", offset=-4), "offset"),
    "text": (lambda _: outside("own.bin", length="all"), "length"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_data_elsewhere_are_refused(folder, case):
    weight, said = REFUSED[case]
    with pytest.raises(popart_exception, match=said) as raised:
        weights_of(folder, weight(folder))
    assert raised.value.code == "PD610"


def test_bytes_may_not_name_absolute_paths_either(folder):
    data = model(outside(str(folder / "own.bin"))).SerializeToString()
    with pytest.raises(popart_exception, match="outside"):
        popdist_onnx.Trainer(data, loss="mse", batch_size=4)


HUGE = {
    "raw": {"raw_data": b"1234"},
    "typed": {"float_data": [1.0]},
    "empty": {},
    "negative": {"raw_data": b"1234", "dims": [-1, -1]},
    "no type": {"raw_data": b"1234", "data_type": 99},
}


@pytest.mark.parametrize("content", HUGE)
@pytest.mark.parametrize("place", ["initializer", "attribute"])
def test_sizes_are_checked_before_memory_is_allocated(content, place, tmp_path):
    fields = {"name": "w", "data_type": TensorProto.FLOAT, "dims": [2**30, 2**30], **HUGE[content]}
    tensor = TensorProto(**fields)
    proto = model(tensor)
    if place == "attribute":
        del proto.graph.initializer[:]
        node = helper.make_node("Constant", [], ["w"])
        node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(tensor)
        proto.graph.node.insert(0, node)
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(popart_exception, match="tensor 'w' of the model") as raised:
        popdist_onnx.Trainer(path, loss="mse", batch_size=4)
    assert raised.value.code == "PD610"


# Mutated files: any error is one for users, whatever is broken.

_FUNCTIONS = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
g (float[N,4] x) => (float[N,4] y) {
  n = Constant<value = int64 {3}>() c = Constant<value = bool {1}>() h = my.f<alpha = 0.3>(x)
  z = Loop(n, c, h)<body = b (int64 i, bool k, float[N,4] s) => (bool k2, float[N,4] s2)
    { k2 = Identity(k) m = MatMul(s, w) s2 = Tanh(m) }>
  a, b = Split<axis = 1>(z, lengths) y = Concat<axis = 1>(a, b) }
<domain: "my", opset_import: ["" : 17]> f <alpha> (v) => (o) {
  o = LeakyRelu<alpha: float = @alpha>(v) }"""

_NUMBERS = [0, -1, 1, 2, 2**31 - 1, 2**60, -(2**63)]
_WORDS = ["", "x", "y", "w", "Relu", "no_such", "Constant", "Loop", "../x", "/etc/passwd"]


def seed():
    proto = parser.parse_model(_FUNCTIONS)
    weights = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1, 3]), "lengths"))
    return proto


def is_repeated(field):
    """Newer releases of protobuf have no label."""
    return field.is_repeated if hasattr(field, "is_repeated") else field.label == 3


def messages(message):
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in value if is_repeated(field) else [value]:
                yield from messages(inner)


def mutated(proto, chance):
    """A copy in which a field of some message is cleared, doubled, moved or has another value."""
    changed = copy.deepcopy(proto)
    known = list(messages(changed))
    message = chance.choice(known)
    fields = [field for field, _ in message.ListFields()] or list(message.DESCRIPTOR.fields)
    field = chance.choice(fields)
    repeated = is_repeated(field)
    content = getattr(message, field.name)
    if chance.random() < 0.25:
        message.ClearField(field.name)
    elif repeated and len(content) and chance.random() < 0.3:
        del content[chance.randrange(len(content))]
    elif field.type == field.TYPE_MESSAGE:
        same = [one for one in known if one.DESCRIPTOR is field.message_type]
        other = copy.deepcopy(chance.choice(same)) if same else None
        if other is not None:
            (content.add() if repeated else content).CopyFrom(other)
    else:
        values = {
            field.CPPTYPE_STRING: [b"", b"x" * 9] if field.type == field.TYPE_BYTES else _WORDS,
            field.CPPTYPE_FLOAT: [0.0, float("nan")],
            field.CPPTYPE_DOUBLE: [0.0, float("nan")],
        }
        value = chance.choice(values.get(field.cpp_type, _NUMBERS))
        try:
            if repeated:
                content.append(value)
            else:
                setattr(message, field.name, value)
        except ValueError:
            message.ClearField(field.name)
    return changed


def test_mutated_files_raise_errors_for_users_only(tmp_path):
    chance, given, path, ends = random.Random(0), seed(), tmp_path / "m.onnx", set()  # noqa: S311
    for _ in range(100):
        data = mutated(given, chance).SerializeToString()
        path.write_bytes(data[: chance.randrange(len(data))] if chance.random() < 0.1 else data)
        try:
            popdist_onnx.Trainer(path, loss="mse", batch_size=4)
        except PopdistError as error:
            ends.add(error.code)
    assert {"PD520", "PD610", "PD611"} <= ends
