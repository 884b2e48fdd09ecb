"""What once went wrong without a word: pairing, models outside of scopes, averages in graphs.

Each job answers several questions, as TensorFlow takes seconds to start.
"""

import numpy as np
import pytest

from tests.distributed.jobs import run_command, run_job
from tests.distributed.warm import python


def error_of(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - the tests look at it
        return f"{type(error).__name__}: {error}"
    return "no error"


def named_collectives(instance):
    """Two reductions, in another order on each instance."""
    import tensorflow as tf

    from popdist_tf.ipu import distributed, horovod
    from popdist_tf.ipu.distributed import host_collective_ops

    summed = tf.distribute.ReduceOp.SUM
    first, second = tf.constant(1.0), tf.constant(100.0)

    def both(reduce, one, other):
        if instance == 0:
            return reduce(one), reduce(other)
        found = reduce(other)
        return reduce(one), found

    @tf.function
    def by_argument(x, y):
        return both(lambda v: host_collective_ops.allreduce(v, summed), x, y)

    @tf.function
    def by_given_name(x, y):
        # An operation more on one instance, so that the tensors' own names differ.
        x, y = (x * 1.0, y * 1.0) if instance == 0 else (x * 1.0 * 1.0, y * 1.0)

        def gathered(pair):
            return horovod.allgather(tf.reshape(pair[0], [1]), name=pair[1])

        return both(gathered, (x, "x"), (y, "y"))

    @tf.function
    def from_root(x, y):
        return both(lambda v: distributed.broadcast(v + instance, tensor_name=v.name), x, y)

    def eager(x, y):
        return both(lambda v: host_collective_ops.allreduce(v, summed, tensor_name="one"), x, y)

    answers = {
        "argument": by_argument(first, second),
        "given": tf.concat(by_given_name(first, second), 0),
        "root": from_root(first, second),
        "average": tf.function(lambda x, y: both(horovod.allreduce, x, y))(first, second),
    }
    with tf.GradientTape() as tape:
        tape.watch(first)
        total = host_collective_ops.allreduce(first * (1.0 + instance), summed, tensor_name="g")
    answers["gradient"] = tape.gradient(total, first)
    assert len(eager(first, second)) == 2
    return {name: np.asarray(value) for name, value in answers.items()}


def other_layouts(instance):
    """Errors of tensors whose shape or dtype depends on the instance."""
    import tensorflow as tf

    from popdist_tf.ipu.distributed import host_collective_ops as ops

    longer = tf.ones([2 + instance])
    other = tf.ones([2], tf.int32 if instance else tf.float32)
    calls = {
        "sum": lambda: ops.allreduce(longer, tf.distribute.ReduceOp.SUM),
        "gather": lambda: ops.allgather(longer),
        "send": lambda: ops.broadcast(other),
        "built sum": tf.function(lambda: ops.allreduce(other, tf.distribute.ReduceOp.SUM)),
        "built gather": tf.function(lambda: ops.allgather(longer, tensor_name="it")),
    }
    return {f"layout of {name}": error_of(call) for name, call in calls.items()}


def outside_of_scopes(strategy):
    import tensorflow as tf

    from popdist_tf.ipu.ipu_strategy import IPUStrategy

    def model():
        made = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        made.compile("sgd", "mse")
        return made

    x = np.ones((8, 2), np.float32)
    y = np.ones((8, 1), np.float32)
    alone = model()
    answers = {
        "fit": error_of(alone.fit, x, y, verbose=0),
        "batch": error_of(alone.train_on_batch, x, y),
        "evaluate": error_of(alone.evaluate, x, y, verbose=0),
    }
    with strategy.scope():
        inside = model()
    answers["inside"] = error_of(inside.fit, x, y, verbose=0)
    with IPUStrategy().scope():
        chosen = model()
    answers["chosen"] = error_of(chosen.fit, x, y, verbose=0)
    return answers | updates_outside(strategy, inside, x, y)


def updates_outside(strategy, model, x, y):
    import tensorflow as tf

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        trained = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))

    answers = {}
    kinds = {"": tf.keras.optimizers.SGD, "legacy ": tf.keras.optimizers.legacy.SGD}
    for name, kind in kinds.items():
        try:
            with strategy.scope():
                optimizer = kind(0.1)
        except ImportError as error:  # of Keras 3, which has no older kind
            answers[f"no {name}kind"] = str(error)
            continue
        answers[f"{name}eager step"] = error_of(step)
        answers[f"{name}built step"] = error_of(tf.function(step))
        answers[f"{name}step of the strategy"] = error_of(lambda: strategy.run(step))
    return answers


def eager_questions():
    import tensorflow as tf

    import popdist
    from popdist_tf import ipu
    from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy
    from popdist_tf.ipu.ipu_multi_worker_strategy import IPUMultiWorkerStrategy

    strategy = PopDistStrategy()
    instance = popdist.getInstanceIndex()
    ipu.utils.reset_ipu_seed(7)
    own = tf.random.uniform([3])
    ipu.utils.reset_ipu_seed(7, experimental_identical_replicas=True)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return {
        **named_collectives(instance),
        **other_layouts(instance),
        **outside_of_scopes(strategy),
        "own": own.numpy(),
        "same": tf.random.uniform([3]).numpy(),
        "no cluster": error_of(IPUMultiWorkerStrategy, resolver),
    }


@pytest.fixture(scope="module")
def eager_answers():
    return run_job(eager_questions)


def test_collectives_are_paired_by_name_whatever_their_order(eager_answers):
    for instance, rank in enumerate(eager_answers):
        assert rank["argument"].tolist() == [2, 200]
        assert rank["given"].tolist() == [1, 1, 100, 100]
        assert rank["root"].tolist() == [1, 100]
        assert rank["average"].tolist() == [1, 100]
        assert rank["gradient"] == 2 * (1 + instance)


def test_other_shapes_or_dtypes_are_an_unknown_error_as_published(eager_answers):
    for rank in eager_answers:
        found = {name: said for name, said in rank.items() if name.startswith("layout of")}
        assert len(found) == 5
        for name, said in found.items():
            assert said.startswith("UnknownError: "), name
            assert "Tensor layouts did not match on all instances: float32[2] on inst" in said
        assert "float32[3] on instance 1" in found["layout of built gather"]
        assert "int32[2] on instance 1" in found["layout of send"]


@pytest.mark.parametrize("way", ["fit", "batch"])
def test_a_model_outside_of_the_scope_is_not_trained(eager_answers, way):
    for rank in eager_answers:
        assert "[PD414] this model was created outside of the strategy's scope" in rank[way]
        assert "strategy.scope()" in rank[way]


@pytest.mark.parametrize("kind", ["", "legacy "])
@pytest.mark.parametrize("way", ["eager step", "built step"])
def test_an_update_outside_of_the_strategy_s_step_is_refused(eager_answers, kind, way):
    for rank in eager_answers:
        if gone := rank.get(f"no {kind}kind"):
            assert "`keras.optimizers.legacy` is not supported in Keras 3" in gone
            continue
        assert "[PD414] an optimizer updates a strategy's variables outside" in rank[kind + way]
        assert "strategy.run(step, args=(batch,))" in rank[kind + way]


def test_what_diverges_nothing_is_not_refused(eager_answers):
    for rank in eager_answers:
        steps = [way for way in rank if way.endswith("step of the strategy")]
        assert len(steps) == 1 + ("no legacy kind" not in rank)
        for way in ("evaluate", "inside", "chosen", *steps):
            assert rank[way] == "no error"


def test_each_instance_draws_numbers_of_its_own_from_a_seed(eager_answers):
    first, second = eager_answers
    assert (first["own"] != second["own"]).all()
    np.testing.assert_array_equal(first["same"], second["same"])


def test_a_missing_cluster_is_named(eager_answers):
    for rank in eager_answers:
        assert "[PD415] the cluster resolver names no worker: TF_CONFIG" in rank["no cluster"]
        assert "--tf-config yes" in rank["no cluster"]


STEPS, BATCH, MOMENTUM = 4, 8, 0.9


def normalization():
    """Batch normalization whose averages are reduced when they are read, as Keras 2 has it.

    Keras 3 keeps those of each replica apart, which PD416 says. So there the program creates
    variables of another kind.
    """
    import tensorflow as tf

    class Reduced(tf.keras.layers.BatchNormalization):
        def build(self, shape):
            with tf.variable_creator_scope(reduced):
                super().build(shape)

    def reduced(create, **settings):
        if not settings["trainable"]:
            settings["synchronization"] = tf.VariableSynchronization.ON_READ
            settings["aggregation"] = tf.VariableAggregation.MEAN
        return create(**settings)

    keeps_apart = hasattr(tf.keras.optimizers.Optimizer, "apply")
    kind = Reduced if keeps_apart else tf.keras.layers.BatchNormalization
    return kind(momentum=MOMENTUM, name="norm")


def samples(instance):
    rng = np.random.default_rng(instance)
    return rng.normal(2 * instance, 1 + instance, (STEPS, BATCH, 3)).astype(np.float32)


def normalised_in_graphs(folder):
    import tensorflow.compat.v1 as tf

    import popdist
    from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy

    tf.disable_v2_behavior()
    strategy = PopDistStrategy()
    data = samples(popdist.getInstanceIndex())
    answers = {}
    for way in ("repeat", "compile", "run"):
        tf.reset_default_graph()
        with strategy.scope():
            found = normalised(strategy, data, way)
        answers |= {f"{way} {name}": value for name, value in found.items()}
    return answers | in_sessions(strategy, data, folder)


def in_sessions(strategy, data, folder):
    """Sessions that one instance alone runs, saves, initialises or restores."""
    import tensorflow.compat.v1 as tf

    import popdist

    first = popdist.getInstanceIndex() == 0
    tf.reset_default_graph()
    rows = tf.placeholder(tf.float32, [BATCH, 3])
    with strategy.scope():
        step = tf.train.get_or_create_global_step()

    def body(inputs):
        layer = normalization()
        start = tf.ones([3, 1]) * (1 + popdist.getInstanceIndex())  # another one on each instance
        weight = tf.get_variable("weight", initializer=start)
        loss = tf.reduce_mean(tf.square(layer(inputs, training=True) @ weight - 1))
        return loss, tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)

    with strategy.scope():
        loss, train = strategy.experimental_run_v2(body, (rows,))
        total = strategy.reduce(tf.distribute.ReduceOp.MEAN, loss, axis=None)
    values = {one.name.rpartition("/")[2]: one.read_value() for one in tf.global_variables()}
    moving = next(one for name, one in values.items() if "moving_mean" in name)
    saver = tf.train.Saver()
    answers = {}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())

        def alone(call):
            if first:
                call()
            session.run(train, {rows: data[0]})

        lone = {
            "save": lambda: saver.save(session, f"{folder}/alone"),
            "moving": lambda: session.run(moving),
            "total": lambda: session.run(total, {rows: data[0]}),
            "callable": session.make_callable(moving),
            "fed callable": lambda: session.make_callable(total, [rows])(data[0]),
            "callable by options": lambda: by_options(session, total, rows, data[0]),
            "plain callable": session.make_callable([values["weight:0"], step]),
            "plain": lambda: session.run([values["weight:0"], step]),
        }
        answers |= {f"lone {name}": error_of(alone, call) for name, call in lone.items()}
        own = f"{folder}/of {popdist.getInstanceIndex()}"
        answers["all save"] = error_of(saver.save, session, own)

    def supervised(save_model_secs=0):
        supervisor = tf.train.Supervisor(
            is_chief=first, logdir=f"{folder}/supervised", save_model_secs=save_model_secs,
            saver=saver,
            save_summaries_secs=0, global_step=step,
        )  # fmt: skip
        with supervisor.managed_session() as session:
            yield session
            place = supervisor.save_path if first else f"{folder}/not kept"
            saver.save(session, place, global_step=step)

    def monitored():
        with tf.train.MonitoredTrainingSession(
            is_chief=first, checkpoint_dir=f"{folder}/monitored" if first else None,
            save_checkpoint_steps=2, save_summaries_steps=None, log_step_count_steps=None,
        ) as session:  # fmt: skip
            yield session

    # The graph is final from here on.
    for way, training in {"monitored": monitored, "supervised": supervised}.items():
        for time in ("first", "resumed"):
            for session in training():
                for batch in data:
                    session.run(train, {rows: batch})
                raw = getattr(session, "_tf_sess", lambda one=session: one)()
                found = raw.run(values)
            found = {f"{time} {way} {name}": np.asarray(one) for name, one in found.items()}
            answers |= found
    answers["saving thread"] = error_of(lambda: list(supervised(600 if first else 0)))
    return answers


def by_options(session, fetched, fed, value):
    """What Keras calls in graphs of TensorFlow 1."""
    from tensorflow.core.protobuf import config_pb2

    options = config_pb2.CallableOptions(feed=[fed.name], fetch=[fetched.name])
    return session._make_callable_from_options(options)(value)


def normalised(strategy, data, way):
    import tensorflow.compat.v1 as tf

    from popdist_tf import ipu

    queue = ipu.ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(data))

    def body(_, inputs):
        layer = normalization()
        loss = tf.reduce_mean(tf.square(layer(inputs, training=True) - 1))
        return loss, tf.train.GradientDescentOptimizer(0.1).minimize(loss)

    def looped():
        return ipu.loops.repeat(STEPS, body, [tf.constant(0.0)], queue)

    def once():
        loss, train = body(None, queue.dequeue())
        with tf.control_dependencies([train]):
            return tf.identity(loss)

    def device_code():
        with ipu.scopes.ipu_scope("/device:IPU:0"):
            if way == "run":
                return once()
            return ipu.ipu_compiler.compile(looped if way == "repeat" else once)

    result = strategy.experimental_run_v2(device_code)
    fetched = tf.nest.flatten(strategy.experimental_local_results(result))
    with tf.Session() as session:
        session.run([queue.initializer, tf.global_variables_initializer()])
        for _ in range(1 if way == "repeat" else STEPS):
            session.run(fetched)
        values = session.run({v.name: v.read_value() for v in tf.global_variables()})
    return {name.rpartition("/")[2].partition(":")[0]: value for name, value in values.items()}


@pytest.fixture(scope="module")
def graph_answers(tmp_path_factory):
    return run_job(normalised_in_graphs, folder=str(tmp_path_factory.mktemp("sessions")))


@pytest.mark.parametrize("way", ["repeat", "compile", "run"])
def test_moving_averages_move_in_graphs(graph_answers, way):
    mean, variance = np.zeros(3), np.ones(3)
    for first, second in zip(samples(0), samples(1), strict=True):
        # Each instance moves its own by its batch; what is read is the mean of both.
        now = [(part.mean(0), part.var(0)) for part in (first, second)]
        mean = MOMENTUM * mean + (1 - MOMENTUM) * (now[0][0] + now[1][0]) / 2
        variance = MOMENTUM * variance + (1 - MOMENTUM) * (now[0][1] + now[1][1]) / 2
    for rank in graph_answers:
        np.testing.assert_allclose(rank[f"{way} moving_mean"], mean, rtol=1e-4)
        np.testing.assert_allclose(rank[f"{way} moving_variance"], variance, rtol=1e-4)
        np.testing.assert_array_equal(rank[f"{way} gamma"], graph_answers[0][f"{way} gamma"])
        assert (rank[f"{way} beta"] != 0).any()


ALONE = "[PD007] a session exchanges values that the sessions of other instances do not"


def test_what_one_session_alone_exchanges_is_an_error_on_all_instances(graph_answers):
    for rank in graph_answers:
        for call in ("save", "moving", "total", "callable", "fed callable", "callable by options"):
            assert ALONE in rank[f"lone {call}"], call
            assert "on instance 0; session.run with" in rank[f"lone {call}"]
        assert "[PD007] a Supervisor saves in a thread of its own" in rank["saving thread"]
        for call in ("lone plain", "lone plain callable", "all save"):
            assert rank[call] == "no error"
    assert "this instance runs save/" in graph_answers[0]["lone save"]


def global_batches(times):
    """Weights of one process in numpy, which normalises each instance's half by itself."""
    data = np.concatenate([np.stack([samples(0), samples(1)], 1)] * times).astype(np.float64)
    gamma, beta, weight = np.ones(3), np.zeros(3), np.ones((3, 1))
    mean, variance = np.zeros((2, 3)), np.ones((2, 3))
    for batch in data:
        gradients = [np.zeros(3), np.zeros(3), np.zeros((3, 1))]
        for number, part in enumerate(batch):
            mean[number] += (1 - MOMENTUM) * (part.mean(0) - mean[number])
            variance[number] += (1 - MOMENTUM) * (part.var(0) - variance[number])
            normal = (part - part.mean(0)) / np.sqrt(part.var(0) + 1e-3)
            error = 2 * ((gamma * normal + beta) @ weight - 1) / BATCH
            back = error @ weight.T
            own = (back * normal).sum(0), back.sum(0), (gamma * normal + beta).T @ error
            gradients = [total + one for total, one in zip(gradients, own, strict=True)]
        gamma, beta = gamma - 0.1 * gradients[0], beta - 0.1 * gradients[1]
        weight = weight - 0.1 * gradients[2]
    return {
        "gamma": gamma, "beta": beta, "weight": weight,
        "moving_mean": mean.mean(0), "moving_variance": variance.mean(0),
        "global_step": len(data),
    }  # fmt: skip


@pytest.mark.parametrize("way", ["monitored", "supervised"])
def test_sessions_of_a_chief_and_a_worker_train_and_resume_together(graph_answers, way):
    for times, time in ((1, "first"), (2, "resumed")):
        for name, value in global_batches(times).items():
            for rank in graph_answers:
                found = rank[f"{time} {way} {name}:0"]
                np.testing.assert_array_equal(found, graph_answers[0][f"{time} {way} {name}:0"])
                np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5, err_msg=name)


UNDER_MPIRUN = """
import sys
from popdist_tf import ipu
from popdist_tf.ipu import horovod as hvd
import popdist.tensorflow
early = popdist.tensorflow.set_ipu_config(ipu.config.IPUConfig(), configure_device=False)
hvd.init()
late = popdist.tensorflow.set_ipu_config(ipu.config.IPUConfig(), configure_device=False)
strategy = ipu.horovod.popdist_strategy.PopDistStrategy()
by_strategy = strategy.update_ipu_config(ipu.config.IPUConfig())
for name, config in ("early", early), ("late", late), ("strategy", by_strategy):
    place = config.experimental.multi_replica_distribution
    # In one write: under mpirun, ranks share the output, and Python may be unbuffered.
    print(f"{name} {place.process_index} of {place.process_count}", flush=True)
by_strategy.experimental.multi_replica_distribution.process_index = 1 - hvd.rank()
try:
    by_strategy.configure_ipu_system()
except Exception as error:
    print("refused", flush=True) if "PD401" in str(error) else print(error)
"""


def test_configurations_know_the_job_under_mpirun(mpirun, tmp_path):
    (tmp_path / "program.py").write_text(UNDER_MPIRUN)
    code, output = run_command(
        [mpirun, "--oversubscribe", "--allow-run-as-root", "-np", 2,
         *python("tensorflow"), tmp_path / "program.py"],
    )  # fmt: skip
    assert code == 0, output
    for name in ("early", "late", "strategy"):
        for instance in (0, 1):
            assert f"{name} {instance} of 2" in output
    assert output.count("refused") == 2
