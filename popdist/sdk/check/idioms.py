"""Names outside of the SDK that its programs use and today's libraries refuse, with the edits.

The page ``docs/sdk-names.md`` prints this table, and a test checks the table against the libraries.
"""

from __future__ import annotations

from typing import NamedTuple

from popdist.sdk.tensorflow1 import BELOW


class Idiom(NamedTuple):
    """One thing that has to be written in another way.

    Attributes:
        name: The dotted name that a program uses; names below it are meant too. For a method of an
            object whose class a source does not show, the last name behind ``.``.
        edit: What to write instead.
        since: The library that first refuses it.
        certain: Whether it is refused by what popdist is tested with; else it depends on the
            installed version, or on what the program does with it.
        keyword: The argument that is meant, where the name itself is fine.
        without: The argument whose absence is meant.
    """

    name: str
    edit: str
    since: str
    certain: bool = True
    keyword: str = ""
    without: str = ""

    @property
    def is_moved(self) -> bool:
        """Whether the name is TensorFlow 1's and exists unchanged under another name."""
        top, _, below = self.name.partition(".")
        return top == "tensorflow" and self.edit == f"tf.compat.v1.{below}"

    @property
    def is_found_beside_ipu(self) -> bool:
        """Whether `popdist.sdk.tensorflow1` resolves the name."""
        part, _, inner = self.name.partition(".")[2].partition(".")
        return self.is_moved and (not inner or part in BELOW or part in _TF1)


_TF1 = """
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

_NUMPY = {
    "complex": "complex (or np.complex128)",
    "float": "float (or np.float64)",
    "int": "int (or np.int64)",
    "object": "object",
    "str": "str",
    "unicode": "str",
}
# NumPy 2 has these again, as types of its own.
_NUMPY_BETWEEN = {"bool": "bool (or np.bool_)", "long": "int (or np.int64)"}
_NUMPY2 = {
    "alltrue": "np.all",
    "asfarray": "np.asarray(values, dtype=np.float64)",
    "complex_": "np.complex128",
    "cumproduct": "np.cumprod",
    "float_": "np.float64",
    "Inf": "np.inf",
    "infty": "np.inf",
    "NaN": "np.nan",
    "NINF": "-np.inf",
    "PINF": "np.inf",
    "product": "np.prod",
    "sometrue": "np.any",
    "string_": "np.bytes_",
    "unicode_": "np.str_",
}
_COLLECTIONS = """
Callable Container Hashable Iterable Iterator ItemsView KeysView Mapping MappingView MutableMapping
MutableSequence MutableSet Sequence Set Sized ValuesView
""".split()  # noqa: SIM905 - as above
_FFT = {"irfft": "torch.fft.irfft(a)", "rfft": "torch.fft.rfft(a)"}
_TORCH = {
    "eig": "torch.linalg.eig(a)",
    "lstsq": "torch.linalg.lstsq(a, b), with the arguments the other way round",
    "matrix_rank": "torch.linalg.matrix_rank(a)",
    "solve": "torch.linalg.solve(a, b), with the arguments the other way round",
    "symeig": "torch.linalg.eigh(a)",
}
_ESTIMATOR = "pip install 'tensorflow-cpu<2.16', or train with a Keras model and its fit()"

IDIOMS: tuple[Idiom, ...] = (
    *(Idiom(f"tensorflow.{name}", f"tf.compat.v1.{name}", "TensorFlow 2.0") for name in _TF1),
    Idiom(
        "tensorflow.contrib",
        "its parts are gone; layers are in tf.compat.v1.layers, optimizers in "
        "tf.compat.v1.train, HParams in argparse",
        "TensorFlow 2.0",
    ),
    Idiom("tensorflow.estimator", _ESTIMATOR, "TensorFlow 2.16", certain=False),
    Idiom("tensorflow.compat.v1.estimator", _ESTIMATOR, "TensorFlow 2.16", certain=False),
    Idiom(
        ".make_one_shot_iterator",
        "tf.compat.v1.data.make_one_shot_iterator(dataset)",
        "TensorFlow 2.0",
        certain=False,
    ),
    Idiom(
        ".make_initializable_iterator",
        "tf.compat.v1.data.make_initializable_iterator(dataset)",
        "TensorFlow 2.0",
        certain=False,
    ),
    Idiom(".fit_generator", "model.fit(generator, ...)", "TensorFlow 2.16", certain=False),
    *(
        Idiom(
            f"tensorflow.keras.optimizers.{name}",
            "learning_rate=...",
            "Keras 3 (TensorFlow 2.16)",
            certain=False,
            keyword="lr",
        )
        for name in ("Adam", "SGD", "RMSprop", "Adagrad")
    ),
    *(
        Idiom(
            f"tensorflow.keras.optimizers.{name}",
            "learning_rate=tf.keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay)",
            "TensorFlow 2.11",
            keyword="decay",
        )
        for name in ("Adam", "SGD", "RMSprop", "Adagrad")
    ),
    *(Idiom(f"numpy.{name}", edit, "NumPy 1.24") for name, edit in _NUMPY.items()),
    *(
        Idiom(f"numpy.{name}", edit, "NumPy 1.24, until 2.0", certain=False)
        for name, edit in _NUMPY_BETWEEN.items()
    ),
    *(Idiom(f"numpy.{name}", edit, "NumPy 2.0", certain=False) for name, edit in _NUMPY2.items()),
    Idiom(
        "torch.load",
        "torch.load(path, weights_only=False), for a file that you trust and that holds more than "
        "tensors",
        "PyTorch 2.6",
        certain=False,
        without="weights_only",
    ),
    *(Idiom(f"torch.{name}", edit, "PyTorch 1.8") for name, edit in _FFT.items()),
    *(Idiom(f"torch.{name}", edit, "PyTorch 2.0") for name, edit in _TORCH.items()),
    Idiom("torch._six.string_classes", "str", "PyTorch 2.0"),
    Idiom("torch._six.int_classes", "int", "PyTorch 2.0"),
    Idiom("torch._six.container_abcs", "import collections.abc as container_abcs", "PyTorch 2.0"),
    Idiom("torch._six", "torch.inf for inf, and Python's own types for the rest", "PyTorch 2.0"),
    *(
        Idiom(
            f"torch.optim.lr_scheduler.{name}",
            "leave it out, and print scheduler.get_last_lr()",
            "current PyTorch",
            keyword="verbose",
        )
        for name in ("StepLR", "MultiStepLR", "LambdaLR", "ExponentialLR", "CosineAnnealingLR")
    ),
    *(
        Idiom(f"collections.{name}", f"collections.abc.{name}", "Python 3.10")
        for name in _COLLECTIONS
    ),
    Idiom("fractions.gcd", "math.gcd", "Python 3.9"),
    Idiom("time.clock", "time.perf_counter", "Python 3.8"),
    Idiom("inspect.getargspec", "inspect.getfullargspec", "Python 3.11", certain=False),
    Idiom("imp", "importlib", "Python 3.12", certain=False),
    Idiom("distutils", "setuptools, or packaging.version", "Python 3.12", certain=False),
    Idiom("onnx.optimizer", "pip install onnxoptimizer, import onnxoptimizer", "onnx 1.9"),
    Idiom(
        "onnx.mapping",
        "onnx.helper.tensor_dtype_to_np_dtype and its like",
        "current onnx",
        certain=False,
    ),
)
"""In the order of the page. The first match of a use applies."""


def idiom_of(name: str, keywords: frozenset[str] | None) -> Idiom | None:
    """The first entry that matches a dotted name (or ``.name`` for a method), or None.

    ``keywords`` has the argument names of a call, None without a call.
    """
    for idiom in IDIOMS:
        if name != idiom.name and not name.startswith(f"{idiom.name}."):
            continue
        if idiom.keyword and idiom.keyword not in (keywords or ()):
            continue
        if idiom.without and (keywords is None or keywords & {idiom.without, "**"}):
            continue
        return idiom
    return None
