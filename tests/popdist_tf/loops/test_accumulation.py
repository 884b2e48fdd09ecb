"""Arguments of pipelines and accumulating optimizers, and what one process makes of them."""

import numpy as np
import pytest
import tensorflow as tf

from popdist_tf import ipu
from popdist_tf.errors import PipelineError
from popdist_tf.loops.accumulation import GradientAccumulationReductionMethod

SGD = tf.compat.v1.train.GradientDescentOptimizer


def test_a_reduction_is_known_by_name():
    kind = GradientAccumulationReductionMethod
    assert kind.parse("Running_Mean") is kind.RUNNING_MEAN
    assert kind.parse(kind.SUM) is kind.SUM
    with pytest.raises(PipelineError, match="SUM, MEAN, RUNNING_MEAN"):
        kind.parse("max")


@pytest.mark.parametrize(
    ("method", "expected"), [("sum", -30.0), ("mean", -10.0), ("running_mean", -10.0)]
)
def test_an_update_follows_the_last_mini_batch(method, expected):
    weight = tf.Variable(0.0)
    optimizer = ipu.optimizers.GradientAccumulationOptimizerV2(SGD(1.0), 3, reduction_method=method)
    for gradient in (5.0, 10.0, 15.0):
        assert float(weight) == 0
        optimizer.apply_gradients([(tf.constant(gradient), weight)])
    assert float(weight) == pytest.approx(expected)
    for gradient in (1.0, 1.0, 1.0):  # what was accumulated before counts no more
        optimizer.apply_gradients([(tf.constant(gradient), weight)])
    share = 3 if method == "sum" else 1
    assert float(weight) == pytest.approx(expected - share)


def test_rows_of_a_table_are_accumulated():
    table = tf.Variable(np.zeros((3, 2), np.float32))
    optimizer = ipu.optimizers.GradientAccumulationOptimizer(SGD(1.0), 2)
    for rows in ([0, 0], [0, 2]):
        optimizer.apply_gradients([(tf.IndexedSlices(tf.ones([2, 2]), rows, [3, 2]), table)])
    assert table.numpy().tolist() == [[-3, -3], [0, 0], [-1, -1]]


def test_functions_of_gradients_are_chained_in_both_orders():
    weight = tf.Variable(1.0)
    inner, outer = (lambda g, _: g + 1), (lambda g, _: g * 10)
    for kind, expected in (
        (ipu.optimizers.MapGradientOptimizer, 20.0),  # (1 + 1) * 10
        (ipu.optimizers.MapGradientOptimizerInvertedChaining, 11.0),  # 1 * 10 + 1
    ):
        optimizer = kind(kind(SGD(1.0), inner), outer)
        weight.assign(0.0)
        optimizer.apply_gradients(optimizer.compute_gradients(lambda: weight * 1.0, [weight]))
        assert float(weight) == -expected


def test_what_is_no_optimizer_of_tensorflow_1_is_refused():
    with pytest.raises(PipelineError, match="wraps an optimizer of TensorFlow 1"):
        ipu.optimizers.CrossReplicaOptimizer(tf.keras.optimizers.SGD())
    with pytest.raises(PipelineError, match="num_mini_batches must be at least 1"):
        ipu.optimizers.GradientAccumulationOptimizer(SGD(1.0), 0)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"gradient_accumulation_count": None}, "must be specified"),
        ({"gradient_accumulation_count": 0}, "must be at least 1"),
        ({"repeat_count": 0}, "must be at least 1"),
        ({"computational_stages": 5}, "needs to be a list or a tuple"),
        ({"computational_stages": [len]}, "requires at least two computational stages"),
        ({"computational_stages": []}, "needs to be a list or a tuple"),
        ({"device_mapping": [0]}, "1 mappings != 2 stages"),
        ({"outfeed_loss": True}, "An optimizer_function must be provided"),
        ({"accumulate_outfeed": True}, "An outfeed_queue must be provided"),
        ({"outfeed_mask": [False]}, "An optimizer_function must be provided"),
        ({"device_mapping": 0}, "needs to be a list or a tuple"),
        ({"forward_propagation_stages_poplar_options": []}, "length 2"),
        ({"weight_update_poplar_options": {}}, "to be of type PipelineStageOptions"),
        (
            {
                "replicated_optimizer_state_sharding": True,
                "offload_weight_update_variables": False,
            },
            "the optimizer state must be offloaded",
        ),
        ({"inputs": [1.0]}, "no outfeed_queue has been provided"),
    ],
)
def test_arguments_of_a_pipeline_that_contradict_each_other(settings, text):
    given = {
        "computational_stages": [lambda x: x + 1, lambda x: x * 2],
        "gradient_accumulation_count": 2,
        **settings,
    }
    with tf.Graph().as_default(), pytest.raises(PipelineError, match=text):
        ipu.pipelining_ops.pipeline(**given)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"variables": [1]}, "variables may only be used with OptimizerV2"),
        ({"tape": tf.GradientTape()}, "tape may only be used with OptimizerV2"),
        ({"tape": ["a"]}, "tape must be a GradientTape"),
        ({"opt": tf.keras.optimizers.SGD(), "compute_gradients_args": (1,)}, "may not be used"),
        (
            {"opt": tf.keras.optimizers.SGD(), "tape": tf.GradientTape(), "variables": [1]},
            "nonempty",
        ),
        ({"opt": "sgd"}, "opt must be a TensorFlow Optimizer"),
    ],
)
def test_arguments_that_do_not_fit_the_optimizer_of_a_pipeline(settings, text):
    with pytest.raises(PipelineError, match=text):
        ipu.pipelining_ops.OptimizerFunctionOutput(
            **{"opt": SGD(1.0), "loss": tf.constant(1.0), **settings}
        )


class ByOwnDtype(tf.compat.v1.train.Optimizer):
    """Updates by gradients of any dtype."""

    def __init__(self):
        super().__init__(use_locking=False, name="ByOwnDtype")
        self.seen = []

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):  # noqa: ARG002 - as published
        self.seen += [gradient.dtype for gradient, _ in grads_and_vars]
        return tf.group(
            [v.assign_add(tf.cast(-(2.0**-10) * g, v.dtype)) for g, v in grads_and_vars]
        )


@pytest.mark.parametrize("dtype", [np.float32, lambda _: tf.float32])
def test_sums_out_of_the_range_of_a_variable_reach_the_optimizer(dtype):
    largest = np.finfo(np.float16).max
    weight = tf.Variable(np.float16(1.0))
    inner = ByOwnDtype()
    optimizer = ipu.optimizers.GradientAccumulationOptimizerV2(inner, 8, dtype=dtype)
    for _ in range(8):
        optimizer.apply_gradients([(tf.constant(largest), weight)])
    assert set(inner.seen) == {tf.float32}
    # A sum in float16 would be infinite.
    expected = np.float16(1.0) + np.float16(-8 * np.float32(largest) / 1024)
    np.testing.assert_allclose(weight.numpy(), expected)


def test_variables_are_not_set_beside_a_tape():
    opt, tape = tf.keras.optimizers.SGD(), tf.GradientTape()
    output = ipu.pipelining_ops.OptimizerFunctionOutput(opt, tf.constant(1.0), tape=tape)
    with pytest.raises(PipelineError, match=r"variables must be empty when \S+tape is used"):
        output.variables = [1]


def test_an_unknown_argument_of_a_pipeline_is_a_type_error():
    with pytest.raises(TypeError, match="'stages'"):
        ipu.pipelining_ops.pipeline([len], 1, stages=3)


def test_inference_is_a_pipeline_without_updates():
    with tf.Graph().as_default():
        data = tf.data.Dataset.from_tensor_slices(tf.range(4.0))
        infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(data)
        outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
        run = ipu.pipelining_ops.pipeline(
            [lambda x: {"y": x + 1}, lambda y: y * 2],
            gradient_accumulation_count=4,
            infeed_queue=infeed,
            outfeed_queue=outfeed,
        )
        results = outfeed.dequeue()  # a tensor, as the last stage returns one
        with tf.compat.v1.Session() as session:
            session.run(infeed.initializer)
            session.run(run)
            assert session.run(results).tolist() == [2, 4, 6, 8]


def test_a_stage_of_a_pipeline_knows_its_micro_batch():
    counter = ipu.internal_ops.get_current_iteration_counter
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
        stages = [lambda: [counter()], lambda number: number]
        run = ipu.pipelining_ops.pipeline(stages, 3, repeat_count=2, outfeed_queue=outfeed)
        found = outfeed.dequeue()
        session.run(run)
        assert np.ravel(session.run(found)).tolist() == [0, 1, 2, 0, 1, 2]
    with pytest.raises(ValueError, match=r"PD424\] get_current_iteration_counter"):
        counter()
