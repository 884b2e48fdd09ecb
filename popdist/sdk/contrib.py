"""What programs use of ``tensorflow.contrib``, which ended with TensorFlow 1, by its places now."""

from __future__ import annotations

_V1 = "tensorflow._api.v2.compat.v1"
_CELLS = "BasicLSTMCell BasicRNNCell DropoutWrapper GRUCell LSTMCell LSTMStateTuple MultiRNNCell"
_DATA = (
    "AUTOTUNE CheckpointInputPipelineHook CsvDataset Optional RandomDataset Reducer SqlDataset "
    "bucket_by_sequence_length choose_from_datasets copy_to_device dense_to_sparse_batch "
    "enumerate_dataset get_next_as_optional get_single_element group_by_reducer group_by_window "
    "ignore_errors make_batched_features_dataset make_csv_dataset make_saveable_from_iterator "
    "map_and_batch parallel_interleave parse_example_dataset prefetch_to_device rejection_resample "
    "sample_from_datasets scan shuffle_and_repeat take_while unbatch unique"
)
_IPU = "popdist_tf.ipu"

MODULES: dict[str, dict[str, str]] = {
    "": {},
    "compiler": {},
    # Programs compile for the device by it.
    "compiler.xla": {"compile": f"{_IPU}.ipu_compiler:compile"},
    "data": {name: f"{_V1}:data.experimental.{name}" for name in _DATA.split()},
    "framework": {
        "checkpoint_utils": "tensorflow.python.training.checkpoint_utils",
        "get_or_create_global_step": f"{_V1}:train.get_or_create_global_step",
        "list_variables": f"{_V1}:train.list_variables",
        "load_checkpoint": f"{_V1}:train.load_checkpoint",
        "load_variable": f"{_V1}:train.load_variable",
    },
    "framework.python": {},
    "framework.python.framework": {
        "checkpoint_utils": "tensorflow.python.training.checkpoint_utils"
    },
    "framework.python.framework.checkpoint_utils": {
        name: f"{_V1}:train.{name}" for name in ("list_variables", "load_variable")
    }
    | {"load_checkpoint": f"{_V1}:train.load_checkpoint"},
    "ipu": {
        "config": f"{_IPU}.config",
        "ipu_compiler": f"{_IPU}.ipu_compiler",
        "ipu_infeed_queue": f"{_IPU}.ipu_infeed_queue",
        "ipu_outfeed_queue": f"{_IPU}.ipu_outfeed_queue",
        "loops": f"{_IPU}.loops",
        "ops": f"{_IPU}.scopes",
        "utils": f"{_IPU}.utils",
    },
    "layers": {
        "l1_regularizer": f"{_V1}:keras.regularizers.l1",
        "l2_regularizer": f"{_V1}:keras.regularizers.l2",
        "variance_scaling_initializer": f"{_V1}:variance_scaling_initializer",
        "xavier_initializer": f"{_V1}:glorot_uniform_initializer",
    },
    "rnn": {name: f"{_V1}:nn.rnn_cell.{name}" for name in _CELLS.split()},
    "util": {name: f"{_V1}:{name}" for name in ("make_ndarray", "make_tensor_proto")},
}
"""Path below ``tensorflow.contrib`` to names, and to where each is: ``module:attribute``."""
