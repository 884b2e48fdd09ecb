"""A rank of the Estimator comparison: host_call under a strategy, and plain Estimators.

With Horovod's optimizer the plain one trains in turns with ours, a few steps at a time.
TensorFlow's own strategy has a job of its own, because its workers wait for each other where
another training took a turn in between.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = 32
_STEPS = 15
_WARM_UP = 5


def measure(turns: int) -> dict[str, list[float]]:
    """Times steps.

    Args:
        turns: How often each contender trains.

    Returns:
        Seconds of every step, by contender.
    """
    import tensorflow.compat.v1 as tf

    tf.logging.set_verbosity(tf.logging.ERROR)
    import horovod.tensorflow as binding

    from popdist_tf.ipu import horovod
    from popdist_tf.ipu.horovod.ipu_horovod_strategy import IPUHorovodStrategy

    horovod.init()
    took: dict[str, list[float]] = {"strategy": [], "Horovod optimizer": []}
    with tempfile.TemporaryDirectory(prefix="popdist-bench-") as folder:
        ours = _ours(IPUHorovodStrategy(), f"{folder}/ours")
        plain = _plain(f"{folder}/plain")
        for _ in range(turns):
            for name, estimator in (("strategy", ours), ("Horovod optimizer", plain)):
                clock = _clock()
                hooks = [clock]
                if estimator is plain:
                    hooks.append(binding.BroadcastGlobalVariablesHook(0))
                estimator.train(_input, steps=_STEPS + _WARM_UP, hooks=hooks)
                took[name] += clock.seconds[_WARM_UP:]
    return took


def workers(turns: int, ports: list[int]) -> dict[str, list[float]]:
    """Times steps of an Estimator under TensorFlow's own strategy for several workers.

    Args:
        turns: How many times the steps of a turn of the others it takes.
        ports: One for each rank.

    Returns:
        Seconds of every step, by contender.
    """
    import tensorflow.compat.v1 as tf

    tf.logging.set_verbosity(tf.logging.ERROR)
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    chief, *others = (f"127.0.0.1:{port}" for port in ports)
    task = {"type": "worker", "index": rank - 1} if rank else {"type": "chief", "index": 0}
    cluster = {"chief": [chief], "worker": others}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    clock = _clock()
    with tempfile.TemporaryDirectory(prefix="popdist-bench-") as folder:
        strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
        config = tf.estimator.RunConfig(train_distribute=strategy, **_settings())
        estimator = tf.estimator.Estimator(_model_fn(lambda adam: adam), folder, config)
        steps = _WARM_UP + turns * _STEPS
        tf.estimator.train_and_evaluate(
            estimator,
            tf.estimator.TrainSpec(_input, max_steps=steps, hooks=[clock]),
            tf.estimator.EvalSpec(_input, steps=1),
        )
    return {"MultiWorkerMirrored": clock.seconds[_WARM_UP:]}


def _clock() -> Any:
    import tensorflow.compat.v1 as tf

    class Clock(tf.train.SessionRunHook):  # type: ignore[misc]
        """Times every step of a session."""

        def __init__(self) -> None:
            self.seconds: list[float] = []
            self._start = 0.0

        def before_run(self, run_context: Any) -> None:
            """Starts."""
            del run_context
            self._start = time.perf_counter()

        def after_run(self, run_context: Any, run_values: Any) -> None:
            """Stops."""
            del run_context, run_values
            self.seconds.append(time.perf_counter() - self._start)

    return Clock()


def _input() -> Any:
    import numpy as np
    import tensorflow.compat.v1 as tf

    rng = np.random.default_rng(0)
    images = rng.normal(size=(BATCH, 28, 28, 1)).astype(np.float32)
    batch = (images, rng.integers(0, 10, size=BATCH).astype(np.int32))
    return tf.data.Dataset.from_tensors(batch).cache().repeat()


def _network() -> Any:
    import tensorflow.compat.v1 as tf

    return tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(16, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def _settings() -> dict[str, Any]:
    import tensorflow.compat.v1 as tf

    threads = {"intra_op_parallelism_threads": 1, "inter_op_parallelism_threads": 1}
    return {"session_config": tf.ConfigProto(**threads), "save_checkpoints_steps": 10**9}


def _ours(strategy: Any, folder: str) -> Any:
    import tensorflow.compat.v1 as tf

    from popdist_tf.ipu.ipu_estimator import IPUEstimator, IPUEstimatorSpec
    from popdist_tf.ipu.ipu_run_config import RunConfig

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        network = _network()
        loss = tf.losses.sparse_softmax_cross_entropy(labels, network(features, training=True))
        optimizer = tf.train.AdamOptimizer(0.001)
        pairs = optimizer.compute_gradients(loss, network.trainable_variables)

        def update(*gradients: Any) -> Any:
            weights = network.trainable_variables
            return optimizer.apply_gradients(zip(gradients, weights, strict=True))

        host_call = (update, [gradient for gradient, _ in pairs])
        return IPUEstimatorSpec(mode, loss=loss, train_op=tf.identity(loss), host_call=host_call)

    config = RunConfig(train_distribute=strategy, **_settings())
    return IPUEstimator(model_fn, model_dir=folder, config=config)


def _plain(folder: str) -> Any:
    import horovod.tensorflow as horovod
    import tensorflow.compat.v1 as tf

    config = tf.estimator.RunConfig(**_settings())
    # A folder for each rank: this Estimator takes every rank for the chief.
    folder = f"{folder}-{horovod.rank()}"
    return tf.estimator.Estimator(_model_fn(horovod.DistributedOptimizer), folder, config)


def _model_fn(wrap: Callable[[Any], Any]) -> Callable[..., Any]:
    import tensorflow.compat.v1 as tf

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        network = _network()
        loss = tf.losses.sparse_softmax_cross_entropy(labels, network(features, training=True))
        train = wrap(tf.train.AdamOptimizer(0.001)).minimize(
            loss, tf.train.get_global_step(), var_list=network.trainable_variables
        )
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    return model_fn
