"""``ipu.ipu_estimator``: the Estimator and its spec."""

from popdist_tf.estimator.estimator import IPUEstimator
from popdist_tf.estimator.spec import IPUEstimatorSpec

IPUEstimatorV1 = IPUEstimator

__all__ = ["IPUEstimator", "IPUEstimatorSpec", "IPUEstimatorV1"]
