"""A training loop in the style of TensorFlow 1: one compiled loop, queues in and out."""

import numpy as np
import pytest

from tests.distributed.jobs import run_job

BATCH = 4
STEPS = 5
CALLS = 2


def samples():
    rng = np.random.default_rng(5)
    images = rng.normal(size=(CALLS * STEPS, 2 * BATCH, 4)).astype(np.float32)
    return images, rng.integers(0, 3, size=images.shape[:2]).astype(np.int32)


def dense(inputs, units, name):
    import tensorflow.compat.v1 as tf

    shape = [int(inputs.shape[-1]), units]  # tf.layers is gone where there is Keras 3
    with tf.variable_scope(name):
        start = tf.initializers.glorot_uniform(seed=1)
        kernel = tf.get_variable("kernel", shape, initializer=start)
        return inputs @ kernel + tf.get_variable("bias", units, initializer=tf.zeros_initializer())


def loop():
    import tensorflow.compat.v1 as tf

    import popdist
    import popdist.tensorflow
    from popdist_tf import ipu
    from popdist_tf.ipu.horovod import popdist_strategy

    tf.disable_v2_behavior()
    config = ipu.config.IPUConfig()
    popdist.tensorflow.set_ipu_config(config, ipus_per_replica=1)
    config.configure_ipu_system()
    strategy = popdist_strategy.PopDistStrategy()
    instances, instance = popdist.getNumInstances(), popdist.getInstanceIndex()
    local = popdist.getNumLocalReplicas()
    share = []
    for array in samples():
        parts = array.reshape(CALLS * STEPS, instances, local, -1, *array.shape[2:])[:, instance]
        share.append(parts.reshape(-1, *parts.shape[2:]))  # an element for each replica
    with strategy.scope():
        infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(
            tf.data.Dataset.from_tensor_slices(tuple(share))
        )
        outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
        optimizer = tf.train.MomentumOptimizer(0.1, 0.9)

        def body(_, images, labels):
            normal = ipu.ops.normalization_ops.group_norm(images, groups=2)
            logits = dense(tf.tanh(dense(normal, 6, "hidden")), 3, "logits")
            loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
            # Gradients are summed over the replicas, so each counts its share of the mean.
            train = optimizer.minimize(loss / strategy.num_replicas_in_sync)
            mean = ipu.ops.cross_replica_ops.cross_replica_mean(loss)
            return mean, train, outfeed.enqueue(mean)

        def network():
            return ipu.loops.repeat(STEPS, body, [tf.constant(0.0)], infeed_queue=infeed)

        def device_code():
            tf.set_random_seed(1)
            with ipu.scopes.ipu_scope("/device:IPU:0"):
                return ipu.ipu_compiler.compile(network)

        (last,) = strategy.experimental_run_v2(device_code)
        reduced = strategy.reduce(tf.distribute.ReduceOp.MEAN, last, axis=None)
        losses = outfeed.dequeue()
        ipu.utils.move_variable_initialization_to_cpu()
        with tf.Session() as session:
            session.run(infeed.initializer)
            session.run(tf.global_variables_initializer())
            answers = {"losses": [], "last": []}
            for _ in range(CALLS):
                answers["last"].append(session.run(reduced))
                found = session.run(losses)
                assert found.shape == ((STEPS, local) if local > 1 else (STEPS,))
                answers["losses"].append(found.reshape(STEPS, local)[:, 0])
            values = session.run({v.name: v.read_value() for v in tf.global_variables()})
    apart = [diverging(popdist_strategy, instance, count) for count in (1, 3)]
    return {
        **{k: np.asarray(v) for k, v in answers.items()},
        **values,
        "apart": apart if instances > 1 else [],
        "warned": warned(popdist_strategy),
        "read alone": read_by_one_instance(popdist_strategy, instance),
    }


def diverging(popdist_strategy, instance, count):
    """How a loop ends whose instances learn at different rates, in which run of the session.

    With a ``count``, weights are updated every so many runs.
    """
    import tensorflow.compat.v1 as tf

    from popdist_tf import ipu

    with tf.Graph().as_default(), tf.Session() as session:
        strategy = popdist_strategy.PopDistStrategy(add_ipu_cross_replica_reductions=False)
        with strategy.scope():
            descent = tf.train.GradientDescentOptimizer(0.1 * (1 + instance))
            optimizer = ipu.optimizers.CrossReplicaOptimizer(descent)
            if count > 1:
                optimizer = ipu.optimizers.GradientAccumulationOptimizerV2(optimizer, count)

            def body(total):
                weight = tf.get_variable("weight", [2], initializer=tf.ones_initializer())
                loss = tf.reduce_sum(weight * weight)
                return total + loss, optimizer.minimize(loss)

            def device_code():
                return ipu.ipu_compiler.compile(lambda: ipu.loops.repeat(1, body, [0.0]))

            (total,) = strategy.experimental_run_v2(device_code)
            session.run(tf.global_variables_initializer())
            ended = []
            try:
                while len(ended) < 2 * count:
                    ended.append(session.run(strategy.experimental_local_results(total)[0]))
            except tf.errors.InvalidArgumentError as error:
                return f"in run {len(ended)}: {error}"
    return ""


def warned(popdist_strategy):
    """What is said where an optimizer averages, and the strategy sums the averages."""
    import warnings

    import tensorflow.compat.v1 as tf

    from popdist_tf import ipu

    strategy = popdist_strategy.PopDistStrategy()

    def step():
        weight = tf.get_variable("twice", [2], initializer=tf.ones_initializer())
        descent = tf.train.GradientDescentOptimizer(0.1)
        return ipu.optimizers.CrossReplicaOptimizer(descent).minimize(tf.reduce_sum(weight))

    with tf.Graph().as_default(), strategy.scope(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        strategy.experimental_run_v2(step)
    return sum("PD427" in str(one.message) for one in caught)


def read_by_one_instance(popdist_strategy, instance):
    """Variables as TensorFlow's hooks read them, on the first instance alone; all begin with 1."""
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default(), popdist_strategy.PopDistStrategy().scope(), tf.Session() as run:
        first = tf.get_variable("first", [2], initializer=tf.constant_initializer(1 + instance))
        second = tf.get_variable("second", initializer=first.initial_value)
        run.run(tf.global_variables_initializer())
        reads = [
            tf.cond(
                tf.is_variable_initialized(one), one.read_value, lambda one=one: one.initial_value
            )
            for one in (first, second)
        ]
        return np.asarray(run.run(reads if instance == 0 else [first, second])).tolist()


@pytest.fixture(scope="module")
def global_batch():
    (alone,) = run_job(loop, instances=1)
    assert any("Momentum" in name for name in alone)
    return alone


@pytest.mark.parametrize(("instances", "replicas"), [(2, 2), (2, 4), (2, 8), (1, 4)])
def test_a_compiled_loop_trains_like_one_process_on_the_global_batch(
    instances, replicas, global_batch
):
    ranks = run_job(loop, instances=instances, replicas=replicas)
    assert ranks[0]["losses"].shape == (CALLS, STEPS)
    np.testing.assert_array_equal(ranks[0]["last"], ranks[0]["losses"][:, -1])
    for one in ranks:
        assert one["warned"] == replicas // instances
        assert one["read alone"] == [[1, 1], [1, 1]]
        assert [said.split(":")[0] for said in one["apart"]] == ["in run 0", "in run 2"][
            : 2 * (instances > 1)
        ]
        assert all("[PD007] the instances hold" in said for said in one["apart"])
    for name, expected in global_batch.items():
        if name in ("apart", "warned", "read alone"):
            continue
        for rank in ranks:
            np.testing.assert_array_equal(rank[name], ranks[0][name])
        np.testing.assert_allclose(ranks[0][name], expected, rtol=2e-5, atol=2e-6)


def summed_after_a_merge():
    import tensorflow as tf

    import popdist
    from popdist_tf import ipu
    from popdist_tf.ipu.distributed import popdist_strategy

    strategy = popdist_strategy.PopDistStrategy(add_ipu_cross_replica_reductions=False)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session, strategy.scope():

        def step():
            own = tf.constant([1.0, 10.0]) * (popdist.getInstanceIndex() + 1)
            return tf.distribute.get_replica_context().merge_call(
                lambda _, value: ipu.ops.cross_replica_ops.cross_replica_sum(value), args=(own,)
            )

        return {"sum": session.run(strategy.run(step))}


def test_an_optimizer_sums_after_a_merge_as_published_bert_does():
    for answer in run_job(summed_after_a_merge):
        assert answer["sum"].tolist() == [3, 30]
