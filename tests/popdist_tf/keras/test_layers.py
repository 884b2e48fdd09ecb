"""Layers under their published names, against formulas in numpy."""

import numpy as np
import pytest

from popdist_tf.ipu.keras import layers

INPUTS = np.random.default_rng(0).normal(size=(2, 3, 5, 6)).astype(np.float32)


def normalised(groups):
    result = np.empty_like(INPUTS)
    for group in groups:
        part = INPUTS[..., group]
        mean = part.mean(axis=(1, 2, 3), keepdims=True)
        variance = part.var(axis=(1, 2, 3), keepdims=True)
        result[..., group] = (part - mean) / np.sqrt(variance + 1e-3)
    return result


@pytest.mark.parametrize(
    ("layer", "groups"),
    [
        (layers.GroupNormalization(2), [[0, 2, 4], [1, 3, 5]]),
        (layers.GroupNorm(2, strided_channel_grouping=False), [[0, 1, 2], [3, 4, 5]]),
        (layers.LayerNormalization(), [range(6)]),
        (layers.InstanceNormalization(), [[i] for i in range(6)]),
    ],
)
def test_normalisation(layer, groups):
    expected = normalised([list(group) for group in groups])
    np.testing.assert_allclose(np.asarray(layer(INPUTS)), expected, rtol=2e-5, atol=2e-6)
    again = type(layer).from_config(layer.get_config())
    np.testing.assert_array_equal(np.asarray(again(INPUTS)), np.asarray(layer(INPUTS)))


def test_channels_may_be_elsewhere():
    first = np.moveaxis(INPUTS, -1, 1)
    answer = np.asarray(layers.GroupNormalization(2, channels_axis=1)(first))
    expected = np.moveaxis(normalised([[0, 2, 4], [1, 3, 5]]), -1, 1)
    np.testing.assert_allclose(answer, expected, rtol=2e-5, atol=2e-6)


def test_channels_that_cannot_be_divided():
    with pytest.raises(ValueError, match="6 channels cannot be divided into 4 groups"):
        layers.GroupNormalization(4)(INPUTS)


def test_layers_of_the_hardware_name_what_to_use():
    with pytest.raises(NotImplementedError, match=r"(?s)SerialDense.*tf\.keras\.layers\.Dense"):
        layers.SerialDense(1)
    with pytest.raises(AttributeError, match="no attribute 'Convolution'"):
        layers.Convolution  # noqa: B018 - the access is the test
