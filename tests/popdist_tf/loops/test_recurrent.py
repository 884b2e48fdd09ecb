"""Recurrent layers in the style of TensorFlow 1, against torch and against formulas in numpy."""

import numpy as np
import pytest
import tensorflow as tf
import torch

from popdist_tf import ipu

TIME, BATCH, SIZE, UNITS = 5, 3, 4, 6
RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(TIME, BATCH, SIZE)).astype(np.float32)
LENGTHS = np.array([5, 2, 3])
SCORES = RNG.uniform(size=(BATCH, TIME)).astype(np.float32)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def built(layer):
    """A layer with random biases, as zeros would hide their order."""
    layer.build(INPUTS.shape)
    layer.biases.assign(RNG.normal(size=layer.biases.shape))
    kernel = layer.kernel.numpy().astype(np.float64)
    return kernel[:SIZE], kernel[SIZE:], layer.biases.numpy().astype(np.float64)


def reordered(weights, order):
    """Torch's rows of gates from the published columns."""
    parts = np.split(weights, len(order), axis=1)
    return torch.tensor(np.concatenate([parts[i] for i in order], axis=1).T)


def test_an_lstm_is_torchs():
    layer = ipu.rnn_ops.PopnnLSTM(UNITS)
    below, own, biases = built(layer)
    order = [1, 0, 2, 3]  # torch: input, forget, candidate, output
    peer = torch.nn.LSTM(SIZE, UNITS).double()
    with torch.no_grad():
        peer.weight_ih_l0.copy_(reordered(below, order))
        peer.weight_hh_l0.copy_(reordered(own, order))
        peer.bias_ih_l0.copy_(torch.tensor(biases[order].ravel()))
        peer.bias_hh_l0.zero_()
    start = RNG.normal(size=(2, BATCH, UNITS))
    x = torch.tensor(INPUTS, dtype=torch.float64, requires_grad=True)
    expected, (h, c) = peer(x, (torch.tensor(start[1:]), torch.tensor(start[:1])))
    expected.square().sum().backward()
    with tf.GradientTape() as tape:
        inputs = tf.constant(INPUTS)
        tape.watch(inputs)
        state = type("State", (tuple,), {})(tf.constant(one, tf.float32) for one in start)
        outputs, last = layer(inputs, state, training=True)
        loss = tf.reduce_sum(tf.square(outputs))
    np.testing.assert_allclose(outputs, expected.detach(), rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(last.c, c[0].detach(), rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(last.h, h[0].detach(), rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(tape.gradient(loss, inputs), x.grad, rtol=2e-4, atol=2e-5)


def test_a_gru_with_its_reset_after_the_product_is_torchs():
    layer = ipu.ops.rnn_ops.PopnnGRU(UNITS, reset_after=True)
    below, own, biases = built(layer)
    peer = torch.nn.GRU(SIZE, UNITS).double()
    with torch.no_grad():
        peer.weight_ih_l0.copy_(reordered(below, range(3)))
        peer.weight_hh_l0.copy_(reordered(own, range(3)))
        peer.bias_ih_l0.copy_(torch.tensor(biases[:, 0].ravel()))
        peer.bias_hh_l0.copy_(torch.tensor(biases[:, 1].ravel()))
    outputs, last = layer(INPUTS)
    expected, h = peer(torch.tensor(INPUTS, dtype=torch.float64))
    np.testing.assert_allclose(outputs, expected.detach(), rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(last, h[0].detach(), rtol=2e-5, atol=2e-6)


def gru(below, own, biases, scores=None):
    h, outputs = np.zeros((BATCH, UNITS)), []
    for step, x in enumerate(INPUTS):
        r, u, c = np.split(x @ below + biases.ravel(), 3, axis=1)
        r, u = sigmoid(r + h @ own[:, :UNITS]), sigmoid(u + h @ own[:, UNITS : 2 * UNITS])
        c = np.tanh(c + (r * h) @ own[:, 2 * UNITS :])
        if scores is not None:
            u = (1 - scores[:, step, None]) * u
        counts = (step < LENGTHS)[:, None]
        h = np.where(counts, u * h + (1 - u) * c, h)
        outputs.append(np.where(counts, h, 0))
    return np.array(outputs), h


@pytest.mark.parametrize("time_major", [True, False])
def test_sequences_end_where_they_end(time_major):
    layer = ipu.rnn_ops.PopnnDynamicGRU(UNITS)
    outputs, last = gru(*built(layer))
    inputs = INPUTS if time_major else INPUTS.transpose(1, 0, 2)
    found, state = layer(inputs, LENGTHS, time_major=time_major)
    np.testing.assert_allclose(found, outputs, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(state, last, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("time_major", [True, False])
def test_scores_of_attention_weaken_the_update(time_major):
    """They are in the order of the inputs, as published."""
    layer = ipu.rnn_ops.PopnnAUGRU(UNITS)
    outputs, last = gru(*built(layer), SCORES)
    given = (INPUTS, SCORES.T) if time_major else (INPUTS.transpose(1, 0, 2), SCORES)
    found, state = layer(given[0], LENGTHS, given[1], time_major=time_major)
    np.testing.assert_allclose(found, outputs, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(state, last, rtol=2e-5, atol=2e-6)


def test_a_dynamic_lstm_repeats_its_last_state():
    layer = ipu.rnn_ops.PopnnDynamicLSTM(UNITS, seed=1, preserve_final_state=True, options={})
    outputs, last = layer(INPUTS, LENGTHS)
    shorter, state = layer(INPUTS[:2], [2, 2, 2])
    np.testing.assert_allclose(outputs[:2], shorter, rtol=1e-6)
    np.testing.assert_allclose(last.h[1], state.h[1], rtol=1e-6)
    assert not np.any(outputs[2:, 1])


def test_variables_of_a_graph_are_made_once():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        layer = ipu.rnn_ops.PopnnGRU(UNITS, return_state=False, name="gru")
        doubled = layer(INPUTS) + layer(INPUTS)
        names = [one.name for one in tf.compat.v1.trainable_variables()]
        assert names == ["gru/kernel:0", "gru/biases:0"]
        assert layer.trainable_variables == tf.compat.v1.trainable_variables()
        gradients = tf.gradients(doubled, layer.variables)
        session.run(tf.compat.v1.global_variables_initializer())
        assert all(np.any(one) for one in session.run(gradients))


def test_arguments_without_a_meaning():
    with pytest.raises(ValueError, match=r"(?s)PD434.*'swish'.*hard_sigmoid"):
        ipu.rnn_ops.PopnnLSTM(UNITS, activation="swish")
    with pytest.raises(ValueError, match=r"(?s)PD434.*unit_forget_bias"):
        ipu.rnn_ops.PopnnLSTM(UNITS, unit_forget_bias=True)
