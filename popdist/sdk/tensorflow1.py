"""Names of TensorFlow 1, for programs that were written for the SDK's TensorFlow 1.15.

Such programs use ``tf.ConfigProto`` with ``import tensorflow as tf``; TensorFlow 2 has these names
under ``tf.compat.v1``. Where a program has imported ``tensorflow.python.ipu`` by that name, names
that TensorFlow 2 lacks are found there. Names that TensorFlow 2 has are unchanged. A program with
its own sessions must still turn eager execution off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

BELOW = ("data", "graph_util", "image", "nn", "saved_model", "train")
"""Modules of both versions. ``losses`` and ``metrics`` are Keras' modules in TensorFlow 2."""


NAMES = """
add_to_collection all_variables app app.run assign assign_add assign_sub AUTO_REUSE ceil cholesky
ConfigProto count_nonzero data.make_initializable_iterator data.make_one_shot_iterator decode_raw
depth_to_space Dimension dimension_value disable_eager_execution disable_resource_variables
disable_v2_behavior div enable_eager_execution enable_resource_variables enable_v2_behavior fft
FixedLenFeature flags floor_div get_collection get_default_graph get_default_session
get_local_variable get_seed get_variable get_variable_scope gfile global_variables
global_variables_initializer glorot_normal_initializer glorot_uniform_initializer GPUOptions
graph_util.convert_variables_to_constants GraphKeys GraphOptions image.resize_bicubic
image.resize_bilinear image.resize_image_with_crop_or_pad image.resize_images
image.resize_nearest_neighbor initialize_all_variables InteractiveSession invert_permutation is_inf
is_nan is_variable_initialized layers local_variables local_variables_initializer log log_sigmoid
logging losses.get_regularization_loss losses.get_total_loss losses.softmax_cross_entropy
losses.sparse_softmax_cross_entropy make_template matrix_inverse metrics.accuracy metrics.mean mod
model_variables multinomial nn.bidirectional_dynamic_rnn nn.dynamic_rnn nn.fused_batch_norm
nn.rnn_cell nn.softmax_cross_entropy_with_logits_v2 nn.static_rnn nn.xw_plus_b OptimizerOptions
parse_example parse_single_example placeholder placeholder_with_default Print py_func python_io
random_crop random_normal random_shuffle random_uniform read_file report_uninitialized_variables
reset_default_graph rint rsqrt RunMetadata RunOptions saved_model.builder saved_model.loader
saved_model.simple_save self_adjoint_eig Session set_random_seed space_to_depth sparse_placeholder
sparse_to_dense string_split Summary summary.FileWriter summary.merge summary.merge_all
summary.Summary svd tables_initializer to_bfloat16 to_double to_float to_int32 to_int64 trace
train.AdadeltaOptimizer train.AdagradOptimizer train.AdamOptimizer train.assert_global_step
train.batch train.CheckpointSaverHook train.ChiefSessionCreator train.cosine_decay
train.create_global_step train.exponential_decay train.FtrlOptimizer train.get_global_step
train.get_or_create_global_step train.global_step train.GradientDescentOptimizer
train.inverse_time_decay train.LoggingTensorHook train.MomentumOptimizer train.MonitoredSession
train.MonitoredTrainingSession train.NanTensorHook train.natural_exp_decay train.Optimizer
train.piecewise_constant train.polynomial_decay train.RMSPropOptimizer train.Saver train.Scaffold
train.Server train.SessionRunHook train.start_queue_runners train.StepCounterHook
train.StopAtStepHook train.SummarySaverHook trainable_variables truncated_normal
truncated_normal_initializer variable_scope variables_initializer VarLenFeature
verify_tensor_all_finite
""".split()  # noqa: SIM905 - one name for each line would be 160 lines
"""Names that TensorFlow 1 has, and TensorFlow 2 has under ``tf.compat.v1`` alone."""


def serve(tensorflow: ModuleType) -> None:
    """Lets the module ``tensorflow`` resolve names of TensorFlow 1; safe to call again."""
    if "contrib" in vars(tensorflow):
        return  # `popdist.sdk.version1` has put TensorFlow 1's interface in its place
    version1 = tensorflow.compat.v1
    below = [(getattr(tensorflow, name), getattr(version1, name)) for name in BELOW]
    for new, old in [(tensorflow, version1), *below]:
        # Not where TensorFlow has taken to answering for names itself.
        vars(new).setdefault("__getattr__", _answer(new.__name__, old))


def _answer(module: str, old: ModuleType) -> Callable[[str], Any]:
    def answer(name: str) -> Any:
        if not name.startswith("_") and hasattr(old, name):
            return getattr(old, name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)

    return answer
