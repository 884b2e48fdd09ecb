"""`poprun --compare-alone` on real jobs: wrong losses are named, and sound ones are not."""

import json
from pathlib import Path

import pytest

from popdist.comparison import Comparison
from tests.distributed.jobs import LAUNCHER, run_command
from tests.distributed.warm import framework_of, python

PROGRAMS = Path(__file__).parent / "compared"


def compared(program, *words, updates=2, options=()):
    """The exit code and the output of a comparison."""
    return run_command(
        [
            *LAUNCHER,
            "-np",
            "2",
            f"--compare-alone={updates}",
            *options,
            *python(framework_of(PROGRAMS / f"{program}.py")),
            PROGRAMS / f"{program}.py",
            *words,
        ],
        timeout=280,
    )


def test_a_loop_with_a_mean_loss_trains_like_its_program():
    code, output = compared("plain_loop", "mean")
    assert code == 0, output
    assert "2 updates have equal weights" in output


def test_a_loop_whose_parts_do_not_add_up_is_named():
    """Other losses are rows of tests/properties/test_programs.py."""
    code, output = compared("plain_loop", "ignore_index")
    assert code == 1, output
    assert "[PD023]" in output
    assert "from update 1 of SGD 0 on" in output


def test_the_factor_of_a_loss_that_is_a_sum_is_named(tmp_path):
    code, output = compared("plain_loop", "sum", options=[f"--json={tmp_path / 'result'}"])
    assert code == 1, output
    assert "each update of the job is 0.5 times that of the program alone" in output
    found = Comparison.from_json(json.loads((tmp_path / "result").read_text()))
    assert found.updates[0].factor == pytest.approx(0.5)
    assert not found.is_equal


@pytest.mark.parametrize("state_is_made", ["before", "after"])
def test_batches_of_one_process_become_those_of_the_job(state_is_made):
    """Some of Horovod's examples broadcast the optimizer's state before they wrap it."""
    code, output = compared("horovod_loop", state_is_made, updates=1)
    assert code == 0, output
    assert "with batches that are 2 times larger" in output
    assert "1 update has equal weights" in output
    assert "PD327" not in output, "a step with gradients of zero changes no weight"


@pytest.mark.parametrize("words", [["mean"], ["mean", "sum"]])
def test_a_training_model_trains_like_its_program(words):
    code, output = compared("training_model", *words, options=["--num-replicas=4"])
    assert code == 0, output
    assert output.count("given   equal") == 2


def test_a_training_model_whose_parts_do_not_add_up_is_named():
    code, output = compared("training_model", "topk")
    assert code == 1, output
    assert "layers.2.weight" in output
    assert "one process with the job's replicas trains like the job" in output


UNPREPARED = """
import popdist, torch
import popdist_torch as poptorch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 1)

    def forward(self, x, weight):
        x = torch.nn.functional.dropout(self.first(x).relu(), 0.5) * weight
        return x, poptorch.identity_loss((self.last(x) ** 2).mean(), "none")

torch.manual_seed(popdist.getNumInstances())  # other weights than alone
model = Model()
training = poptorch.trainingModel(model, poptorch.Options(), torch.optim.Adam(model.parameters()))
draw = torch.Generator().manual_seed(popdist.getInstanceIndex())  # an order of each instance
for _ in range(3):
    x = torch.randn(4, 6, generator=draw)
    outputs, _ = training(x, WEIGHT)
    assert len(outputs) == len(x)  # as many rows as the program gave
"""


@pytest.mark.parametrize(
    ("weight", "several"), [("torch.ones(4, 8)", False), ("torch.ones(1, 8)", True)]
)
def test_a_training_model_is_given_the_weights_and_batches_of_the_job(tmp_path, weight, several):
    """The second program has one row for each replica, so replicas cannot be computed as one."""
    program = tmp_path / "unprepared.py"
    program.write_text(UNPREPARED.replace("WEIGHT", weight))
    words = [*LAUNCHER, "-np", "2", "--compare-alone=2", *python("torch"), program]
    code, output = run_command(words)
    assert code == 0, output
    assert output.count("given   equal") == 2, output
    assert ("with the job's 2 replicas" in output) is several, output


def test_fit_of_keras():
    code, output = compared("keras_fit", "mean")
    assert code == 0, output
    code, output = compared("keras_fit", "rmse")
    assert code == 1, output
    assert "[PD023]" in output


OWN_DATA = """
import numpy as np, popdist, tensorflow as tf
from popdist_tf import ipu
from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy

rng = np.random.default_rng(popdist.getInstanceIndex() + 7 * popdist.getNumInstances())
x = rng.normal(size=(24, 6)).astype("float32")  # samples that one process does not have
data = tf.data.Dataset.from_tensor_slices((x, x.sum(1))).shuffle(24).repeat()
data = data.batch(4, drop_remainder=True)
tf.keras.utils.set_random_seed(3)
strategy = PopDistStrategy()
with strategy.scope():
    layers = [tf.keras.layers.Dense(5, "tanh"), tf.keras.layers.BatchNormalization()]
    layers += [tf.keras.layers.Dropout(0.5), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential(layers)
    model.build((None, 6))
    optimizer = tf.keras.optimizers.Adam(0.1)

def update(x, y):
    with tf.GradientTape() as tape:
        outputs = model(tf.nn.dropout(x, 0.5), training=True)
        errors = tf.reduce_mean((outputs[:, 0] - y) ** 2 LOSS)
        loss = errors / strategy.num_replicas_in_sync
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(grads_and_vars=zip(grads, model.trainable_variables))

@tf.function
def iterate(iterator):
    for _ in tf.range(4):
        strategy.run(lambda: update(*next(iterator)))

with strategy.scope():
    if "QUEUE":
        queue = ipu.ipu_infeed_queue.IPUInfeedQueue(data)
        @tf.function
        def loop():
            ipu.loops.repeat(4, update, [], queue)

        strategy.run(loop)
    else:
        iterate(iter(data))
"""


@pytest.mark.parametrize("queue", ["", "a queue"])
def test_a_loop_of_tensorflow_is_given_the_elements_of_the_job(tmp_path, queue):
    program = tmp_path / "own_data.py"
    words = [*LAUNCHER, "-np", "2", "--compare-alone=3", *python("tensorflow"), program]
    program.write_text(OWN_DATA.replace("QUEUE", queue).replace("LOSS", ""))
    code, output = run_command(words, timeout=280)
    assert code == 0, output
    assert "with batches that are 2 times larger" in output
    assert output.count("given   equal") == 3, output
    if not queue:  # the root of a mean does not add up over parts
        program.write_text(OWN_DATA.replace("QUEUE", queue).replace("LOSS", ") ** (0.5"))
        code, output = run_command(words, timeout=280)
        assert code == 1, output
        assert "given   different" in output


def test_train_of_onnx():
    code, output = compared("onnx_train", updates=3)
    assert code == 0, output
    assert output.count("same    equal") == 3


def test_a_program_that_trains_nothing_cannot_be_compared(tmp_path):
    program = tmp_path / "nothing.py"
    program.write_text("import torch")
    words = [*LAUNCHER, "-np", "2", "--compare-alone=2", *python("torch"), program]
    code, output = run_command(words)
    assert code == 2, output
    assert "[PD024] no update of the job and the program alone was recorded" in output


def test_first_weights_that_depend_on_the_process_cannot_be_compared(tmp_path):
    program = tmp_path / "unseeded.py"
    source = (PROGRAMS / "plain_loop.py").read_text()
    program.write_text(source.replace("torch.manual_seed(1)", "torch.manual_seed(hvd.size())"))
    words = [*LAUNCHER, "-np", "2", "--compare-alone=2", *python("torch"), program, "mean"]
    code, output = run_command(words)
    assert code == 2, output
    assert "starts from other weights in the job than alone: 0.weight" in output
