"""``ipu.ops.pipelining_ops``: refused, with what to do instead."""

from popdist_tf.loops.pipelining import PipelineSchedule, pipeline

__all__ = ["PipelineSchedule", "pipeline"]
