"""``ipu.pipelining_ops``: the same as ``ipu.ops.pipelining_ops``."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.loops.repeat import PipelineSchedule, pipeline

__all__ = ["PipelineSchedule", "pipeline"]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
