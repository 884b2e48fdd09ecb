"""The factor of automatic loss scaling, against the published rule in numpy."""

import numpy as np
import pytest
import tensorflow as tf

from popdist_tf import ipu
from popdist_tf.errors import OptimizerError
from popdist_tf.versions import keras_is_3

SGD = tf.compat.v1.train.GradientDescentOptimizer


def by_numpy(rows, factor, *, frequency, edge, threshold=10e-6, maximum=32768.0, accumulates=True):
    """Factors before each step, for gradients of a loss without a factor."""
    held, factors = [], []
    for number, row in enumerate(rows):
        factors.append(factor)
        held.append(np.abs(np.asarray(row) * factor) > edge)
        if number % frequency == frequency - 1:
            counted = np.concatenate(held if accumulates else held[-1:])
            is_large = counted.mean() > threshold
            factor = factor / 2 if is_large else min(factor * 2, maximum)
            held = []
    return factors


@pytest.mark.parametrize(
    "settings",
    [{}, {"accumulates": False}, {"threshold": 0.4}, {"maximum": 8.0}],
    ids=lambda one: next(iter(one), "default"),
)
def test_the_factor_follows_the_gradients(settings):
    rows = np.abs(np.random.default_rng(1).normal(size=(20, 4))).astype(np.float32)
    frequency, edge = 2, 8.0
    weight = tf.Variable(tf.zeros(4))
    optimizer = ipu.optimizers.AutomaticLossScalingOptimizer(
        SGD(1.0),
        4.0,
        frequency,
        max_loss_scaling_factor=settings.get("maximum", 32768.0),
        accumulate_statistics_over_update_period=settings.get("accumulates", True),
        ratio_threshold=settings.get("threshold", 10e-6),
        histogram_bin_edge=edge,
    )
    found = []
    for row in rows:
        found.append(float(optimizer.loss_scaling_factor))
        pairs = optimizer.compute_gradients(lambda: tf.reduce_sum(weight * row), [weight])  # noqa: B023 - called at once
        optimizer.apply_gradients(pairs)
    assert found == by_numpy(rows, 4.0, frequency=frequency, edge=edge, **settings)
    assert len(set(found)) > 2 or "maximum" in settings
    np.testing.assert_allclose(weight, -rows.sum(axis=0), rtol=1e-5)


def test_a_step_with_an_infinite_gradient_updates_by_zero():
    weight, table = tf.Variable(1.0), tf.Variable(tf.ones([3, 1]))
    optimizer = ipu.optimizers.AutomaticLossScalingOptimizer(SGD(1.0), 64.0, 1)

    def step(slope):
        pairs = optimizer.compute_gradients(
            lambda: weight * slope + tf.reduce_sum(tf.gather(table, [1, 1])), [weight, table]
        )
        assert isinstance(pairs[1][0], tf.IndexedSlices)
        optimizer.apply_gradients(pairs)

    step(np.inf)
    assert (float(weight), float(optimizer.loss_scaling_factor)) == (1, 32)
    assert table.numpy().tolist() == [[1], [1], [1]]
    step(0.25)
    assert (float(weight), float(optimizer.loss_scaling_factor)) == (0.75, 64)
    assert table.numpy().tolist() == [[1], [-1], [1]]


def test_a_filter_remembers_earlier_counts():
    weight = tf.Variable(0.0)
    optimizer = ipu.optimizers.AutomaticLossScalingOptimizer(
        SGD(0.0), 1.0, 1, ratio_threshold=0.3, lpf_alpha=0.5, histogram_bin_edge=1000.0
    )
    found = []
    for slope in (1e6, 1.0, 1.0):  # part of large ones: 1, then 1/3, then 1/7
        pairs = optimizer.compute_gradients(lambda: weight * slope, [weight])  # noqa: B023 - called at once
        optimizer.apply_gradients(pairs)
        found.append(float(optimizer.loss_scaling_factor))
    assert found == [0.5, 0.25, 0.5]


@pytest.mark.parametrize(
    "settings",
    [
        {"initial_loss_scaling_factor": 0.0},
        {"update_frequency": 0},
        {"increment_factor": 1.0},
        {"ratio_threshold": 1.0},
        {"captured_grads_only": True},
        {"lpf_alpha": 1.0},
        {"histogram_bin_edge": 0.0},
    ],
    ids=lambda one: next(iter(one)),
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(OptimizerError, match=next(iter(settings))):
        ipu.optimizers.AutomaticLossScalingOptimizer(SGD(1.0), **settings)


def test_keras_scales_the_loss_in_fit_and_in_loops():
    kind = ipu.keras.optimizers.ALSOptimizer
    if keras_is_3():
        with pytest.raises(OptimizerError, match="Keras 2"):
            kind(tf.keras.optimizers.SGD(0.1))
        return
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(12, 3)).astype(np.float32), rng.normal(size=(12, 1)).astype(np.float32)

    def fitted(optimizer):
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
        model.compile(optimizer, "mse")
        model.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0)
        return model

    scaled = kind(
        tf.keras.optimizers.Adam(0.1), initial_loss_scaling_factor=64.0, update_frequency=4
    )
    plain, model = fitted(tf.keras.optimizers.Adam(0.1)), fitted(scaled)
    assert float(scaled.loss_scaling_factor) == 64 * 2**2
    assert not np.allclose(model.get_weights()[0], 0)
    for one, other in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    weight = tf.Variable(2.0)
    loop = kind(tf.keras.optimizers.SGD(1.0), 16.0)
    with tf.GradientTape() as tape:
        loss = loop.get_scaled_loss(weight * 0.5)
    (gradient,) = tape.gradient(loss, [weight])
    assert float(gradient) == 8
    loop.apply_gradients(zip(loop.get_unscaled_gradients([gradient]), [weight], strict=True))
    assert float(weight) == 1.5
