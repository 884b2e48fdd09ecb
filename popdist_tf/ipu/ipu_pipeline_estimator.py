"""``ipu.ipu_pipeline_estimator``: refused, with what to do instead."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.loops.repeat import IPUPipelineEstimator, IPUPipelineEstimatorSpec

__all__ = ["IPUPipelineEstimator", "IPUPipelineEstimatorSpec"]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
