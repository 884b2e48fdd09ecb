"""State of a replica: no part of a program's variables, and ready at its first use."""

import numpy as np
import pytest
import tensorflow as tf

from popdist_tf.ipu import ipu_compiler, loops
from popdist_tf.ipu import optimizers as ipu_optimizers
from popdist_tf.replica_state import ReplicaState

v1 = tf.compat.v1


def test_has_its_first_value_wherever_it_is_used_first():
    with tf.Graph().as_default(), v1.Session() as session:
        state = ReplicaState(lambda: tf.constant([1.0, 2.0]), "state")
        in_branch = ReplicaState(lambda: tf.constant(5), "in_branch")
        read = tf.cond(tf.constant(value=True), in_branch.read_value, lambda: 0)
        added = v1.while_loop(
            lambda i: i < 3,
            lambda i: i + tf.cast(state.assign_add([1.0, 1.0])[0] > 0, tf.int32),
            [0],
        )
        assert v1.global_variables() == v1.local_variables() == []
        assert session.run([added, read]) == [3, 5]
        np.testing.assert_array_equal(session.run(state.read_value()), [4, 5])


def test_is_created_outside_of_a_function():
    @tf.function
    def count():
        if not states:
            states.append(ReplicaState(lambda: tf.constant(0), "count"))
        return states[0].assign_add(1).read_value()

    states: list[ReplicaState] = []
    assert [int(count()) for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("kind", ["GradientAccumulationOptimizerV2", "plain"])
def test_a_checkpoint_does_not_depend_on_accumulation(tmp_path, kind):
    """A checkpoint without accumulation is restored by a program with it, and the reverse."""

    def build(optimizer):
        weight = v1.get_variable("weight", initializer=[1.0, -2.0], use_resource=True)

        def body(x):
            train = optimizer.minimize(tf.reduce_sum(weight * x))
            with tf.control_dependencies([train]):
                return x + 1.0

        with v1.variable_scope("", use_resource=True):
            last = ipu_compiler.compile(lambda x: loops.repeat(4, body, [x]), [[1.0, 1.0]])
        return weight, last

    def optimizer(kind):
        inner = v1.train.GradientDescentOptimizer(0.5)
        return inner if kind == "plain" else getattr(ipu_optimizers, kind)(inner, 2)

    other = "plain" if kind != "plain" else "GradientAccumulationOptimizerV2"
    with tf.Graph().as_default(), v1.Session() as session:
        build(optimizer(other))
        session.run(v1.global_variables_initializer())
        path = v1.train.Saver().save(session, str(tmp_path / "model"))
    with tf.Graph().as_default(), v1.Session() as session:
        weight, last = build(optimizer(kind))
        v1.train.Saver().restore(session, path)
        for _ in range(2):
            session.run(last)
        # Gradients are 1, 2, 3 and 4 in each run, and both kinds add them up.
        np.testing.assert_array_equal(session.run(weight), [1 - 10.0, -2 - 10.0])
