"""Values as parts: what is large is neither joined nor copied."""

import pickle

import numpy as np
import pytest

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
