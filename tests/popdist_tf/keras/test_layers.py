"""Layers under their published names, against formulas in numpy."""

import numpy as np
import pytest
import tensorflow as tf

from popdist_tf.ipu.keras import layers
from popdist_tf.keras.spectral import support_spectral_normalization

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
        (layers.InstanceNormalization(), [[i] for i in range(6)]),
    ],
)
def test_normalisation(layer, groups):
    expected = normalised([list(group) for group in groups])
    np.testing.assert_allclose(np.asarray(layer(INPUTS)), expected, rtol=2e-5, atol=2e-6)
    again = type(layer).from_config(layer.get_config())
    np.testing.assert_array_equal(np.asarray(again(INPUTS)), np.asarray(layer(INPUTS)))


def test_layers_are_called_with_a_flag_of_training():
    x = tf.constant(np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32"))
    for layer in (
        layers.GroupNormalization(groups=2),
        layers.InstanceNormalization(),
        layers.LayerNormalization(),
    ):
        np.testing.assert_array_equal(layer(x, training=True), layer(x))
    rows = layers.Embedding(5, 2)
    np.testing.assert_array_equal(rows(tf.constant([3]), training=True), rows(tf.constant([3])))


def test_channels_may_be_elsewhere():
    first = np.moveaxis(INPUTS, -1, 1)
    answer = np.asarray(layers.GroupNormalization(2, channels_axis=1)(first))
    expected = np.moveaxis(normalised([[0, 2, 4], [1, 3, 5]]), -1, 1)
    np.testing.assert_allclose(answer, expected, rtol=2e-5, atol=2e-6)


def test_channels_that_cannot_be_divided():
    with pytest.raises(ValueError, match="6 channels cannot be divided into 4 groups"):
        layers.GroupNormalization(4)(INPUTS)


def test_an_initializer_of_none_is_the_published_start():
    layer = layers.GroupNormalization(2, beta_initializer=None, gamma_initializer=None)
    layer(INPUTS)
    assert not np.any(layer.beta)
    np.testing.assert_array_equal(layer.gamma, np.ones(6))


@pytest.mark.parametrize(
    ("published", "peer"),
    [
        (
            lambda: layers.LSTM(4, seed=1, options={}, partials_dtype=tf.float32),
            lambda: tf.keras.layers.LSTM(4),
        ),
        (
            lambda: layers.PopnnGRU(4, return_sequences=True),
            lambda: tf.keras.layers.GRU(4, return_sequences=True, reset_after=False),
        ),
        (
            lambda: layers.SerialDense(4, 2, "kernel_rows", activation="tanh"),
            lambda: tf.keras.layers.Dense(4, "tanh"),
        ),
    ],
    ids=["LSTM", "GRU", "SerialDense"],
)
def test_layers_compute_what_those_of_keras_do(published, peer):
    published, peer = (
        published(),
        peer(),
    )  # in the test: Keras 2 binds a layer to the mode it is made in
    inputs = INPUTS[:, 0]
    found = np.asarray(published(inputs))
    peer.build(inputs.shape)
    peer.set_weights(published.get_weights())
    np.testing.assert_allclose(found, np.asarray(peer(inputs)), rtol=1e-6)
    again = type(published).from_config(published.get_config())
    again.build(inputs.shape)
    again.set_weights(published.get_weights())
    np.testing.assert_array_equal(np.asarray(again(inputs)), found)


def test_seeds_are_those_of_initializers_and_of_dropout():
    kernels = []
    for _ in range(2):
        layer = layers.LSTM(4, seed=3)
        layer.build((None, 5, 6))
        kernels.append(layer.get_weights()[:2])
    for one, other in zip(*kernels, strict=True):
        np.testing.assert_array_equal(one, other)
    ones = np.ones((1, 1000), np.float32)
    found = []
    for seed in ([1, 2], [1, 2], [2, 1]):
        tf.random.set_seed(0)  # seeds of operations count from the program's
        found.append(np.asarray(layers.Dropout(seed=seed)(ones, training=True)))
    first, again, other = found
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    assert np.mean(first) == pytest.approx(1, abs=0.15)  # half of the values are kept


def test_dropout_has_a_rate_below_1_and_rows_may_be_sorted():
    ones = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(layers.Dropout(0.5, ref=False)(ones, training=False), ones)
    for rate in (1, -0.5):
        with pytest.raises(ValueError, match=rf"in the range \[0, 1\), but was {rate}"):
            layers.Dropout(rate)
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    made = layers.Embedding(3, 2, tf.keras.initializers.Constant(table))
    np.testing.assert_array_equal(made(np.array([[0, 2]]), inputs_are_sorted=True), table[[[0, 2]]])


def test_a_table_may_be_divided():
    assert layers.Embedding(6, 2, serialization_factor=3)(np.array([[0, 5]])).shape == (1, 2, 2)


def test_layers_that_return_their_inputs():
    for kind in (layers.AssumeEqualAcrossReplicas, layers.RecomputationCheckpoint):
        layer = kind.from_config(kind().get_config())
        np.testing.assert_array_equal(np.asarray(layer(INPUTS)), INPUTS)


def test_products_that_cannot_be_divided():
    with pytest.raises(ValueError, match=r"(?s)PD434.*'rows'.*input_columns"):
        layers.SerialDense(4, 2, "rows")
    with pytest.raises(ValueError, match=r"(?s)PD434.*6 in 4 parts"):
        layers.SerialDense(4, 4, "input_rows_kernel_columns")(INPUTS)


def test_layers_of_the_hardware_name_what_to_use():
    with pytest.raises(NotImplementedError, match=r"(?s)EffectiveTransformer.*MultiHeadAttention"):
        layers.EffectiveTransformer(1)
    with pytest.raises(AttributeError, match="no attribute 'Convolution'"):
        layers.Convolution  # noqa: B018 - the access is the test


@pytest.mark.parametrize("start", [1.0, 0.0])
def test_spectral_normalization_divides_by_the_largest_singular_value(start):
    support_spectral_normalization()
    values = np.random.default_rng(4).normal(size=(4, 3)).astype(np.float32) * start
    layer = tf.keras.layers.SpectralNormalization(tf.keras.layers.Dense(3), power_iterations=50)
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), layer])
    layer.layer.kernel.assign(values)
    model.compile(tf.keras.optimizers.SGD(0.0), "mse")
    model.fit(np.ones((2, 4)), np.ones((2, 3)), verbose=0)
    expected = values / (np.linalg.svd(values, compute_uv=False)[0] or 1)
    np.testing.assert_allclose(layer.layer.kernel, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", [-1, (2, 3), [1]])
def test_layers_are_normalised_over_their_axes_alone_as_by_keras(axis):
    layer = layers.LayerNormalization(axis, beta_initializer="ones", gamma_initializer=None)
    expected = tf.keras.layers.LayerNormalization(axis, beta_initializer="ones")
    np.testing.assert_array_equal(np.asarray(layer(INPUTS)), np.asarray(expected(INPUTS)))
    again = type(layer).from_config(layer.get_config())
    np.testing.assert_array_equal(np.asarray(again(INPUTS)), np.asarray(layer(INPUTS)))


def test_layers_take_the_published_arguments_in_their_order():
    table = layers.Embedding(5, 2, "ones", None, None, None, True, 7, 2)  # noqa: FBT003 - published order
    assert np.asarray(table(np.array([[1, 4]]))).tolist() == [[[1, 1], [1, 1]]]
    assert table.mask_zero
    normal = layers.InstanceNormalization(1, False, True, 1e-5, None, "ones")  # noqa: FBT003 - published order
    assert normal.get_config()["channels_axis"] == 1
    kept = np.asarray(layers.Dropout(0.5, [])(np.ones((64, 64)), training=True)) != 0
    assert 0.3 < kept.mean() < 0.7


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("built", [lambda f: f, tf.function], ids=["eager", "function"])
def test_a_recurrent_layer_drops_the_same_inputs_in_all_time_steps(kind, built):
    settings = {
        "kernel_initializer": "ones",
        "recurrent_initializer": "zeros",
        "return_sequences": True,
        **({"unit_forget_bias": False} if kind == "LSTM" else {}),
    }
    layer = getattr(layers, kind)(3, dropout=0.9, dropout_seed=[3, 4], **settings)
    run = built(lambda training: layer(tf.ones([20, 4, 2]), training=training))
    kept = np.asarray(run(training=True)) != 0
    assert 0 < kept[:, 0].sum() < kept[:, 0].size
    for step in range(1, 4):
        np.testing.assert_array_equal(kept[:, step], kept[:, 0])
    assert np.all(np.asarray(run(training=False)) != 0)
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert again.get_config()["dropout"] == 0.9


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_recurrent_layer_takes_states_that_are_tensors_of_keras(kind):
    inputs = [tf.keras.Input((4, 2)), *(tf.keras.Input((3,)) for _ in range(1 + (kind == "LSTM")))]
    settings = {} if kind == "LSTM" else {"reset_after": True}
    layer = getattr(layers, kind)(3, **settings)
    model = tf.keras.Model(inputs, layer(inputs[0], initial_state=inputs[1:]))
    expected = getattr(tf.keras.layers, kind)(3, **settings)
    values = [np.random.default_rng(i).normal(size=(5, *x.shape[1:])) for i, x in enumerate(inputs)]
    values = [value.astype(np.float32) for value in values]
    expected.build((5, 4, 2))
    expected.set_weights(layer.get_weights())
    wanted = expected(values[0], initial_state=[*map(tf.constant, values[1:])])
    np.testing.assert_allclose(model(values), wanted, rtol=2e-5, atol=2e-6)
