"""``ipu.ipu_estimator``: the Estimator and its spec."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.estimator.estimator import IPUEstimator
from popdist_tf.estimator.spec import IPUEstimatorSpec

IPUEstimatorV1 = IPUEstimator

__all__ = ["IPUEstimator", "IPUEstimatorSpec", "IPUEstimatorV1"]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
