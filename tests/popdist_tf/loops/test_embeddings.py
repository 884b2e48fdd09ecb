"""Host embeddings against gradient descent in numpy."""

import numpy as np
import pytest
import tensorflow as tf

from popdist_tf import ipu
from popdist_tf.ipu import embedding_ops
from tests.distributed.jobs import run_job

TABLE = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
ROWS = np.array([[0, 2, 2], [5, 1, 0]], np.int32)
TARGETS = np.random.default_rng(1).normal(size=(2, 3, 3)).astype(np.float32)


def descended(rows, targets, steps, rate=0.1):
    """The table after steps on the loss sum((row - target)^2) / 2, whose gradient is known."""
    table = TABLE.astype(np.float64)
    for _ in range(steps):
        change = np.zeros_like(table)
        np.add.at(change, rows.ravel(), (table[rows] - targets).reshape(-1, 3))
        table -= rate * change
    return table


def trained(rows, targets, rate=0.1, steps=4):
    """The table after a compiled loop, and what an optimizer has trained beside it."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = embedding_ops.create_host_embedding(
            "table",
            TABLE.shape,
            np.float32,
            optimizer_spec=embedding_ops.HostEmbeddingOptimizerSpec(rate),
            initializer=tf.constant(TABLE),
        )
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.5)

        def body():
            loss = tf.reduce_sum((table.lookup(tf.constant(rows)) - targets) ** 2) / 2
            return optimizer.minimize(loss)

        with ipu.scopes.ipu_scope("/device:IPU:0"):
            loop = ipu.ipu_compiler.compile(lambda: ipu.loops.repeat(steps, body))
        session.run(tf.compat.v1.global_variables_initializer())
        with table.register(session):
            session.run(loop)
        assert [one.name for one in tf.compat.v1.trainable_variables()] == ["table/__dummy:0"]
        return session.run(table.get_embedding_tensor())


def test_a_table_is_updated_in_the_backward_pass():
    found = trained(ROWS, TARGETS)
    np.testing.assert_allclose(found, descended(ROWS, TARGETS, 4), rtol=1e-5, atol=1e-6)


def test_a_table_without_an_optimizer_stays():
    table = embedding_ops.create_host_embedding(
        "fixed", TABLE.shape, np.float32, initializer=lambda *_, **__: tf.constant(TABLE)
    )
    with tf.GradientTape() as tape, table.register():
        found = table.lookup(tf.constant([7, -1, 2]))
    np.testing.assert_array_equal(found, TABLE[[5, 0, 2]])
    assert tape.watched_variables() == ()


def in_a_job():
    import popdist
    from popdist_tf.ipu.distributed import popdist_strategy

    index = popdist.getInstanceIndex()
    strategy = popdist_strategy.PopDistStrategy(add_ipu_cross_replica_reductions=False)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session, strategy.scope():
        table = embedding_ops.create_host_embedding(
            "table",
            TABLE.shape,
            np.float32,
            optimizer_spec=embedding_ops.HostEmbeddingOptimizerSpec(0.1),
            initializer=TABLE,
        )

        def step():
            loss = tf.reduce_sum((table.lookup(ROWS[index]) - TARGETS[index]) ** 2) / 2
            (gradient,) = tf.gradients(loss, tf.compat.v1.trainable_variables())
            return gradient

        run = strategy.run(step)
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(4):
            session.run(run)
        return {"table": session.run(table.get_embedding_tensor())}


def test_a_table_is_updated_with_the_gradients_of_all_instances():
    for answer in run_job(in_a_job):
        expected = descended(ROWS, TARGETS, 4)
        np.testing.assert_allclose(answer["table"], expected, rtol=1e-5, atol=1e-6)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="Unknown partition strategy ROW"):
        embedding_ops.HostEmbedding("name", tf.Variable(TABLE), "ROW")
    with pytest.raises(ValueError, match="not a HostEmbeddingOptimizerSpec"):
        embedding_ops.HostEmbedding("name", tf.Variable(TABLE), optimizer_spec=0.1)
    with pytest.raises(ValueError, match="has two dimensions"):
        embedding_ops.create_host_embedding("name", [3], np.float32)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="requires a session"):
        embedding_ops.create_host_embedding("name", [3, 2], np.float32).register().__enter__()
