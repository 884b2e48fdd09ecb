"""What modules of TensorFlow have lost to others since the SDK's time."""

import pytest
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import array_ops, control_flow_ops

from popdist_tf.strategies.device_names import serve


def test_names_that_moved_are_found_and_others_are_unchanged():
    own = array_ops.identity
    serve(tf)
    assert control_flow_ops.cond is tf.compat.v1.cond
    assert control_flow_ops.while_loop is tf.compat.v1.while_loop
    assert array_ops.unstack is tf.unstack
    assert array_ops.identity is own
    assert ops.Tensor is tf.Tensor
    with pytest.raises(AttributeError, match="control_flow_ops' has no attribute 'condition'"):
        _ = control_flow_ops.condition


def test_a_variable_of_a_graph_initialises_another_one():
    serve(tf)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        first = tf.compat.v1.get_variable("first", initializer=3.0, use_resource=True)
        second = tf.compat.v1.get_variable("second", initializer=first.initialized_value() * 2)
        session.run(tf.compat.v1.global_variables_initializer())
        assert session.run(second) == 6.0


def test_a_saver_works_in_its_sessions_graph(tmp_path):
    serve(tf)
    with tf.Graph().as_default() as graph:
        value = tf.compat.v1.get_variable("value", initializer=3.0, use_resource=True)
        start, change = value.initializer, value.assign(5.0)
        saver = tf.compat.v1.train.Saver()
    session = tf.compat.v1.Session(graph=graph)  # as programs of TensorFlow 1 keep it
    session.run(start)
    path = saver.save(session, str(tmp_path / "model"))
    session.run(change)
    saver.restore(session, path)
    assert session.run(value) == 3.0
    session.close()
