"""The mode "tf1" of the SDK's names: which programs get it, and what it gives them."""

import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from popdist.sdk.sources import sources_of
from popdist.sdk.version1 import _Version1, are_of_version1

BELOW = "import tensorflow.compat.v1 as tf\n"
GRAPH = "import tensorflow as tf\nx = tf.placeholder(tf.float32)\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (GRAPH, True),
        ("import tensorflow\ntensorflow.Session()\n", True),
        ("from tensorflow.contrib import layers\n", True),
        ("from tensorflow import placeholder\n", True),
        (BELOW + "tf.placeholder(tf.float32)\n", True),
        ("from tensorflow.compat import v1 as tf\ntf.Session()\n", True),
        ("from tensorflow.compat.v1 import Session\nSession()\n", True),
        (BELOW + "tf.disable_v2_behavior()\ntf.placeholder(tf.float32)\n", False),
        (BELOW + "with tf.Graph().as_default(): tf.placeholder(tf.float32)\n", False),
        (BELOW + "tf.get_variable('x', ())\n", False),
        (BELOW + "tf.Session()\ntf.function\n", False),
        ("import tensorflow as tf\ntf.compat.v1.Session()\n", False),
        (GRAPH + "@tf.function\ndef f(): ...\n", False),
        ("import tensorflow as tf\ntf.keras.Model()\n", False),
        ("import tensorflow as tf\ntf.gfile.Open('x')\n", True),
        ("import model\n", True),
        ("from model import x\n", True),
        ("from parts import model\n", True),
        ("import tensorflow as tf\ntf.enable_eager_execution()\ntf.GradientTape\n", True),
        (BELOW + "tf.enable_eager_execution()\ntf.placeholder\n", False),
        ("import missing\nfrom . import nothing\n", False),
        ("this is no Python", False),
    ],
)
def test_programs_of_tensorflow_1_are_known_by_their_sources(tmp_path, source, expected):
    (tmp_path / "model.py").write_text(GRAPH)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").touch()
    (tmp_path / "parts" / "model.py").write_text("import train\n" + GRAPH)
    (tmp_path / "train.py").write_text(source)
    trees = [tree for _, tree in sources_of(str(tmp_path / "train.py"))]
    assert are_of_version1(trees) == expected


def module(name, **content):
    made = ModuleType(name)
    vars(made).update(content)
    return made


def test_names_are_those_of_tensorflow_1_and_then_those_of_tensorflow_2():
    version1 = module("v1", reduce_sum="of 1", Session="session")
    compat = module("compat", v1=version1)
    real = module("tensorflow", reduce_sum="of 2", io="of 2", compat=compat, python="package")
    real.__file__, real.__path__ = "file", []
    found = _Version1(real)
    assert (found.reduce_sum, found.Session, found.io) == ("of 1", "session", "of 2")
    assert found.compat is compat
    assert {"Session", "io"} <= set(dir(found))
    with pytest.raises(AttributeError, match="module 'tensorflow' has no attribute 'nothing'"):
        _ = found.nothing


PROGRAM = """
import tensorflow as tf
import tensorflow.contrib as contrib
from tensorflow.python import ipu, pywrap_tensorflow
from tensorflow.contrib.compiler import xla

x = tf.placeholder(tf.float32, [4, 8 / 2])  # a size that is a whole float
w = tf.get_variable("w", [4, 2], initializer=tf.ones_initializer())
loss = tf.reduce_sum(tf.nn.dropout(x @ w, keep_prob=1.0), reduction_indices=[0, 1])
with tf.device("/device:IPU:0"):
    (rows,) = ipu.ipu_compiler.compile(lambda a: tf.reduce_sum(a, reduction_indices=1), [x])
assert {cell} and contrib.layers.xavier_initializer() and xla.compile
assert pywrap_tensorflow.NewCheckpointReader and int(tf.Dimension(3.0)) == 3
assert tf.pywrap_tensorflow is pywrap_tensorflow
assert contrib.data.AUTOTUNE == tf.data.experimental.AUTOTUNE
options = tf.data.Options()
options.experimental_stats.aggregator = tf.data.experimental.StatsAggregator()
counted = tf.data.Dataset.range(3).apply(tf.data.experimental.latency_stats("name"))
counted = tf.data.make_one_shot_iterator(counted.with_options(options)).get_next()
summary = options.experimental_stats.aggregator.get_summary()
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    assert session.run((counted, tf.summary.merge([summary]))) == (0, b"")
    print(*session.run(rows, {x: [[1, 2, 3, 4]] * 4}), session.run(loss, {x: [[1] * 4] * 4}))
"""


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow")
@pytest.mark.parametrize("asked", [True, False])
def test_a_program_of_tensorflow_1_runs_as_it_is(tmp_path, asked):
    program = tmp_path / "train.py"
    # TensorFlow itself has no cells any more where it has Keras 3.
    cell = "contrib.rnn" if version("keras").startswith("3.") else "contrib.rnn.LSTMCell"
    program.write_text(PROGRAM.replace("{cell}", cell))
    words = ["--tf1"] if asked else []
    ran = subprocess.run(
        [sys.executable, "-m", "popdist.sdk", *words, str(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.stdout.split() == ["10.0"] * 4 + ["32.0"], ran.stderr


def test_the_adapter_means_tensorflow_2_whatever_the_program_has():
    package = Path(find_spec("popdist").origin).parents[1] / "popdist_tf"
    lines = [line for path in package.rglob("*.py") for line in path.read_text().splitlines()]
    assert "import tensorflow.compat.v2 as tf" in lines
    assert "import tensorflow as tf" not in lines  # TensorFlow 1's, in this mode


EAGER = """
import horovod.tensorflow as hvd
import tensorflow as tf

def main(_):
    hvd.init()
    tf.enable_eager_execution(config=tf.ConfigProto())
    x = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        y = x * x
    print(tf.executing_eagerly(), tape.gradient(y, x).numpy(), hvd.size())

tf.app.run()
"""
BELOW_KERAS = """
import tensorflow as tf
from tensorflow.keras import backend
from tensorflow.keras.layers import Dense
import tensorflow.keras.backend as K

K.set_session(tf.Session())
assert backend.set_session and tf.keras.backend.set_session and Dense is tf.keras.layers.Dense
print(isinstance(Dense(1), tf.keras.layers.Layer))
"""
KERAS_FIRST = """
import keras
import tensorflow as tf
import horovod.keras as hvd

hvd.init()
print(tf.ConfigProto().allow_soft_placement, keras.__version__[0], hvd.size())
"""


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow")
@pytest.mark.parametrize(
    ("source", "printed"),
    [(EAGER, "True 4.0 1"), (KERAS_FIRST, "False 2 1"), (BELOW_KERAS, "True")],
)
def test_programs_as_horovods_examples_for_tensorflow_1_run(tmp_path, source, printed):
    if source != EAGER and version("keras").startswith("3."):
        pytest.skip("Keras 3 has no sessions")
    program = tmp_path / "train.py"
    program.write_text(source)
    ran = subprocess.run(
        [sys.executable, "-m", "popdist.sdk", program], capture_output=True, text=True, check=False
    )
    assert ran.stdout.strip() == printed, ran.stderr
