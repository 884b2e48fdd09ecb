"""Spectral normalization of Keras 2 in steps that are compiled.

Keras 2.15 asks by a Python ``if`` whether a kernel is zero, which fails in every compiled step,
also in ``fit`` of one process. The same values are selected here without a branch.
"""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v2 as tf

from popdist_tf.versions import keras_is_3

_MARK = "_popdist_selects"


def support_spectral_normalization() -> None:
    """Makes `tf.keras.layers.SpectralNormalization` work in ``fit``; safe to call again."""
    kind = getattr(tf.keras.layers, "SpectralNormalization", None)
    if kind is None or keras_is_3() or hasattr(kind, _MARK):
        return
    kind.normalize_weights = _normalize_weights
    setattr(kind, _MARK, True)


def _normalize_weights(layer: Any) -> None:
    """Divides the kernel by its largest singular value; a kernel of zeros remains."""
    kernel, first = tf.convert_to_tensor(layer.kernel), tf.convert_to_tensor(layer.vector_u)
    rows = tf.reshape(kernel, [-1, layer.kernel_shape[-1]])
    vector_u = first
    for _ in range(layer.power_iterations):
        vector_v = tf.math.l2_normalize(tf.matmul(vector_u, rows, transpose_b=True))
        vector_u = tf.math.l2_normalize(tf.matmul(vector_v, rows))
    sigma = tf.matmul(tf.matmul(vector_v, rows), vector_u, transpose_b=True)
    is_zero = tf.reduce_all(tf.equal(rows, 0))
    layer.vector_u.assign(tf.where(is_zero, first, vector_u))
    layer.kernel.assign(tf.where(is_zero, kernel, tf.reshape(kernel / sigma, layer.kernel_shape)))
