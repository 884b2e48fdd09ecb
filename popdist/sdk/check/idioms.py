"""Names outside of the SDK that its programs use and today's libraries refuse, with the edits.

The page ``docs/sdk-names.md`` prints this table, and a test checks the table against the libraries.
"""

from __future__ import annotations

from typing import NamedTuple

from popdist.sdk.tensorflow1 import BELOW, NAMES


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
        return self.is_moved and (not inner or part in BELOW or part in NAMES)


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
    *(Idiom(f"tensorflow.{name}", f"tf.compat.v1.{name}", "TensorFlow 2.0") for name in NAMES),
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
    Idiom("numpy.asfarray", "np.asarray(values, dtype=np.float64)", "NumPy 2.0", certain=False),
    Idiom("numpy.NINF", "-np.inf", "NumPy 2.0", certain=False),
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
