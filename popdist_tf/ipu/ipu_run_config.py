"""``ipu.ipu_run_config``: how an `IPUEstimator` runs."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.estimator.run_config import IPURunConfig, RunConfig

__all__ = ["IPURunConfig", "RunConfig"]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
