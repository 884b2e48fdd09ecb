"""With a TensorFlow that has no estimators, the published modules say so."""

import importlib

import pytest
import tensorflow as tf

from popdist_tf.errors import EstimatorGoneError
from popdist_tf.estimator_api import estimator_api

MODULE = "popdist_tf.ipu.ipu_estimator"


def test_estimators_are_there_or_said_to_be_gone():
    if hasattr(tf.compat.v1, "estimator"):
        assert estimator_api().Estimator is tf.compat.v1.estimator.Estimator
        assert importlib.import_module(MODULE).IPUEstimator
        return
    with pytest.raises(EstimatorGoneError, match=r"(?s)PD420.*ended with 2\.15.*PopDistStrategy"):
        importlib.import_module(MODULE)
