"""What estimators refuse, before anything runs."""

import pytest
import tensorflow.compat.v1 as tf

if not hasattr(tf, "estimator"):
    pytest.skip("TensorFlow 2.16 and later have no estimators", allow_module_level=True)

from popdist_tf.errors import EstimatorTypeError, EstimatorUnsupportedError, EstimatorValueError
from popdist_tf.estimator.estimator import local_batch_size
from popdist_tf.ipu.config import IPUConfig
from popdist_tf.ipu.ipu_estimator import IPUEstimator, IPUEstimatorSpec
from popdist_tf.ipu.ipu_pipeline_estimator import IPUPipelineEstimator, IPUPipelineEstimatorSpec
from popdist_tf.ipu.ipu_run_config import IPURunConfig, RunConfig

TRAIN, EVAL = tf.estimator.ModeKeys.TRAIN, tf.estimator.ModeKeys.EVAL


def options(devices):
    config = IPUConfig()
    config.auto_select_ipus = devices
    return config


def test_the_defaults_of_a_run():
    run = RunConfig().ipu_run_config
    assert run == IPURunConfig()
    assert (run.iterations_per_loop, run.num_replicas, run.num_shards) == (1, 1, 1)
    assert RunConfig(master="grpc://x").master == "grpc://x"


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"num_replicas": 2}, EstimatorValueError, "configuration requires more than one device"),
        ({"ipu_options": {}}, EstimatorTypeError, "not a configuration"),
        ({"ipu_options": options(1), "ordinal": 1}, EstimatorValueError, "ordinal"),
        (
            {"ipu_options": options(3), "num_replicas": 2, "num_shards": 2},
            EstimatorValueError,
            r"configured with 4 devices \(2 replicas times 2 shards\)",
        ),
        ({"iterations_per_loop": 0}, EstimatorValueError, "must be positive"),
    ],
)
def test_devices_that_do_not_fit_are_refused(settings, error, text):
    with pytest.raises(error, match=text):
        IPURunConfig(**settings)


@pytest.mark.parametrize("name", ["host_call", "eval_metrics"])
def test_pairs_of_function_and_tensors_are_checked(name):
    for value, error in (
        ([len, []], EstimatorTypeError),
        ((len,), EstimatorValueError),
        ((1, []), EstimatorTypeError),
        ((len, "x"), EstimatorTypeError),
    ):
        with pytest.raises(error, match=name):
            IPUEstimatorSpec(TRAIN, **{name: value})


def model(**spec):
    def model_fn(features, labels, mode):
        weight = tf.get_variable("weight", initializer=1.0)
        loss = tf.reduce_mean((features * weight - labels) ** 2)
        made = {name: value(loss, weight) for name, value in spec.items()}
        return IPUEstimatorSpec(mode, **{"loss": loss, "train_op": tf.identity(loss), **made})

    return model_fn


def ones():
    return tf.data.Dataset.from_tensors(([1.0], [2.0])).repeat()


def step(loss, weight):
    return tf.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=[weight])


def counting(loss, weight):
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    return optimizer.minimize(loss, tf.train.get_global_step(), var_list=[weight])


@pytest.mark.parametrize(
    ("spec", "error", "text"),
    [
        ({"loss": lambda *_: None}, EstimatorValueError, "`loss` is needed"),
        ({"train_op": lambda *_: None}, EstimatorValueError, "`train_op` is needed"),
        ({"train_op": counting}, EstimatorValueError, "Illegal increment of the `global_step`"),
        (
            {"host_call": lambda *_: (lambda: 5, [])},
            EstimatorTypeError,
            "`host_call` return value must be Operation or Tensor",
        ),
    ],
)
def test_what_a_model_function_returns_is_checked(spec, error, text, tmp_path):
    with pytest.raises(error, match=text):
        IPUEstimator(model(**spec), model_dir=str(tmp_path)).train(ones, steps=1)


def test_a_loop_of_several_updates_counts_them_all(tmp_path):
    config = RunConfig(IPURunConfig(iterations_per_loop=3))
    looped = IPUEstimator(model(train_op=step), model_dir=f"{tmp_path}/looped", config=config)
    single = IPUEstimator(model(train_op=step), model_dir=f"{tmp_path}/single")
    for estimator in (looped, single):
        estimator.train(ones, steps=6)
    names = ("global_step", "weight")
    assert [looped.get_variable_value(name) for name in names] == [
        single.get_variable_value(name) for name in names
    ]
    with pytest.raises(EstimatorValueError, match="multiple of iterations_per_loop"):
        looped.train(ones, steps=4)
    looped.train(ones, max_steps=8)  # rounded up to whole loops, as published
    assert looped.get_variable_value("global_step") == 9
    counted = IPUEstimator(model(train_op=counting), model_dir=f"{tmp_path}/counted", config=config)
    with pytest.raises(EstimatorValueError, match="Illegal increment of the `global_step`"):
        counted.train(ones, steps=3)


def test_layers_of_a_loop_are_found_again_in_an_evaluation(tmp_path):
    def model_fn(features, labels, mode):
        found = tf.keras.Sequential([tf.keras.layers.Dense(1)])(features[:, None])
        loss = tf.reduce_mean((found[:, 0] - labels) ** 2)
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def data():
        return tf.data.Dataset.from_tensors(([1.0, 2.0], [3.0, 5.0])).repeat()

    config = RunConfig(IPURunConfig(iterations_per_loop=3))
    looped = IPUEstimator(model_fn, model_dir=str(tmp_path), config=config)
    looped.train(data, steps=300)
    assert looped.evaluate(data, steps=3)["loss"] == pytest.approx(0, abs=1e-3)  # y = 2 x + 1
    assert "sequential/dense/kernel" in looped.get_variable_names()


def test_evaluation_and_prediction(tmp_path):
    def model_fn(features, labels, mode):
        weight = tf.get_variable("weight", initializer=3.0)
        predictions = features * weight
        if mode == tf.estimator.ModeKeys.PREDICT:
            return IPUEstimatorSpec(mode, predictions={"y": predictions})
        loss = tf.reduce_mean(tf.abs(predictions - labels))
        metrics = (lambda y: {"mean": tf.metrics.mean(y)}, [predictions])
        return IPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)

    estimator = IPUEstimator(model_fn, model_dir=str(tmp_path))
    found = estimator.evaluate(lambda: tf.data.Dataset.from_tensors(([1.0, 2.0], [0.0, 0.0])))
    assert found["loss"] == found["mean"] == 4.5
    found = estimator.predict(
        lambda: tf.data.Dataset.from_tensors([1.0, 2.0]).repeat(), num_predictions=3
    )
    assert [one["y"] for one in found] == [3, 6, 3]


@pytest.mark.parametrize("metrics", [{}, {"eval_metric_ops": {}, "eval_metrics": (dict, [])}])
def test_an_evaluation_needs_one_kind_of_metrics(metrics, tmp_path):
    spec = {name: (lambda *_, value=value: value) for name, value in metrics.items()}
    with pytest.raises(EstimatorValueError, match=r"eval_metric_ops (or|and) eval_metrics"):
        IPUEstimator(model(**spec), model_dir=str(tmp_path)).evaluate(ones, steps=1)


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"config": tf.estimator.RunConfig()}, EstimatorValueError, "IPU RunConfig"),
        ({"params": [1]}, EstimatorTypeError, "must be a dict"),
        ({"params": {"input_fn": 1}}, EstimatorValueError, "reserved"),
        (
            {"params": {"batch_size": 1}, "train_batch_size": 1},
            EstimatorValueError,
            "cannot be passed in params",
        ),
        (
            {"config": RunConfig(IPURunConfig(num_replicas=2, ipu_options=options(2)))},
            EstimatorUnsupportedError,
            "poprun --num-replicas 2",
        ),
    ],
)
def test_arguments_of_the_estimator_are_checked(settings, error, text):
    with pytest.raises(error, match=text):
        IPUEstimator(model(), **settings)


def test_input_functions_are_checked(tmp_path):
    with pytest.raises(EstimatorValueError, match="must return Dataset"):
        IPUEstimator(model(), model_dir=str(tmp_path)).train(lambda: ([1.0], [2.0]), steps=1)
    sized = IPUEstimator(model(), model_dir=str(tmp_path), train_batch_size=2)
    with pytest.raises(EstimatorValueError, match=r"params\['batch_size'\]"):
        sized.train(ones, steps=1)

    def unlabelled(features, mode):
        raise AssertionError((features, mode))

    with pytest.raises(EstimatorValueError, match="does not take labels"):
        IPUEstimator(unlabelled, model_dir=str(tmp_path)).train(ones, steps=1)


def test_a_batch_is_divided_equally_or_not_at_all():
    assert local_batch_size("train_batch_size", 12, 2, 3) == 2
    for size in (0, 5, 13):
        with pytest.raises(EstimatorValueError, match="a multiple of 6"):
            local_batch_size("train_batch_size", size, 2, 3)


def test_pipelines_say_what_a_mode_needs():
    with pytest.raises(ValueError, match="must contain `gradient_accumulation_count`"):
        IPUPipelineEstimatorSpec(TRAIN, [len], optimizer_function=len)
    with pytest.raises(ValueError, match="must contain `eval_metrics_fn` when evaluating"):
        IPUPipelineEstimatorSpec(EVAL, [len])
    with pytest.raises(TypeError, match="unexpected keyword argument 'stages'"):
        IPUPipelineEstimatorSpec(tf.estimator.ModeKeys.PREDICT, [len], stages=2)
    several = RunConfig(IPURunConfig(num_replicas=2, ipu_options=options(2)))
    with pytest.raises(NotImplementedError, match="need a strategy that runs them"):
        IPUPipelineEstimator(model(), config=several)


def staged(**spec):
    """A pipeline's model function, which makes a specification of two stages."""
    defaults = {
        "computational_stages": [lambda x: x * 2.0, lambda x: x + 1.0],
        "gradient_accumulation_count": 1,
        "optimizer_function": len,
        "eval_metrics_fn": lambda x: {"loss": x},
    }
    return lambda mode: IPUPipelineEstimatorSpec(mode, **{**defaults, **spec})


@pytest.mark.parametrize(
    ("model_fn", "shards", "error", "text"),
    [
        (
            lambda features, mode: (features, mode),
            1,
            ValueError,
            "must not have `features` or `labels`",
        ),
        (lambda mode: mode, 1, TypeError, "must return `IPUPipelineEstimatorSpec`"),
        (staged(computational_stages=5), 1, TypeError, "needs to be a list or a tuple"),
        (staged(optimizer_function=lambda x: x), 1, TypeError, "must return an OptimizerFunc"),
        (staged(computational_stages=[]), 2, ValueError, "requires 0 devices, .* set to 2"),
        (staged(device_mapping=[0, 0]), 2, ValueError, "requires 1 devices, .* set to 2"),
        (staged(device_mapping=[0]), 1, ValueError, "2 stages, device_mapping="),
        (staged(gradient_accumulation_count=3), 1, ValueError, r"cannot be less than .*got 3"),
        (staged(gradient_accumulation_count="2"), 1, ValueError, r"must be divisible by .*got 2"),
    ],
)
def test_pipelines_refuse_in_the_published_words(model_fn, shards, error, text, tmp_path):
    settings = IPURunConfig(1, num_shards=shards, ipu_options=options(shards))
    estimator = IPUPipelineEstimator(model_fn, str(tmp_path), config=RunConfig(settings))
    with pytest.raises(error, match=f"(?s){text}"):
        estimator.train(lambda: tf.data.Dataset.from_tensors([1.0]), steps=1)


def test_results_of_a_last_stage_are_checked_in_the_published_words(tmp_path):
    def inputs():
        return tf.data.Dataset.from_tensors([1.0])

    pair = staged(computational_stages=[lambda x: (x, x)])
    with pytest.raises(ValueError, match="exactly one prediction tensor, but got 2"):
        next(IPUPipelineEstimator(pair, str(tmp_path)).predict(inputs))
    for found, error in (([1], "must return a dict"), ({"x": 1}, "must contain 'loss'")):
        model_fn = staged(eval_metrics_fn=lambda _, found=found: found)
        with pytest.raises((TypeError, KeyError), match=error):
            IPUPipelineEstimator(model_fn, str(tmp_path)).evaluate(inputs)


def test_a_pipeline_predicts_from_whole_elements(tmp_path):
    """As published, its first stage takes the labels too."""
    model_fn = staged(computational_stages=[lambda x, y: (x, y), lambda x, y: x - y])
    found = IPUPipelineEstimator(model_fn, str(tmp_path)).predict(
        lambda: tf.data.Dataset.from_tensors(([5.0], [2.0]))
    )
    assert list(found) == [3]


def test_an_evaluation_counts_its_batches_in_the_global_step(tmp_path):
    """In whole loops, as published; the results have the step of the checkpoint."""

    def model_fn(features, labels, mode):
        if mode == TRAIN:
            return model()(features, labels, mode)
        step = tf.train.get_global_step()
        tf.get_variable("weight", initializer=0.0)
        metrics = {"mean_step": tf.metrics.mean(step)}
        return tf.estimator.EstimatorSpec(mode, loss=tf.constant(0.0), eval_metric_ops=metrics)

    def inputs():
        return tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat()

    for iterations, mean in ((1, 2 + 1.5), (2, 2 + 1.0)):
        folder = str(tmp_path / str(iterations))
        estimator = IPUEstimator(model_fn, folder, RunConfig(IPURunConfig(iterations)))
        estimator.train(inputs, steps=2)
        found = estimator.evaluate(inputs, steps=4)
        assert (found["mean_step"], found["global_step"]) == (mean, 2)


def test_a_pipelines_first_stage_takes_its_inputs_before_the_features(tmp_path):
    def model_fn(mode):
        return IPUPipelineEstimatorSpec(
            mode,
            [lambda factor, x: factor * x, lambda y: {"y": y}],
            gradient_accumulation_count=1,
            inputs=[tf.constant(3.0)],
        )

    estimator = IPUPipelineEstimator(model_fn, model_dir=str(tmp_path))
    found = estimator.predict(lambda: tf.data.Dataset.from_tensors([1.0, 2.0]))
    assert [one["y"] for one in found] == [3, 6]
