"""Training steps of TensorFlow beside plain Horovod and TensorFlow's own strategy.

`keras_job` and `estimator_job` are what a rank does; `comparison` starts them and makes the rows.
"""

from __future__ import annotations

from benchmarks.tensorflow_training.comparison import AIMS, measure

__all__ = ["AIMS", "measure"]
