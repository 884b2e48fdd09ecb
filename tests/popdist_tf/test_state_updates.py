"""Which assignments of a graph of TensorFlow 1 count as updates of a layer's own state."""

import tensorflow as tf

from popdist_tf.state_updates import StateUpdates

v1 = tf.compat.v1


def test_assignments_to_variables_that_are_not_trained_are_found():
    with tf.Graph().as_default():
        v1.train.get_or_create_global_step()
        with StateUpdates() as updates:
            state = v1.get_variable("state", initializer=1.0, trainable=False, use_resource=True)
            old = v1.get_variable("old", initializer=1.0, trainable=False, use_resource=False)
            weight = v1.get_variable("weight", initializer=1.0, use_resource=True)
            expected = [state.assign_add(1.0).op, v1.assign(old, 2.0).op]
            weight.assign(2.0)
            v1.train.get_global_step().assign_add(1)
            v1.metrics.mean(state)
            tf.cond(tf.constant(value=True), lambda: state.assign(3.0), lambda: state.assign(4.0))
        found = {operation.name for operation in updates.operations}
        assert old.op.name in {one.inputs[0].op.name for one in updates.operations}
        assert expected[1].name in found
        assert sum(name.startswith("AssignAddVariableOp") for name in found) == 1
        assert not any("weight" in name or "mean" in name for name in found)


def test_results_wait_for_the_updates():
    with tf.Graph().as_default():
        state = v1.get_variable("state", initializer=1.0, trainable=False, use_resource=True)
        with StateUpdates() as updates:
            state.assign_add(1.0)
            results = {"tensor": tf.constant(1.0), "operation": tf.no_op(), "else": "text"}
        results = updates.before(results)
        assert results["else"] == "text"
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(results["tensor"])
            session.run(results["operation"])
            assert session.run(state) == 3


def test_updates_of_an_operation_among_the_results_are_left_to_it():
    with tf.Graph().as_default():
        power = v1.get_variable("power", initializer=1.0, trainable=False, use_resource=True)
        state = v1.get_variable("state", initializer=1.0, trainable=False, use_resource=True)
        with StateUpdates() as updates:
            state.assign_add(1.0)
            loss = tf.constant(1.0)
            with tf.control_dependencies([power.assign(2.0)]):
                train = tf.no_op()
        assert len(updates.operations) == 2
        loss, train = updates.before((loss, train))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(loss)
            assert session.run([power, state]) == [1, 2]
            session.run(train)
            assert session.run([power, state]) == [2, 3]


def test_eager_code_needs_no_help():
    state = tf.Variable(1.0, trainable=False)
    with StateUpdates() as updates:
        state.assign(2.0)
    assert updates.operations == []
    assert updates.before([1]) == [1]
