"""Sequences without alignment, against torch and against all paths."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import torch

from popdist_tf import ipu

TIME, BATCH, CLASSES = 4, 3, 3
LOGITS = np.random.default_rng(0).normal(size=(TIME, BATCH, CLASSES)).astype(np.float32)
LABELS = np.array([[1, 2], [2, 2], [1, 0]], np.int32)
LABEL_LENGTHS, LENGTHS = np.array([2, 2, 1]), np.array([4, 3, 4])
LOG_PROBABILITIES = LOGITS - np.log(np.exp(LOGITS).sum(-1, keepdims=True))


def expected_loss(data):
    return torch.nn.functional.ctc_loss(
        data,
        torch.tensor(LABELS),
        torch.tensor(LENGTHS),
        torch.tensor(LABEL_LENGTHS),
        blank=0,
        reduction="none",
    )


def test_losses_of_logits():
    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    expected = expected_loss(logits.log_softmax(-1))
    expected.sum().backward()
    with tf.GradientTape() as tape:
        inputs = tf.constant(LOGITS)
        tape.watch(inputs)
        loss = ipu.nn_ops.ctc_loss_v2(LABELS, inputs, LABEL_LENGTHS, LENGTHS, blank_index=0)
    np.testing.assert_allclose(loss, expected.detach(), rtol=1e-5)
    np.testing.assert_allclose(tape.gradient(loss, inputs), logits.grad, rtol=1e-4, atol=1e-6)
    layer = ipu.keras.losses.CTCLoss(from_logits=True)
    lengths = LABEL_LENGTHS[:, None], LENGTHS[:, None]  # as inputs of Keras have them
    np.testing.assert_allclose(layer(LABELS, LOGITS, *lengths), loss, rtol=1e-6)


@pytest.mark.parametrize("shift", [0, 0.5])
def test_losses_of_log_probabilities_are_not_normalised_again(shift):
    data = LOG_PROBABILITIES - np.float32(shift)
    expected = expected_loss(torch.tensor(data, dtype=torch.float64))
    found = ipu.nn_ops.ctc_loss_with_log_probs(LABELS, data, LABEL_LENGTHS, LENGTHS, 0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    layer = ipu.keras.layers.CTCLoss()(LABELS, data, LABEL_LENGTHS, LENGTHS)
    np.testing.assert_allclose(layer, expected, rtol=1e-5)


def likely(row, blank):
    """All sequences of labels of one row with their probabilities, the likeliest first."""
    found = {}
    for path in itertools.product(range(CLASSES), repeat=LENGTHS[row]):
        labels = tuple(key for key, _ in itertools.groupby(path) if key != blank)
        probability = np.exp(sum(LOG_PROBABILITIES[t, row, c] for t, c in enumerate(path)))
        found[labels] = found.get(labels, 0) + probability
    return sorted(found.items(), key=lambda item: -item[1])


@pytest.mark.parametrize("blank", [0, 1, -1])
@pytest.mark.parametrize("kind", ["logits", "log_probs"])
def test_the_likeliest_sequences(blank, kind):
    decode = {
        "logits": ipu.nn_ops.ctc_beam_search_decoder,
        "log_probs": ipu.ops.nn_ops.ctc_beam_search_decoder_with_log_probs,
    }[kind]
    data = LOGITS if kind == "logits" else LOG_PROBABILITIES
    losses, lengths, labels = decode(data, LENGTHS, 100, top_paths=2, blank_index=blank)
    assert labels.shape == (BATCH, 2, TIME)
    for row in range(BATCH):
        best = likely(row, blank % CLASSES)[:2]
        for path, (sequence, probability) in enumerate(best):
            assert tuple(labels[row, path, : lengths[row, path]].numpy()) == sequence
            assert np.all(labels[row, path, lengths[row, path] :] == blank % CLASSES)
            np.testing.assert_allclose(losses[row, path], -np.log(probability), rtol=1e-4)


def test_layers_of_predictions():
    labels = ipu.keras.layers.CTCPredictionsLayer()(LOG_PROBABILITIES, LENGTHS)
    for row in range(BATCH):
        best = likely(row, 0)[0][0]
        assert labels[row].numpy().tolist() == [*best, *[0] * (TIME - len(best))]
    layer = ipu.keras.layers.CTCInferenceLayer(top_paths=2, from_logits=True)
    assert [part.shape for part in layer(LOGITS, LENGTHS)] == [(3, 2), (3, 2), (3, 2, 4)]
    assert type(layer).from_config(layer.get_config()).get_config() == layer.get_config()
