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
