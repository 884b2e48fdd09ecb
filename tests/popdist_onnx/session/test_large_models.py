"""Weights in files of their own: mapped, trained, written again; and 3 GB of them, on request."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import popdist_onnx
from popdist_onnx.graph import large_files
from popdist_onnx.graph.load import read
from popdist_onnx.runtime import engine

WIDTH, LAYERS, RATE = 24, 3, 0.01


def written(folder, width=WIDTH, layers=LAYERS):
    """A stack of products whose weights lie in a file beside the model, written piece by piece."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    with (folder / "model.bin").open("wb") as data:
        for index in range(layers):
            weight = TensorProto(name=f"w{index}", data_type=TensorProto.FLOAT, dims=[width, width])
            weight.data_location = TensorProto.EXTERNAL
            length = 4 * width * width
            for key, value in (
                ("location", "model.bin"),
                ("offset", data.tell()),
                ("length", length),
            ):
                weight.external_data.add(key=key, value=str(value))
            data.write((rng.standard_normal((width, width), np.float32) / width**0.5).tobytes())
            nodes.append(helper.make_node("MatMul", [last, weight.name], [f"h{index}"]))
            last = f"h{index}"
            weights.append(weight)
    ends = [helper.make_tensor_value_info(name, 1, ["n", width]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "stack", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def one_step_of_numpy(path, x, target):
    """Weights after one update of plain SGD on the mean squared error, in double precision."""
    weights = [numpy_helper.to_array(w).astype(float) for w in onnx.load(path).graph.initializer]
    hidden = [x.astype(float)]
    for weight in weights:
        hidden.append(hidden[-1] @ weight)
    gradient = 2 * (hidden[-1] - target) / target.size
    updated = []
    for weight, before in zip(reversed(weights), reversed(hidden[:-1]), strict=True):
        updated.append(weight - RATE * before.T @ gradient)
        gradient = gradient @ weight.T
    return updated[::-1], hidden[-1]


def data(width=WIDTH):
    rng = np.random.default_rng(1)
    return rng.normal(size=(4, width)).astype("f4"), rng.normal(size=(4, width)).astype("f4")


def trained(path):
    trainer = popdist_onnx.Trainer(
        path, loss="mse", optimizer="sgd", learning_rate=RATE, batch_size=4, check_finite=False
    )
    trainer.fit(*data(), shuffle=False)
    return trainer


def test_external_data_are_mapped_trained_and_written_as_external_data(tmp_path, monkeypatch):
    monkeypatch.setattr(large_files, "MAPPED_FROM", 0)
    monkeypatch.setattr(large_files, "_ALWAYS_READ", 0)
    path = written(tmp_path)
    contents = [one.const_value for one in read(path).graph.initializers.values()]
    assert all(isinstance(one, ir.ExternalTensor) for one in contents)
    wanted, _ = one_step_of_numpy(path, *data())
    trainer = trained(path)
    # A small limit stands for protobuf's: the model is written in place of the one it came from.
    monkeypatch.setattr(large_files, "INLINE_UP_TO", 0)
    trainer.save(path)
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "model.bin",
        "model.onnx",
        "model.onnx.data",
    ]
    for weight, expected in zip(onnx.load(path).graph.initializer, wanted, strict=True):
        np.testing.assert_allclose(numpy_helper.to_array(weight), expected, atol=1e-6)
    x, target = data()
    _, output = one_step_of_numpy(path, x, target)
    np.testing.assert_allclose(trainer.predict(x), output, atol=1e-5)
    # And what was written trains again, constants of an inference session included.
    trained(path)


def test_few_external_data_are_read_at_once(tmp_path):
    path = written(tmp_path)
    contents = [one.const_value for one in read(path).graph.initializers.values()]
    assert not any(isinstance(one, ir.ExternalTensor) for one in contents)
    wanted, _ = one_step_of_numpy(path, *data())
    found = trained(path).weights
    for name, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(found[name], expected, atol=1e-6)


def test_all_instances_of_a_job_may_save_to_one_path(tmp_path):
    trainer = trained(written(tmp_path))
    path = tmp_path / "trained.onnx"
    with ThreadPoolExecutor(4) as writers:  # what they write is of more than one system call
        for one in [writers.submit(trainer.save, path) for _ in range(40)]:
            one.result()
    for weight in onnx.load(path).graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(weight), trainer.weights[weight.name])
    assert [one.name for one in tmp_path.iterdir() if one.name.endswith(".new")] == []


def test_what_measures_a_model_reads_the_weights_where_they_are_trained(tmp_path):
    trainer = trained(written(tmp_path))
    x, target = data()
    before = trainer.evaluate(x, target)
    state = trainer.session.prepared_engine("test").state
    other = trainer._measures._evaluator._session.prepared_engine("test").state
    for name in trainer.trained:
        assert np.shares_memory(state.read(name), other.read(name))
    trainer.fit(x, target, epochs=3)
    after = trainer.evaluate(x, target)
    trainer.save(tmp_path / "trained.onnx")
    _, output = one_step_of_numpy(tmp_path / "trained.onnx", x, target)
    assert after["loss"] < before["loss"]
    np.testing.assert_allclose(after["loss"], np.mean((output - target) ** 2), rtol=1e-6)


def test_a_checkpoint_of_a_large_model_keeps_no_second_copy(tmp_path, monkeypatch):
    monkeypatch.setattr(large_files, "INLINE_UP_TO", 0)
    monkeypatch.setattr(large_files, "_ALWAYS_READ", 0)
    trainer = trained(written(tmp_path))
    path = tmp_path / "model.onnx"
    for _ in range(2):  # the second one replaces the file that the first one's data are mapped from
        trainer.save_checkpoint(path)
        host = trainer.session.host_tensors
        for name, weight in trainer.weights.items():
            assert not host[name].flags.writeable
            np.testing.assert_array_equal(host[name], weight)
        trainer.fit(*data())
    trainer.resume(path)
    for name, weight in trainer.weights.items():
        np.testing.assert_array_equal(weight, host[name])


def test_weights_too_large_for_a_copy_are_checked_in_place(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "_KEPT_UP_TO", 0)
    path = written(tmp_path)
    wanted, _ = one_step_of_numpy(path, *data())
    trainer = popdist_onnx.Trainer(
        path, loss="mse", optimizer="sgd", learning_rate=RATE, batch_size=4
    )
    x, target = data()
    trainer.fit(x, target, shuffle=False)
    for found, expected in zip(trainer.weights.values(), wanted, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.raises(popdist_onnx.popart_runtime_error, match="not finite: the update wrote it"):
        trainer.fit(x * np.float32(1e30), target)


@pytest.mark.parametrize("typed", [False, True])
def test_a_streamed_file_holds_what_protobuf_would_write(tmp_path, typed, monkeypatch):
    if not typed:
        monkeypatch.setattr(large_files, "TYPED_UP_TO", 0)
    kinds = [np.float32, np.float64, np.float16, np.int8, np.uint32, np.int64, np.bool_]
    tensors = [
        numpy_helper.from_array(np.arange(6).reshape(2, 3).astype(kind), np.dtype(kind).name)
        for kind in kinds
    ]
    tensors.append(numpy_helper.from_array(np.zeros((0, 2), np.float32), "nothing"))
    tensors.append(helper.make_tensor("bfloat16", TensorProto.BFLOAT16, [2], [1.5, -2]))
    tensors.append(helper.make_tensor("words", TensorProto.STRING, [2], [b"a", b"b"]))
    nodes = [helper.make_node("Add", ["x", "float32"], ["y"])]
    ends = [helper.make_tensor_value_info(name, 1, [2, 3]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "all", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    assert large_files.write_model(ir.from_proto(model), {}, tmp_path / "all.onnx") == {}
    found = onnx.load(tmp_path / "all.onnx")
    onnx.checker.check_model(found)
    for one, expected in zip(found.graph.initializer, tensors, strict=True):
        assert (one.name, one.data_type) == (expected.name, expected.data_type)
        np.testing.assert_array_equal(numpy_helper.to_array(one), numpy_helper.to_array(expected))
    assert len(found.graph.initializer[0].float_data) == (6 if typed else 0)
    # The same message as from protobuf itself, so that every reader of files takes it.
    assert (tmp_path / "all.onnx").stat().st_size == found.ByteSize()


def resident(peak):
    """Bytes of this process in memory, mapped files included; or the most since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    word = "VmHWM:" if peak else "VmRSS:"
    (kilobytes,) = [line.split()[1] for line in lines if line.startswith(word)]
    return int(kilobytes) << 10


@pytest.mark.skipif(
    "POPDIST_LARGE_TESTS" not in os.environ, reason="needs 7 GB: POPDIST_LARGE_TESTS=1"
)
def test_three_gigabytes_train_within_1_3_times_their_size(tmp_path):
    width, layers = 10034, 8
    path = written(tmp_path, width, layers)
    size = 4 * layers * width**2
    assert size > 3 << 30
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = resident(peak=False)
    trainer = popdist_onnx.Trainer(
        path, loss="mse", optimizer="sgd", learning_rate=RATE, batch_size=4
    )
    losses = trainer.fit(*data(width), epochs=2)
    assert losses[1] < losses[0]
    trainer.save(path)
    trainer.save_checkpoint(tmp_path / "checkpoint.onnx")
    trainer.evaluate(*data(width))
    trainer.resume(tmp_path / "checkpoint.onnx")
    assert resident(peak=True) - before < 1.3 * size
    assert (tmp_path / "model.onnx.data").stat().st_size >= size
