"""``ipu.pipelining_ops``: the same as ``ipu.ops.pipelining_ops``."""

from popdist_tf.loops.pipelining import PipelineSchedule, pipeline

__all__ = ["PipelineSchedule", "pipeline"]
