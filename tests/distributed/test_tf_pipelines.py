"""Pipelines and accumulating optimizers on real ranks, against torch on the global batch."""

from importlib.util import find_spec

import numpy as np
import pytest

from tests.distributed.jobs import EXHAUSTIVE, run_job

COUNT, UPDATES, BATCH, RATE, MOMENTUM = 3, 2, 2, 0.1, 0.9
REPLICAS = 4
START = np.array([[0.5, -0.25], [1.0, 0.75]], np.float32), np.array([[0.5], [-1.5]], np.float32)


def samples(replicas):
    """Micro-batches, in the order of updates, micro-batches and replicas."""
    rng = np.random.default_rng(3)
    whole = rng.normal(size=(UPDATES, COUNT, REPLICAS * BATCH, 2)).astype(np.float32)
    return whole.reshape(UPDATES, COUNT, replicas, -1, 2)


def expected(replicas, scale):
    """Weights and losses of one process that adds up the gradients of all micro-batches."""
    import torch  # here, as a rank has no use for it

    weights = [torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in START]
    optimizer = torch.optim.SGD(weights, lr=RATE, momentum=MOMENTUM)
    losses = []
    for update in torch.tensor(samples(replicas), dtype=torch.float64):
        optimizer.zero_grad()
        for micro_batch in update:
            hidden = torch.tanh(micro_batch @ weights[0])
            parts = ((hidden @ weights[1] - 1) ** 2).mean(dim=(1, 2))
            losses.append(parts.tolist())
            (parts.sum() * scale).backward()
        optimizer.step()
    return [w.detach().numpy() for w in weights], np.array(losses)


def first_stage(rate, x):
    import tensorflow.compat.v1 as tf

    kernel = tf.get_variable("w", START[0].shape, initializer=tf.constant_initializer(START[0]))
    return rate, tf.tanh(x @ kernel)


def second_stage(rate, hidden):
    import tensorflow.compat.v1 as tf

    kernel = tf.get_variable("v", START[1].shape, initializer=tf.constant_initializer(START[1]))
    return rate, tf.reduce_mean(tf.square(hidden @ kernel - 1))


def weights_of(session):
    import tensorflow.compat.v1 as tf

    return session.run({v.name[0]: v.read_value() for v in tf.trainable_variables()})


def local_samples(strategy, instance):
    local = strategy.extended.replicas_per_step
    total = strategy.num_replicas_in_sync
    own = samples(total)[:, :, instance * local : (instance + 1) * local]
    return own.reshape(-1, *own.shape[3:])


def pipelined(strategy, instance, case):
    """A pipeline of two stages; its learning rate is fed, and travels through the stages."""
    import tensorflow.compat.v1 as tf

    from popdist_tf import ipu

    ops = ipu.pipelining_ops
    tf.reset_default_graph()
    share = 1 / strategy.num_replicas_in_sync
    with strategy.scope():
        data = tf.data.Dataset.from_tensor_slices(local_samples(strategy, instance))
        infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(data)
        outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
        fed = tf.placeholder(tf.float32, [])

        def optimizer_function(rate, loss):
            optimizer = tf.train.MomentumOptimizer(rate, MOMENTUM)
            return ops.OptimizerFunctionOutput(optimizer, loss * share)

        def network(rate):
            return ops.pipeline(
                [first_stage, second_stage],
                gradient_accumulation_count=COUNT,
                repeat_count=UPDATES,
                inputs=[rate],
                infeed_queue=infeed,
                outfeed_queue=outfeed,
                optimizer_function=optimizer_function,
                device_mapping=[0, 1],
                pipeline_schedule=ops.PipelineSchedule.Interleaved,
                outfeed_mask=[True, False],
                accumulate_outfeed=case == "accumulated",
                reduction_method={"mean": "mean", "running": "running_mean"}.get(case, "sum"),
            )

        def device_code(rate):
            with ipu.scopes.ipu_scope("/device:IPU:0"):
                return ipu.ipu_compiler.compile(network, [rate])

        run = strategy.experimental_run_v2(device_code, [fed])
        losses = outfeed.dequeue()
        with tf.Session() as session:
            session.run([infeed.initializer, tf.global_variables_initializer()])
            session.run(strategy.experimental_local_results(run), {fed: RATE})
            (found,) = session.run(losses)
            answers = weights_of(session)
    return {f"{case} {name}": value for name, value in {**answers, "losses": found}.items()}


def optimized(strategy, instance, case):
    """A loop around an accumulating optimizer; the optimizer reduces, or the strategy does."""
    import tensorflow.compat.v1 as tf

    from popdist_tf import ipu

    tf.reset_default_graph()
    optimizers = ipu.optimizers
    local = strategy.extended.replicas_per_step
    with strategy.scope():
        data = tf.data.Dataset.from_tensor_slices(local_samples(strategy, instance))
        infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(data)

        def body(_, x):
            _, loss = second_stage(*first_stage(None, x))
            inner = optimizers.AutomaticLossScalingOptimizer(
                tf.train.MomentumOptimizer(RATE, MOMENTUM), 2.0**10, 2, histogram_bin_edge=64.0
            )
            if case == "cross":
                optimizer = optimizers.CrossReplicaGradientAccumulationOptimizerV2(inner, COUNT)
            else:
                share = strategy.num_replicas_in_sync
                halved = optimizers.MapGradientOptimizer(inner, lambda grad, _: grad / share)
                mean = optimizers.GradientAccumulationReductionMethod.MEAN
                optimizer = optimizers.GradientAccumulationOptimizerV2(
                    halved, COUNT, reduction_method=mean
                )
            return loss, optimizer.minimize(loss)

        def device_code():
            with ipu.scopes.ipu_scope("/device:IPU:0"):
                return ipu.ipu_compiler.compile(
                    lambda: ipu.loops.repeat(COUNT * UPDATES, body, [tf.constant(0.0)], infeed)
                )

        (run,) = strategy.experimental_run_v2(device_code)
        assert len(strategy.experimental_local_results(run)) == local
        with tf.Session() as session:
            session.run([infeed.initializer, tf.global_variables_initializer()])
            session.run(strategy.experimental_local_results(run))
            answers = weights_of(session)
    return {f"{case} {name}": value for name, value in answers.items()}


# In float16, 2048 + 1 is 2048: the first row would add up to 2.
HALVES = np.array([[2048, 1, 1, -2046], [1, 1, 1, 1]], np.float16)
HALF_RATE = 2.0**-6


def widened(strategy, instance, way):
    """A weight of float16 whose gradients are accumulated in float32."""
    import tensorflow.compat.v1 as tf

    from popdist_tf import ipu

    ops, optimizers = ipu.pipelining_ops, ipu.optimizers
    tf.reset_default_graph()
    local = strategy.extended.replicas_per_step
    own = HALVES[np.arange(instance * local, (instance + 1) * local) % len(HALVES)]
    with strategy.scope():
        infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(
            tf.data.Dataset.from_tensor_slices(own.T.reshape(-1))
        )
        inner = tf.train.GradientDescentOptimizer(HALF_RATE)

        def loss_of(x):
            return x * tf.get_variable("h", [], tf.float16, initializer=tf.ones_initializer())

        def body(x):
            optimizer = optimizers.GradientAccumulationOptimizerV2(
                inner, 4, reduction_method="sum", dtype=tf.float32
            )
            return optimizer.minimize(loss_of(x))

        def network():
            if way == "optimizer":
                return ipu.loops.repeat(4, body, [], infeed)
            return ops.pipeline(
                [tf.identity, loss_of],
                gradient_accumulation_count=4,
                gradient_accumulation_dtype=tf.float32,
                infeed_queue=infeed,
                outfeed_queue=ipu.ipu_outfeed_queue.IPUOutfeedQueue(),
                optimizer_function=lambda loss: ops.OptimizerFunctionOutput(inner, loss),
                reduction_method="sum",
            )

        def device_code():
            with ipu.scopes.ipu_scope("/device:IPU:0"):
                return ipu.ipu_compiler.compile(network)

        run = strategy.experimental_run_v2(device_code)
        with tf.Session() as session:
            session.run([infeed.initializer, tf.global_variables_initializer()])
            session.run(strategy.experimental_local_results(run))
            (weight,) = weights_of(session).values()
    return {f"widened {way}": np.asarray(weight)}


def pipelines_in_job():
    import tensorflow.compat.v1 as tf

    import popdist
    from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy

    tf.disable_v2_behavior()
    instance = popdist.getInstanceIndex()
    strategy = PopDistStrategy()
    answers = {}
    for case in ("sum", "mean", "running", "accumulated"):
        answers |= pipelined(strategy, instance, case)
    answers |= optimized(strategy, instance, "mapped")
    for way in ("optimizer", "pipeline"):
        answers |= widened(strategy, instance, way)
    apart = PopDistStrategy(add_ipu_cross_replica_reductions=False)
    answers |= optimized(apart, instance, "cross")
    if find_spec("tensorflow_estimator"):
        answers |= {f"estimated {name}": value for name, value in estimated(strategy).items()}
    return answers


@pytest.fixture(
    scope="module", params=(1, 2, *[4] * EXHAUSTIVE), ids=lambda replicas: f"2x{replicas}"
)
def job(request):
    replicas = 2 * request.param
    return replicas, run_job(
        pipelines_in_job, framework="tensorflow", instances=2, replicas=replicas
    )


@pytest.mark.parametrize(
    ("case", "micro_batches"),
    [("sum", 1), ("mean", COUNT), ("running", COUNT), ("mapped", COUNT), ("cross", 1)],
)
def test_accumulated_gradients_train_like_one_process_on_the_global_batch(job, case, micro_batches):
    replicas, ranks = job
    weights, losses = expected(replicas, 1 / replicas / micro_batches)
    for instance, rank in enumerate(ranks):
        for name, weight in zip("wv", weights, strict=True):
            np.testing.assert_array_equal(rank[f"{case} {name}"], ranks[0][f"{case} {name}"])
            np.testing.assert_allclose(rank[f"{case} {name}"], weight, rtol=2e-5, atol=2e-6)
        if case == "sum":
            own = losses.reshape(COUNT * UPDATES, 2, -1)[:, instance]
            np.testing.assert_allclose(rank["sum losses"].reshape(own.shape), own, rtol=2e-5)


@pytest.mark.parametrize("way", ["optimizer", "pipeline"])
def test_gradients_are_accumulated_in_a_wider_dtype(job, way):
    replicas, ranks = job
    sums = HALVES.astype(np.float64).sum(1)[np.arange(replicas) % len(HALVES)]
    for rank in ranks:
        found = rank[f"widened {way}"]
        assert found.dtype == np.float16
        assert found == 1 - HALF_RATE * sums.sum()


def test_an_outfeed_can_hold_one_sum_for_each_update(job):
    replicas, ranks = job
    _, losses = expected(replicas, 1 / replicas)
    for instance, rank in enumerate(ranks):
        own = losses.reshape(UPDATES, COUNT, 2, -1)[:, :, instance].sum(1)
        np.testing.assert_allclose(rank["accumulated losses"].reshape(own.shape), own, rtol=2e-5)


def staged_model(mode, params):
    import tensorflow.compat.v1 as tf

    from popdist_tf.ipu import ipu_pipeline_estimator, pipelining_ops

    def first(x):
        return first_stage(None, x)[1]

    def last(hidden):
        if mode == tf.estimator.ModeKeys.PREDICT:
            return {"hidden": hidden}
        return second_stage(None, hidden)[1]

    def optimizer_function(loss):
        optimizer = tf.train.MomentumOptimizer(params["rate"], MOMENTUM)
        return pipelining_ops.OptimizerFunctionOutput(optimizer, loss)

    return ipu_pipeline_estimator.IPUPipelineEstimatorSpec(
        mode,
        [first, last],
        gradient_accumulation_count=COUNT,
        optimizer_function=optimizer_function,
        eval_metrics_fn=lambda loss: {"loss": loss, "mean": tf.metrics.mean(loss)},
        device_mapping=[0, 1],
        pipeline_schedule=pipelining_ops.PipelineSchedule.Grouped,
    )


def estimated(strategy=None):
    """An estimator of the same stages, whose weights, metrics and predictions are kept."""
    import tensorflow.compat.v1 as tf

    import popdist
    from popdist_tf import ipu

    tf.disable_v2_behavior()
    local = popdist.getNumLocalReplicas()
    first = popdist.getInstanceIndex() * local
    own = samples(popdist.getNumTotalReplicas())[:, :, first : first + local]
    own = own.reshape(COUNT * UPDATES * local, -1, 2)
    settings = ipu.ipu_run_config.IPURunConfig(iterations_per_loop=COUNT)
    estimator = ipu.ipu_pipeline_estimator.IPUPipelineEstimator(
        staged_model,
        config=ipu.ipu_run_config.RunConfig(settings, train_distribute=strategy),
        params={"rate": RATE},
    )

    def input_fn():
        return tf.data.Dataset.from_tensor_slices(own)

    estimator.train(input_fn, steps=COUNT * UPDATES)
    evaluated = estimator.evaluate(input_fn)
    (predicted, *_) = estimator.predict(input_fn)
    return {
        "w": estimator.get_variable_value("w"),
        "v": estimator.get_variable_value("v"),
        "step": int(evaluated["global_step"]),
        "loss": [float(evaluated["loss"]), float(evaluated["mean"])],
        "predicted": predicted["hidden"],
        "sample": own[0, 0],
    }


def check_estimated(ranks, replicas):
    (w, v), _ = expected(replicas, 1 / replicas)
    for rank in ranks:
        np.testing.assert_array_equal(rank["w"], ranks[0]["w"])
        np.testing.assert_allclose(rank["w"], w, rtol=2e-5, atol=2e-6)
        np.testing.assert_allclose(rank["v"], v, rtol=2e-5, atol=2e-6)
        assert rank["step"] == COUNT * UPDATES
        assert rank["loss"][0] == pytest.approx(rank["loss"][1], rel=1e-5)
        np.testing.assert_allclose(rank["predicted"], np.tanh(rank["sample"] @ w), rtol=1e-4)


def test_an_estimator_of_stages_trains_like_one_process(job):
    pytest.importorskip("tensorflow_estimator")
    replicas, ranks = job
    prefix = "estimated "
    found = [{k.removeprefix(prefix): v for k, v in rank.items() if prefix in k} for rank in ranks]
    check_estimated(found, replicas)


def test_an_estimator_of_stages_trains_alone():
    pytest.importorskip("tensorflow_estimator")
    check_estimated(run_job(estimated, framework="tensorflow", instances=1), 1)
