"""A rank of the Keras comparison: one convolutional network, several ways to reduce gradients.

All ways live in one process and take turns step by step, so that the machine is the same for all.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from benchmarks.memory import peak_bytes
from benchmarks.sampling import interleave

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = 32
_WARM_UP = 5


def measure(steps: int, ports: list[int]) -> dict[str, list[float]]:
    """Times steps.

    Args:
        steps: How many of each contender.
        ports: One for each rank of TensorFlow's own strategy; empty leaves it out.

    Returns:
        Seconds of every step, by contender.
    """
    workers = start(ports)
    import popdist_tf.keras

    names = ["strategy", "plain Keras"]
    if popdist_tf.keras.size() > 1:
        names = ["strategy", "wrapper", "Horovod optimizer", "Horovod tape"]
    if workers is not None:
        names.append("MultiWorkerMirrored")
    contenders = {name: contender(name, workers) for name in names}
    for step in contenders.values():
        for _ in range(_WARM_UP):
            step()
    return interleave(contenders, steps)


def start(ports: list[int]) -> Any:
    """Starts what reduces gradients.

    Args:
        ports: One for each rank of TensorFlow's own strategy; empty leaves it out.

    Returns:
        That strategy, or None.
    """
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    # First, because its server has to be there before TensorFlow runs anything.
    workers = _multi_worker(ports) if ports else None
    import popdist_tf.keras

    popdist_tf.keras.init()
    return workers


def contender(name: str, workers: Any) -> Callable[[], float]:
    """One way to train.

    Args:
        name: Which.
        workers: TensorFlow's own strategy, or None.

    Returns:
        A function that takes one step and returns its seconds.
    """
    import horovod.tensorflow.keras as horovod
    import tensorflow as tf

    import popdist_tf.keras
    from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy

    adam = tf.keras.optimizers.Adam()
    makers: dict[str, Callable[[], Callable[[], float]]] = {
        "strategy": lambda: _under(PopDistStrategy(), adam),
        "plain Keras": lambda: _under(None, adam),
        "wrapper": lambda: _under(None, popdist_tf.keras.DistributedOptimizer(adam)),
        "Horovod optimizer": lambda: _under(None, horovod.DistributedOptimizer(adam)),
        "Horovod tape": lambda: _tape(adam),
        "MultiWorkerMirrored": lambda: _under(workers, adam),
    }
    return makers[name]()


def peak(*, name: str, ports: list[int]) -> int:
    """Trains in one way alone.

    Args:
        name: Which.
        ports: As for `measure`.

    Returns:
        The most memory that this rank had, in bytes.
    """
    workers = start(ports if name == "MultiWorkerMirrored" else [])
    step = contender(name, workers)
    for _ in range(_WARM_UP):
        step()
    return peak_bytes()


def _multi_worker(ports: list[int]) -> Any:
    import tensorflow as tf

    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    task = {"type": "worker", "index": int(os.environ["OMPI_COMM_WORLD_RANK"])}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    finally:
        del os.environ["TF_CONFIG"]


def _model() -> Any:
    import tensorflow as tf

    tf.keras.utils.set_random_seed(0)
    return tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(16, 3, activation="relu", input_shape=(28, 28, 1)),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def _loss() -> Any:
    import tensorflow as tf

    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _batches() -> Any:
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    images = rng.normal(size=(BATCH, 28, 28, 1)).astype(np.float32)
    batch = (images, rng.integers(0, 10, size=BATCH))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    options.threading.private_threadpool_size = 1
    return tf.data.Dataset.from_tensors(batch).cache().repeat().with_options(options)


def _under(strategy: Any, optimizer: Any) -> Callable[[], float]:
    import tensorflow as tf

    if strategy is None:
        model, batches = _model(), _batches()
        model.compile(optimizer, _loss())
    else:
        with strategy.scope():
            model = _model()
            model.compile(type(optimizer).from_config(optimizer.get_config()), _loss())
        # From a function: TensorFlow's own strategy would divide a data set's batches.
        batches = strategy.distribute_datasets_from_function(lambda _: _batches())
    iterator = iter(batches)
    model.make_train_function()  # Keras 3 returns nothing
    train = model.train_function

    def step() -> float:
        start = time.perf_counter()
        tf.nest.map_structure(lambda logged: logged.numpy(), train(iterator))
        return time.perf_counter() - start

    return step


def _tape(optimizer: Any) -> Callable[[], float]:
    import horovod.tensorflow as horovod
    import tensorflow as tf

    model, loss, iterator = _model(), _loss(), iter(_batches())

    @tf.function  # type: ignore[untyped-decorator]
    def train(batches: Any) -> Any:
        images, labels = next(batches)
        with horovod.DistributedGradientTape(tf.GradientTape()) as tape:
            value = loss(labels, model(images, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    def step() -> float:
        start = time.perf_counter()
        train(iterator).numpy()
        return time.perf_counter() - start

    return step
