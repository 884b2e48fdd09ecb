"""``ipu.ipu_run_config``: how an `IPUEstimator` runs."""

from popdist_tf.estimator.run_config import IPURunConfig, RunConfig

__all__ = ["IPURunConfig", "RunConfig"]
