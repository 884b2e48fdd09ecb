"""A compiled loop with two local replicas, and the same loop in plain TensorFlow.

Both run in one process and take turns. A run of the session makes several updates; in each, two
batches go through a small convolutional network, and their gradients are averaged.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.sampling import interleave

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = 32
REPLICAS = 2
ITERATIONS = 10
_WARM_UP = 2


def measure(runs: int) -> dict[str, list[float]]:
    """Times runs of a session.

    Args:
        runs: How many of each contender.

    Returns:
        Seconds of an iteration in every run, by contender.
    """
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    contenders = {"loop": _compiled(), "plain loop": _plain()}
    for run in contenders.values():
        for _ in range(_WARM_UP):
            run()
    return interleave(contenders, runs)


def _settings() -> Any:
    import tensorflow.compat.v1 as tf

    return tf.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=1, allow_soft_placement=True
    )


def _batches() -> Any:
    import numpy as np
    import tensorflow.compat.v1 as tf

    rng = np.random.default_rng(0)
    images = rng.normal(size=(BATCH, 28, 28, 1)).astype(np.float32)
    batch = (images, rng.integers(0, 10, size=BATCH).astype(np.int32))
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    return tf.data.Dataset.from_tensors(batch).cache().repeat().with_options(options)


def _loss(images: Any, labels: Any) -> Any:
    import tensorflow.compat.v1 as tf

    start = tf.initializers.glorot_uniform(seed=1)
    with tf.variable_scope("network", reuse=tf.AUTO_REUSE, use_resource=True):
        first = tf.get_variable("first", [3, 3, 1, 16], initializer=start)
        second = tf.get_variable("second", [3, 3, 16, 32], initializer=start)
        last = tf.get_variable("last", [25 * 32, 10], initializer=start)
    for kernel in (first, second):
        images = tf.nn.relu(tf.nn.conv2d(images, kernel, 1, "VALID"))
        images = tf.nn.max_pool2d(images, 2, 2, "VALID")
    scores = tf.reshape(images, [BATCH, 25 * 32]) @ last
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)
    return tf.reduce_mean(losses)


def _timed(session: Any, fetched: Any) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        session.run(fetched)
        return (time.perf_counter() - start) / ITERATIONS

    return run


def _compiled() -> Callable[[], float]:
    import tensorflow.compat.v1 as tf

    from popdist_tf import ipu
    from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy

    strategy = PopDistStrategy()
    with tf.Graph().as_default(), strategy.scope():
        infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(_batches())
        optimizer = tf.train.MomentumOptimizer(0.01, 0.9)

        def body(_: Any, images: Any, labels: Any) -> Any:
            loss = _loss(images, labels)
            return loss, optimizer.minimize(loss / strategy.num_replicas_in_sync)

        def device_code() -> Any:
            with ipu.scopes.ipu_scope("/device:IPU:0"):
                return ipu.ipu_compiler.compile(
                    lambda: ipu.loops.repeat(ITERATIONS, body, [tf.constant(0.0)], infeed)
                )

        (last,) = strategy.experimental_run_v2(device_code)
        fetched = strategy.experimental_local_results(last)
        session = tf.Session(config=_settings())
        session.run([infeed.initializer, tf.global_variables_initializer()])
    return _timed(session, fetched)


def _plain() -> Callable[[], float]:
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default():
        iterator = tf.data.make_initializable_iterator(_batches())
        optimizer = tf.train.MomentumOptimizer(0.01, 0.9)

        def body(done: Any, _: Any) -> Any:
            losses = [_loss(*iterator.get_next()) for _ in range(REPLICAS)]
            loss = tf.add_n(losses) / REPLICAS
            with tf.control_dependencies([optimizer.minimize(loss)]):
                return done + 1, tf.identity(loss)

        _, last = tf.while_loop(
            lambda done, _: done < ITERATIONS,
            body,
            [tf.constant(0), tf.constant(0.0)],
            parallel_iterations=1,
            back_prop=False,
        )
        session = tf.Session(config=_settings())
        session.run([iterator.initializer, tf.global_variables_initializer()])
    return _timed(session, last)
