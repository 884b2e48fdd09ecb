"""Optimizers whose states have dtypes of their own, against Keras and formulas in numpy."""

import numpy as np
import pytest
import tensorflow as tf

from popdist_tf.ipu.addons.keras import optimizers
from popdist_tf.versions import keras_is_3, optimizer_variables

START = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
GRADIENTS = np.random.default_rng(1).normal(size=(5, 4, 3)).astype(np.float32)


def trained(optimizer, rates=None, dtype=tf.float32, name="kernel"):
    variable = tf.Variable(tf.cast(START, dtype), name=name)
    for number, gradient in enumerate(GRADIENTS):
        if rates is not None:
            optimizer.learning_rate = rates[number]
        optimizer.apply_gradients([(tf.cast(gradient, dtype), variable)])
    return variable.numpy()


RATES = [0.1, 0.05, 0.2, 0.1, 0.3]


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
def test_gradient_descent_is_that_of_keras(settings):
    expected = trained(tf.keras.optimizers.SGD(0.1, **settings), RATES)
    found = trained(optimizers.SGDIpuOptimizer(0.1, **settings), RATES)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def adam(beta_1=0.9, beta_2=0.999, epsilon=1e-7, amsgrad=False, debiasing=True):
    """Algorithm 1 of the paper, and AMSGrad over the corrected averages, as published."""
    value, m, v, largest = START.astype(np.float64), 0.0, 0.0, 0.0
    for step, gradient in enumerate(GRADIENTS.astype(np.float64), 1):
        m, v = beta_1 * m + (1 - beta_1) * gradient, beta_2 * v + (1 - beta_2) * gradient**2
        both = (m / (1 - beta_1**step), v / (1 - beta_2**step)) if debiasing else (m, v)
        largest = np.maximum(largest, both[1])
        root = np.sqrt(largest if amsgrad else both[1])
        value = value - RATES[step - 1] * both[0] / (root + epsilon)
    return value


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"beta_1": 0.5, "epsilon": 0.01},
        {"amsgrad": True, "beta_2": 0.5, "epsilon": 0.1},
        {"debiasing": False, "amsgrad": True},
    ],
)
def test_adam(settings):
    found = trained(optimizers.AdamIpuOptimizer(**settings), RATES)
    np.testing.assert_allclose(found, adam(**settings), rtol=2e-5, atol=2e-6)
    if not {"epsilon", "debiasing"} & settings.keys():
        keras = trained(tf.keras.optimizers.Adam(**settings), RATES)
        np.testing.assert_allclose(found, keras, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("SGDIpuOptimizer", {"learning_rate": 0.1, "momentum": 0.9}),
        ("AdamIpuOptimizer", {"amsgrad": True, "beta_2": 0.5}),
        ("LAMBIpuOptimizer", {"learning_rate": 0.1}),
    ],
)
@pytest.mark.skipif(keras_is_3(), reason="Keras 3 has no graphs of TensorFlow 1")
def test_a_graph_of_tensorflow_1_updates_states_with_the_variable(kind, settings):
    expected = trained(getattr(optimizers, kind)(**settings))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.Variable(START, name="kernel")
        gradient = tf.compat.v1.placeholder(tf.float32, START.shape)
        update = getattr(optimizers, kind)(**settings).apply_gradients([(gradient, variable)])
        session.run(tf.compat.v1.global_variables_initializer())
        for each in GRADIENTS:
            session.run(update, {gradient: each})
        np.testing.assert_allclose(session.run(variable), expected, rtol=1e-5, atol=1e-6)


def lamb(decay=0.0, clip=None, debiasing=True, adapts=True):
    value, m, v = START.astype(np.float64), 0.0, 0.0
    for step, gradient in enumerate(GRADIENTS.astype(np.float64), 1):
        m, v = 0.9 * m + 0.1 * gradient, 0.99 * v + 0.01 * gradient**2
        both = (m / (1 - 0.9**step), v / (1 - 0.99**step)) if debiasing else (m, v)
        update = both[0] / (np.sqrt(both[1]) + 1e-6) + decay * value
        norm = np.linalg.norm(value)
        norm = norm if clip is None else min(norm, clip)
        value = value - 0.1 * update * (norm / np.linalg.norm(update) if adapts else 1)
    return value


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, lamb()),
        ({"weight_decay_rate": 0.3}, lamb(0.3)),
        ({"weight_norm_clip": 0.5, "debiasing": False}, lamb(clip=0.5, debiasing=False)),
        (
            {"weight_decay_rate": 0.3, "exclude_from_layer_adaptation": ["ker.el"]},
            lamb(0.3, adapts=False),
        ),
        ({"weight_decay_rate": 0.3, "exclude_from_weight_decay": ["kernel"]}, lamb(adapts=False)),
    ],
    ids=["plain", "decay", "clip", "no adaptation", "no decay"],
)
def test_lamb(settings, expected):
    optimizer = optimizers.LAMBIpuOptimizer(0.1, beta_2=0.99, **settings)
    np.testing.assert_allclose(trained(optimizer), expected, rtol=2e-5, atol=2e-6)


def test_states_have_dtypes_of_their_own():
    wide = optimizers.AdamIpuOptimizer(
        0.01,
        m_dtype=tf.float32,
        v_dtype=tf.float32,
        optimizer_compute_precisions=(tf.float32, tf.float32),
    )
    found = trained(wide, dtype=tf.float16)
    states = [one.dtype for one in optimizer_variables(wide) if tuple(one.shape) == START.shape]
    assert (states, found.dtype) == ([tf.float32] * 2, np.float16)
    expected = trained(tf.keras.optimizers.Adam(0.01))
    np.testing.assert_allclose(found, expected, rtol=5e-3, atol=2e-3)


@pytest.mark.parametrize("kind", ["SGDIpuOptimizer", "AdamIpuOptimizer", "LAMBIpuOptimizer"])
def test_an_optimizer_is_made_again_and_goes_on(kind):
    first = getattr(optimizers, kind)(0.1)
    again = type(first).from_config(first.get_config())
    np.testing.assert_array_equal(trained(first), trained(again))
    with pytest.raises(ValueError, match=r"(?s)PD435.*between 0 and 1"):
        getattr(optimizers, kind)(**{"momentum" if kind[0] == "S" else "beta_1": 1.5})


def test_rows_of_an_embedding():
    rows = tf.IndexedSlices(tf.ones((2, 3)), [1, 1], dense_shape=[4, 3])
    found = []
    # Keras 3 alone would count equal rows as several gradients.
    table = tf.convert_to_tensor(rows)
    for kind, gradient in (
        (optimizers.AdamIpuOptimizer, rows),
        (tf.keras.optimizers.Adam, table),
    ):
        variable = tf.Variable(START)
        optimizer = kind(0.1)
        for _ in range(2):
            optimizer.apply_gradients([(gradient, variable)])
        found.append(variable.numpy())
    np.testing.assert_allclose(*found, rtol=2e-5)


@pytest.mark.skipif(keras_is_3(), reason="Keras 3 has other states and settings")
@pytest.mark.parametrize(
    ("kind", "settings", "later", "slots"),
    [("SGD", {"momentum": 0.9}, {"momentum": 0.5}, ["momentum"]),
     ("Adam", {"beta_1": 0.9}, {"beta_1": 0.5, "beta_2": 0.9}, ["m", "v"])],
)  # fmt: skip
def test_settings_can_change_and_states_have_keras_names(kind, settings, later, slots):
    found = []
    legacy = getattr(tf.keras.optimizers.legacy, kind)
    for made in (getattr(optimizers, f"{kind}IpuOptimizer"), legacy):
        variable, optimizer = tf.Variable(START), made(0.1, **settings)
        optimizer.apply_gradients([(tf.ones_like(variable), variable)])
        for name, value in later.items():
            setattr(optimizer, name, value)
        optimizer.apply_gradients([(variable + 1, variable)])
        states = [optimizer.get_slot(variable, slot).numpy() for slot in slots]
        config = optimizer.get_config()
        found.append([variable.numpy(), *states, *(config[name] for name in later)])
    for ours, peers in zip(*found, strict=True):
        np.testing.assert_allclose(ours, peers, rtol=1e-5)


class Counting(tf.keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that counts its own calls, as that of the published BERT does."""

    def __init__(self):
        self.calls = tf.Variable(0.0)

    def __call__(self, _step):
        self.calls.assign_add(1.0)
        return 0.1 / self.calls


@pytest.mark.skipif(keras_is_3(), reason="Keras 3 asks a schedule where it reads the rate")
def test_a_schedule_is_asked_once_for_an_update():
    def trained_with(optimizer):
        variables = [tf.Variable(START), tf.Variable(START[0]), tf.Variable(START[:, 0])]
        for gradient in GRADIENTS:
            parts = (gradient, gradient[0], gradient[:, 0])
            optimizer.apply_gradients(zip(map(tf.constant, parts), variables, strict=True))
        return variables

    expected = trained_with(tf.keras.optimizers.legacy.Adam(Counting()))
    found = trained_with(optimizers.AdamIpuOptimizer(Counting()))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
