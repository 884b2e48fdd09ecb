"""Random tensors: of the right distribution, and of nobody else's stream."""

import numpy as np
import onnx_ir as ir
import pytest

from popdist_onnx.graph import names
from popdist_onnx.runtime.engine import Masks
from popdist_onnx.runtime.graph_reader import read

COUNT = 20000


def masks(kind, dtype=ir.DataType.FLOAT, number=1, **facts):
    inputs = []
    for index in range(number):
        value = ir.Value(
            name=f"{names.RANDOM_MASK}{index}", shape=ir.Shape([COUNT]), type=ir.TensorType(dtype)
        )
        value.metadata_props[names.RANDOM] = kind
        value.metadata_props.update({f"{names.RANDOM}.{k}": str(v) for k, v in facts.items()})
        inputs.append(value)
    graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": 18}, name="g")
    return Masks(read(ir.Model(graph, ir_version=9)))


def drawn(made, *key, index=0):
    made.draw(*key)
    return made.buffers[f"{names.RANDOM_MASK}{index}"].array.copy()


@pytest.mark.parametrize("keep", [0.5, 0.9, 0.25])
def test_bernoulli_keeps_as_often_as_asked(keep):
    seen = drawn(masks("bernoulli", ir.DataType.BOOL, keep=keep), 1, 0, 0)
    assert seen.mean() == pytest.approx(keep, abs=5 * np.sqrt(keep * (1 - keep) / COUNT))


def test_uniform_and_normal():
    seen = drawn(masks("uniform", low=-1, high=3), 1, 0, 0)
    assert -1 <= seen.min() < -0.9
    assert 2.9 < seen.max() <= 3
    seen = drawn(masks("normal", mean=2, scale=3), 1, 0, 0)
    assert seen.mean() == pytest.approx(2, abs=0.15)
    assert seen.std() == pytest.approx(3, abs=0.15)


def test_seed_replica_and_micro_batch_each_make_another_stream():
    made = masks("normal", number=2)
    streams = [drawn(made, *key) for key in [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1)]]
    streams.append(drawn(made, 1, 0, 0, index=1))
    for i, one in enumerate(streams):
        for other in streams[:i]:
            assert not np.array_equal(one, other)


def test_a_stream_does_not_depend_on_what_was_drawn_before():
    made = masks("normal")
    first = drawn(made, 1, 2, 3)
    drawn(made, 5, 5, 5)
    np.testing.assert_array_equal(drawn(made, 1, 2, 3), first)


def test_an_operators_own_seed_counts():
    plain, seeded = masks("normal"), masks("normal", seed=1.5)
    assert not np.array_equal(drawn(plain, 1, 0, 0), drawn(seeded, 1, 0, 0))
