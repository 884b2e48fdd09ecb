"""Values as parts: what is large is neither joined nor copied."""

import pickle

import numpy as np
import pytest
import torch

from popdist.runner.pickles import dump, load
from popdist.runner.streams import Stream


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_a_stream_gives_back_what_was_written(size):
    data = bytes(range(250)) * 4
    stream = Stream(data[at : at + 7] for at in range(0, len(data), 7))
    assert stream.size == len(data)
    assert b"".join(iter(lambda: stream.read(size), b"")) == data
    assert stream.size == 0


def test_lines_are_read_one_by_one():
    stream = Stream([b"one\ntw", b"o\nthree"])
    assert [stream.readline(), stream.readline(), stream.readline(), stream.readline()] == [
        b"one\n", b"two\n", b"three", b"",
    ]  # fmt: skip


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_an_unpickler_reads_it(protocol):
    value = {"a": [1, 2.5, "text", b"x" * 100_000], "b": {3, 4}}
    assert load([Stream([pickle.dumps(value, protocol)])]) == value


def test_arrays_travel_beside_the_pickle_without_a_copy():
    large, small = np.arange(100_000.0), np.arange(5)
    stream, content = dump({"large": large, "small": small, "text": "x"})
    assert np.shares_memory(np.frombuffer(content), large)
    assert stream.size < 2000
    found = load([stream, content])
    np.testing.assert_array_equal(found["large"], large)
    np.testing.assert_array_equal(found["small"], small)


def test_large_bytes_are_not_copied_either():
    data = bytes(1 << 20)
    (stream,) = dump([data])
    assert any(piece.obj is data for piece in stream)
    assert load([stream]) == [data]


def sent(value):
    """A value as it arrives elsewhere."""
    stream, *contents = dump(value)
    return load([stream, *(memoryview(bytearray(content)) for content in contents)])


def test_tensors_travel_beside_the_pickle_without_a_copy():
    tensor = torch.randn(300, 300)
    stream, content = dump({"weights": tensor, "small": torch.ones(3)})
    assert np.shares_memory(np.frombuffer(content, np.uint8), tensor.numpy())
    assert stream.size < 4000
    found = sent({"weights": tensor})["weights"]
    assert torch.equal(found, tensor)
    found.add_(1)  # it can be written
    assert not torch.equal(found, tensor)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.bfloat16(), lambda x: x.double(), lambda x: x > 0, lambda x: x.t(),
        lambda x: x[3:7, ::2], lambda x: x.to(torch.complex64).conj(), torch._neg_view,
        lambda x: x[:1].expand(9, -1), lambda x: x[:0], lambda x: x[5, 7],
        lambda x: x.clone().requires_grad_(), lambda x: x.clone().requires_grad_() * 2,
        lambda x: x.relu().to_sparse(),
    ],
)  # fmt: skip
def test_tensors_arrive_as_they_are(change):
    tensor = change(torch.randn(300, 300))
    found = sent([tensor])[0]
    assert (found.dtype, found.shape, found.layout) == (tensor.dtype, tensor.shape, tensor.layout)
    assert found.requires_grad == tensor.requires_grad
    if tensor.layout == torch.strided:
        assert found.stride() == tensor.stride()
    assert torch.equal(found.to_dense(), tensor.to_dense())


def test_modules_with_shared_parameters_arrive_whole():
    module = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 300))
    module[1].weight = module[0].weight
    module[0].weight.note = "kept"
    found = sent(module)
    assert found[0].weight is found[1].weight
    assert found[0].weight.note == "kept"
    assert isinstance(found[0].weight, torch.nn.Parameter)
    assert torch.equal(found[0].weight, module[0].weight)
