"""Operations of device code that stand for TensorFlow's own."""

import importlib
import pkgutil

import numpy as np
import pytest
import tensorflow as tf

from popdist.sdk.surface import load, published
from popdist_tf import ipu
from popdist_tf.errors import EstimatorGoneError, LayerError

ESTIMATORS = ("ipu_estimator", "ipu_pipeline_estimator", "ipu_run_config")


def test_activations():
    values = np.linspace(-2, 2, 9, dtype=np.float32)
    cubic = np.sqrt(2 / np.pi) * (values + 0.044715 * values**3)
    np.testing.assert_allclose(
        ipu.nn_ops.gelu(values), 0.5 * values * (1 + np.tanh(cubic)), rtol=1e-5, atol=1e-6
    )
    powers = np.exp(values) / np.exp(values).sum()
    np.testing.assert_allclose(ipu.ops.nn_ops.softmax(values, stable=True), powers, rtol=1e-5)


def test_a_hard_sigmoid_is_a_line_between_0_and_1():
    expected = np.clip(0.2 * np.array([-4, -1, 0, 1, 4]) + 0.5, 0, 1)
    np.testing.assert_allclose(ipu.nn_ops.hard_sigmoid([-4.0, -1, 0, 1, 4]), expected, rtol=1e-6)


def test_images_get_a_fourth_channel():
    image = np.random.default_rng(0).integers(0, 255, (2, 3, 3)).astype(np.uint8)
    offsets, scales = np.float32([0.4, 0.5, 0.6]), np.float32([2, 3, 4])
    found = ipu.ops.image_ops.normalise_image(image, offsets, scales, scale=1 / 255)
    assert found.dtype == tf.float16
    np.testing.assert_allclose(found[..., :3], (image / 255 - offsets) * scales, atol=5e-3)
    assert not np.any(found[..., 3])
    half = ipu.image_ops.normalise_image(np.float32(image), offsets.astype(np.float16), scales)
    assert half.dtype == tf.float32
    expected = (np.float32(image) - offsets.astype(np.float16).astype(np.float32)) * scales
    np.testing.assert_allclose(half[..., :3], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "number", "words"),
    [((2, 2), 3, "2 channels, expected 3"), ((2, 3), 2, "number of image channels 3, but was")],
)
def test_images_have_three_channels(shape, number, words):
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        ipu.image_ops.normalise_image(np.zeros(shape, np.float32), np.ones(number), np.ones(number))
    with pytest.raises(TypeError, match="float16, float32 or uint8"):
        ipu.image_ops.normalise_image(np.zeros((2, 3)), np.ones(3), np.ones(3))


def test_rows_of_tables_are_read_and_added():
    ops = ipu.plugin.poplar.ops.gen_popops_ops
    table = np.arange(8, dtype=np.float32).reshape(4, 2)
    np.testing.assert_array_equal(ops.ipu_multi_slice(table, [[3, 0]]), table[[[3, 0]]])
    expected = table.copy()
    np.add.at(expected, [1, 1, 3], np.ones((3, 2), np.float32) * 5)
    found = ops.ipu_multi_update_add(table, indices=[1, 1, 3], updates=np.ones((3, 2)), scale=5)
    np.testing.assert_array_equal(found, expected)


def test_tensors_behind_a_barrier_wait_for_all():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        one, pair = tf.constant(1), {"x": tf.constant(2.0), "y": (tf.constant(3),)}
        first, second = ipu.control_flow_ops.barrier((one, pair))
        assert {one.op, pair["x"].op, pair["y"][0].op} - {first.op.inputs[0].op} <= set(
            first.op.control_inputs
        )
        assert session.run((first, second)) == (1, {"x": 2.0, "y": (3,)})


def test_segments_are_added_up():
    rows = np.arange(8.0).reshape(4, 2)
    found = ipu.math_ops.segment_sum(rows, [0, 0, 2, 2], 4)
    assert found.numpy().tolist() == [[2, 4], [0, 0], [10, 12], [0, 0]]


def test_dropout_keeps_the_mean_and_repeats_itself_with_a_seed():
    ones = np.ones(20_000, np.float32)
    first, again, other = (ipu.rand_ops.dropout(ones, 0.25, seed=[1, i]) for i in (2, 2, 3))
    assert set(np.unique(first)) == {0, np.float32(1 / 0.75)}
    assert np.mean(first) == pytest.approx(1, abs=0.02)
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    assert np.mean(ipu.ops.rand_ops.dropout(ones)) == pytest.approx(1, abs=0.05)


def test_a_fifo_hands_out_earlier_values():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        first = tf.compat.v1.placeholder(tf.float32, [])

        def body(x, _):
            return x + 1, ipu.internal_ops.fifo(tf.stack([x, -x]), 3, name="late")

        _, late = ipu.loops.repeat(4, body, [first, tf.zeros([2])])
        found = [session.run(late, {first: start}).tolist() for start in (10, 20, 30)]
    assert found == [[10, -10], [20, -20], [30, -30]]
    step = tf.function(lambda x: ipu.ops.internal_ops.fifo(x, 2))
    assert [int(step(tf.constant(i))) for i in range(1, 6)] == [0, 0, 1, 2, 3]


def test_a_fifo_that_cannot_be_one_is_refused():
    with pytest.raises(LayerError, match="in eager code"):
        ipu.internal_ops.fifo(tf.ones(2), 1)
    with pytest.raises(LayerError, match="depth 0"):
        tf.function(lambda: ipu.internal_ops.fifo(tf.ones(2), 0), autograph=False)()

    def differentiated(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            late = ipu.internal_ops.fifo(x, 1)
        return tape.gradient(late, x)

    with pytest.raises(LayerError, match="fifo has no gradient"):
        tf.function(differentiated, autograph=False)(tf.ones(2))


def test_an_expression_is_computed_for_each_element():
    x, y = np.arange(6.0).reshape(2, 3), np.ones((2, 3)) * 2
    found = ipu.custom_ops.codelet_expression_op(lambda a, b: a * a + b, x, y)
    np.testing.assert_array_equal(found, x * x + y)


def test_shards_are_remembered_by_graphs():
    with tf.Graph().as_default() as graph:
        with ipu.scopes.ipu_shard(1):
            one = tf.constant(1.0)
            half = one / 2
        with graph.colocate_with(half):
            beside = half + 1
        outside = beside + one
        assert ipu.sharding.get_sharding(half.op) == [1]
        assert ipu.sharding.get_sharding(beside.op) is None
        ipu.sharding.propagate_sharding(graph)
        assert ipu.sharding.get_sharding(beside.op) == [1]
        assert ipu.sharding.get_sharding(outside.op) is None
        assert ipu.sharding.dependencies([beside.op])[:2] == [beside.op, half.op]
        assert outside.op not in ipu.sharding.dependencies([beside.op])
        ipu.autoshard.automatic_sharding(2, one, outside)
    with ipu.autoshard.ipu_autoshard(), ipu.scopes.ipu_shard([0, 1]):
        assert float(tf.constant(2.0) * 3) == 6


def test_gradients_belong_to_the_shards_of_what_they_differentiate():
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [2, 2])
        with ipu.scopes.ipu_shard(0), ipu.scopes.ipu_shard(1):
            y = tf.matmul(x, x)
        with ipu.scopes.ipu_shard(2):
            (of_y,) = tf.gradients(tf.reduce_sum(y**2), [y])
            (second,) = tf.gradients(y, [x], of_y)
        assert ipu.sharding.get_sharding(y.op) == [1]
        assert {tuple(ipu.sharding.get_sharding(one.op) or ()) for one in second.op.inputs} == {
            (1,)
        }


def test_shards_of_a_replica_are_reduced():
    shards = [np.array([1.0, 5, 3]), np.array([4.0, 2, 6])]
    over = ipu.ops.within_replica_ops
    assert [one.numpy().tolist() for one in over.all_gather(shards)] == [[1, 5, 3, 4, 2, 6]] * 2
    expected = {"ADD": [5, 7, 9], "MAX": [4, 5, 6], "MIN": [1, 2, 3], "MUL": [4, 10, 18]}
    for op, values in {**expected, "MEAN": [2.5, 3.5, 4.5]}.items():
        reduced = over.all_reduce(shards, f"COLLECTIVE_OP_{op}")
        assert [one.numpy().tolist() for one in reduced] == [values] * 2
    parts = over.reduce_scatter(shards, "COLLECTIVE_OP_ADD")
    assert [one.numpy().tolist() for one in parts] == [[5, 7], [9, 0]]
    with pytest.raises(ValueError, match=r"(?s)PD434\].*COLLECTIVE_OP_ADD"):
        over.all_reduce(shards, "COLLECTIVE_OP_XOR")


def test_operations_over_replicas_check_their_number():
    x = tf.constant([[1.0, 2.0]])
    assert ipu.ops.all_to_all_op.all_gather(x, 1).numpy().tolist() == [[[1, 2]]]
    assert ipu.reduce_scatter_op.reduce_scatter(x, 1).numpy().tolist() == [1, 2]
    assert ipu.all_to_all_op.all_to_all(x, 1, 0, 1).numpy().tolist() == [[1, 2]]
    with pytest.raises(ValueError, match=r"PD433\] all_gather was called for another number"):
        ipu.all_to_all_op.all_gather(x, 2)
    with pytest.raises(ValueError, match=r"PD433\] all_to_all cannot divide this dimension"):
        ipu.all_to_all_op.all_to_all(x, 0, 0, 2)


def test_an_eager_outfeed_is_iterated_over():
    queue = ipu.ipu_outfeed_queue.ScopedIPUOutfeedQueue()
    for value in (1.0, 2.0):
        queue.enqueue(value)
    found = [float(one) for one in ipu.ipu_outfeed_queue.IPUOutfeedQueueIterator(queue)]
    assert found == [1, 2]
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="eager code only"):
        ipu.ipu_outfeed_queue.ScopedIPUOutfeedQueue()


def test_a_device_has_a_part_for_each_local_replica():
    assert ipu.utils.get_num_of_ipus_in_device("/device:IPU:0") == 1


def test_rows_of_a_table():
    table = np.arange(6.0).reshape(3, 2)
    rows = ipu.embedding_ops.embedding_lookup(table, [2, 0], serialization_factor=2)
    assert rows.numpy().tolist() == [[4, 5], [0, 1]]


def test_functions_are_called_as_they_are():
    @ipu.functional_ops.outlined_function
    def doubled(x):
        return 2 * x

    @ipu.functional_ops.outlined_function(unique_sharding=True)
    def tripled(x):
        return 3 * x

    assert (doubled(2), tripled(2)) == (4, 6)


def test_a_program_alone_is_replica_0():
    assert ipu.replication_ops.replication_index().numpy() == 0


def test_printing(capfd):
    ipu.internal_ops.print_tensor(ipu.internal_ops.remap_deduce(tf.constant([1, 2])), name="held")
    assert "held [1 2]" in capfd.readouterr().err


def modules():
    for found in pkgutil.walk_packages(ipu.__path__, "popdist_tf.ipu."):
        if found.name == "popdist_tf.ipu.tree":
            continue  # the table that the others are made from
        if found.name.endswith(ESTIMATORS) and not hasattr(tf.compat.v1, "estimator"):
            with pytest.raises(EstimatorGoneError, match="PD420"):
                importlib.import_module(found.name)
        else:
            yield found.name.removeprefix("popdist_tf.ipu."), importlib.import_module(found.name)


def test_everything_that_is_offered_is_listed():
    for path, module in modules():
        if path.startswith("plugin"):
            continue  # of another module, `tensorflow.compiler.plugin`
        sdk, own = published(f"popdist_tf.ipu.{path}")
        listed = {"", *(entry.name for entry in load(sdk).entries)}
        assert own in listed
        held = {f"{own}.{name}".lstrip(".") for name in getattr(module, "__all__", ())}
        assert held <= listed


def test_a_name_that_never_was_is_answered_with_a_near_one():
    with pytest.raises(AttributeError, match="did you mean 'IPUConfig'"):
        ipu.config.IPUConfg  # noqa: B018 - the access is the test


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("dimension", ["a_columns", "a_rows_b_columns", "b_rows"])
def test_a_product_in_parts_is_a_product(dimension, transposed):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 4, 6)), rng.normal(size=(3, 6, 8))
    given = [
        np.swapaxes(one, 1, 2) if turned else one
        for one, turned in zip((a, b), transposed, strict=True)
    ]
    found = ipu.math_ops.serialized_matmul(*given, 2, dimension, *transposed)
    np.testing.assert_allclose(found, a @ b)
    with pytest.raises(ValueError, match=r"must be divisible by\s+serialization_factor"):
        ipu.math_ops.serialized_matmul(*given, 5, dimension, *transposed)


def test_swish_and_sampled_losses_are_tensorflows():
    x = tf.constant([-2.0, 0.5])
    np.testing.assert_array_equal(ipu.nn_ops.swish(x), tf.nn.silu(x))
    rng = np.random.default_rng(0)
    weights, rows = (rng.normal(size=(n, 3)).astype(np.float32) for n in (8, 2))
    labels = tf.constant([[1], [5]], tf.int64)
    sampled = tf.random.uniform_candidate_sampler(labels, 1, 4, True, 8, seed=1)  # noqa: FBT003
    for name in ("nce_loss", "sampled_softmax_loss"):
        own = getattr(ipu.nn_ops, name)(
            weights, tf.zeros(8), tf.cast(labels, tf.int32), rows, 4, 8, sampled_values=sampled
        )
        expected = getattr(tf.nn, name)(
            weights, tf.zeros(8), labels, rows, 4, 8, sampled_values=sampled
        )
        np.testing.assert_array_equal(own, expected)


@pytest.mark.parametrize("shape", [[64, 1, 4], [64, 64, 4], [], None])
def test_dropout_decides_in_the_shape_that_is_asked_for(shape):
    kept = ipu.rand_ops.dropout(tf.ones([64, 64, 4]), 0.5, noise_shape=shape).numpy() != 0
    assert 0.3 < kept.mean() < 0.7  # an empty list means none, as published
    assert (kept == kept[:, :1]).all() == (shape == [64, 1, 4])
    for wrong, message in (([64, 4], "length of noise_shape"), ([64, 2, 4], "mismatch, 64 != 2")):
        with pytest.raises(ValueError, match=message):
            ipu.rand_ops.dropout(tf.ones([64, 64, 4]), 0.5, noise_shape=wrong)


def test_a_gradient_accumulates_in_the_operation_of_the_plugin():
    ops = importlib.import_module("popdist_tf.ipu.plugin.poplar.ops.gen_poputil_ops")

    @tf.function
    def step(gradient):
        return ops.ipu_stateful_gradient_accumulate(gradient, num_mini_batches=3)

    found = [step(tf.constant([float(i)])).numpy().tolist() for i in range(6)]
    assert found == [[0], [0], [0 + 1 + 2], [0], [0], [3 + 4 + 5]]
    assert ops.ipu_replication_normalise(tf.constant([6.0])).numpy().tolist() == [6]
