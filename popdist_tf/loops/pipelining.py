"""Pipelining: refused with a word on what to do instead."""

from __future__ import annotations

from enum import Enum
from typing import Any, NoReturn

from popdist_tf.errors import EstimatorUnsupportedError


class PipelineSchedule(Enum):
    """In which order the stages of a pipeline run."""

    Grouped = 0
    Interleaved = 1
    Sequential = 2


def pipeline(*_args: Any, **_kwargs: Any) -> NoReturn:
    """Refuses to pipeline: a host has one device for each replica, and nothing to pipeline over.

    Raises:
        EstimatorUnsupportedError: Always.
    """
    raise EstimatorUnsupportedError(
        "PD423",
        "pipelining_ops.pipeline is not available on a host: a replica has one device",
        hint="call the stages one after the other inside ipu.loops.repeat, and apply the sum of "
        "the gradients of as many elements as gradient_accumulation_count said",
    )


class IPUPipelineEstimator:
    """Refuses to be created; see `pipeline`.

    Raises:
        EstimatorUnsupportedError: Always.
    """

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        raise EstimatorUnsupportedError(
            "PD423",
            "IPUPipelineEstimator is not available on a host: a replica has one device",
            hint="use IPUEstimator, with a model_fn that calls the stages one after the other",
        )


IPUPipelineEstimatorSpec = IPUPipelineEstimator
