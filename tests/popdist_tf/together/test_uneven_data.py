"""Which data sets need no announcement of their batches."""

import pytest
import tensorflow as tf

from popdist_tf.together.uneven_data import is_endless


@pytest.mark.parametrize("kind", [tf.data.Dataset, tf.compat.v1.data.Dataset])
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda data: data.repeat(), True),
        (lambda data: data.repeat(-1), True),
        (lambda data: data.cache().repeat().batch(2).map(lambda x: x + 1).prefetch(1), True),
        (lambda data: data, False),
        (lambda data: data.repeat(2), False),
        (lambda data: data.repeat().take(5), False),
        (lambda data: data.repeat().filter(lambda x: x > 1), False),
    ],
    ids=range(7),
)
def test_data_without_an_end(kind, make, expected):
    with tf.Graph().as_default():
        assert is_endless(make(kind.range(3))) is expected
