"""TensorFlow's estimators, where this TensorFlow still has them."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v2 as tf

from popdist_tf.errors import EstimatorGoneError


def estimator_api() -> Any:
    """The module ``tf.estimator``.

    Returns:
        The module.

    Raises:
        EstimatorGoneError: This TensorFlow (2.16 and later) has no estimators.
    """
    try:
        return tf.compat.v1.estimator
    except AttributeError:
        raise EstimatorGoneError(
            "PD420",
            f"TensorFlow {tf.__version__} has no estimators: they ended with 2.15",
            accepted="tensorflow 2.15 and tensorflow-estimator 2.15, on Python 3.11 or before",
            hint="install the default set (constraints/default.txt), or train with Keras under "
            "PopDistStrategy, which works with every TensorFlow",
        ) from None
