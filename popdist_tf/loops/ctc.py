"""Connectionist temporal classification: losses and predictions for sequences without alignment.

TensorFlow's own operations compute them; the published operations differ in where the blank label
may be, and in taking logarithms of probabilities as well as logits.
"""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v2 as tf


def ctc_loss_v2(
    labels: Any,
    logits: Any,
    label_length: Any,
    logit_length: Any,
    blank_index: int,
    out_dtype: Any = None,
    name: str | None = None,
) -> Any:
    """The loss of sequences of labels.

    Args:
        labels: Integers of shape ``(batch, longest labels)``.
        logits: Shape ``(longest time, batch, classes)``.
        label_length: Labels of each sequence: ``(batch,)``.
        logit_length: Time steps of each sequence: ``(batch,)``.
        blank_index: The class of no label.
        out_dtype: Dtype of the losses; None for that of the logits.
        name: Of the operation.

    Returns:
        Shape ``(batch,)``: negative logarithms of the labels' probabilities.
    """
    logits = tf.convert_to_tensor(logits)
    loss = tf.nn.ctc_loss(
        tf.cast(labels, tf.int32),
        logits,
        tf.cast(label_length, tf.int32),
        tf.cast(logit_length, tf.int32),
        logits_time_major=True,
        blank_index=blank_index,
    )
    return tf.cast(loss, out_dtype or logits.dtype, name=name)


def ctc_loss_with_log_probs(
    labels: Any,
    data: Any,
    label_length: Any,
    data_length: Any,
    blank_index: int,
    out_dtype: Any = None,
    name: str | None = None,
) -> Any:
    """The loss of sequences of labels, from logarithms of probabilities.

    Args:
        labels: As for `ctc_loss_v2`.
        data: Logarithms of probabilities of shape ``(longest time, batch, classes)``.
        label_length: As for `ctc_loss_v2`.
        data_length: As ``logit_length`` of `ctc_loss_v2`.
        blank_index: As for `ctc_loss_v2`.
        out_dtype: As for `ctc_loss_v2`.
        name: Of the operation.

    Returns:
        As `ctc_loss_v2`.
    """
    data = tf.convert_to_tensor(data)
    loss = ctc_loss_v2(labels, data, label_length, data_length, blank_index)
    # The loss of logits divides by the sum of what should be probabilities; this one does not.
    sums = tf.transpose(tf.reduce_logsumexp(data, axis=-1))
    counted = tf.sequence_mask(data_length, tf.shape(data)[0], dtype=data.dtype)
    return tf.cast(loss - tf.reduce_sum(sums * counted, axis=1), out_dtype or data.dtype, name=name)


def ctc_beam_search_decoder(
    logits: Any,
    logits_lengths: Any,
    beam_width: int = 100,
    top_paths: int = 1,
    blank_index: int = -1,
    name: str | None = None,
) -> tuple[Any, Any, Any]:
    """The most likely sequences of labels.

    Args:
        logits: Shape ``(longest time, batch, classes)``.
        logits_lengths: Time steps of each sequence: ``(batch,)``.
        beam_width: How many beginnings of sequences are kept in each time step.
        top_paths: How many sequences are returned.
        blank_index: The class of no label; -1 for the last one.
        name: Of the operation.

    Returns:
        Negative logarithms of their probabilities and their lengths, both of shape
        ``(batch, top_paths)``, and the labels, of shape ``(batch, top_paths, longest time)``,
        filled up with the blank label.
    """
    logits = tf.convert_to_tensor(logits)
    time, classes = tf.shape(logits)[0], logits.shape[-1]
    blank = blank_index % classes
    order = [*(i for i in range(classes) if i != blank), blank]  # TensorFlow's blank is the last
    found, log_probabilities = tf.nn.ctc_beam_search_decoder(
        tf.cast(tf.gather(logits, order, axis=-1), tf.float32),
        tf.cast(logits_lengths, tf.int32),
        beam_width,
        top_paths,
    )
    labels, lengths = [], []
    for one in found:
        own = tf.gather(order, tf.sparse.to_dense(one, default_value=classes - 1))
        labels.append(tf.pad(own, [[0, 0], [0, time - tf.shape(own)[1]]], constant_values=blank))
        ones = tf.ones_like(one.values, tf.int32)
        batch = tf.cast(one.indices[:, 0], tf.int32)
        lengths.append(tf.math.unsorted_segment_sum(ones, batch, tf.shape(logits)[1]))
    probabilities = tf.cast(-log_probabilities, logits.dtype)
    return probabilities, tf.stack(lengths, axis=1), tf.stack(labels, axis=1, name=name or "stack")


def ctc_beam_search_decoder_with_log_probs(
    log_probs: Any,
    input_lengths: Any,
    beam_width: int = 100,
    top_paths: int = 1,
    blank_index: int = -1,
    name: str | None = None,
) -> tuple[Any, Any, Any]:
    """The most likely sequences of labels, from logarithms of probabilities.

    Args:
        log_probs: Shape ``(longest time, batch, classes)``.
        input_lengths: As ``logits_lengths`` of `ctc_beam_search_decoder`.
        beam_width: As for `ctc_beam_search_decoder`.
        top_paths: As for `ctc_beam_search_decoder`.
        blank_index: As for `ctc_beam_search_decoder`.
        name: As for `ctc_beam_search_decoder`.

    Returns:
        As `ctc_beam_search_decoder`.
    """
    return ctc_beam_search_decoder(
        log_probs, input_lengths, beam_width, top_paths, blank_index, name
    )
