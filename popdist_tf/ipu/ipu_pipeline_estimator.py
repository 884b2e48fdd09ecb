"""``ipu.ipu_pipeline_estimator``: refused, with what to do instead."""

from popdist_tf.loops.pipelining import IPUPipelineEstimator, IPUPipelineEstimatorSpec

__all__ = ["IPUPipelineEstimator", "IPUPipelineEstimatorSpec"]
