"""The page about a real run, looked at in a real browser."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.distributed.jobs import LAUNCHER, run_command
from tests.distributed.warm import python

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
needs_browser = pytest.mark.skipif(
    BROWSER is None,
    reason=f"NO BROWSER: none of {', '.join(BROWSERS)} is on PATH, so nobody looked at the page "
    "(apt-get install chromium)",
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page about a training of the digits example on two instances."""
    place = tmp_path_factory.mktemp("runs")
    code, output = run_command(
        [
            *LAUNCHER, "--num-instances=2", "--num-replicas=4", f"--log-dir={place}",
            f"--timeline={place}/trace.json",
            *[*python("torch"), "examples/torch_digits.py", "--epochs=2"],
        ]
    )  # fmt: skip
    # Two epochs are too few for the accuracy that the example wants, which makes a failed job.
    assert "test accuracy" in output, output
    told, said = run_command([sys.executable, "-m", "popdist.report", place / "latest"])
    assert told == 0, said
    assert "missing:" not in said, said
    result = json.loads((place / "latest" / "job.json").read_text())
    assert result["exit_code"] == code
    return place / "latest" / "report.html"


def browse(page, tmp_path, *options):
    """Runs the browser on a page; returns standard output, and fails on any word of its console."""
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr",
            "--window-size=1000,2400", "--hide-scrollbars", *options, page.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


def test_a_real_run_leaves_all_that_the_page_shows(page):
    text = page.read_text()
    for section in ("topology", "loss", "throughput", "exchange", "memory", "timeline"):
        assert f'<section id="{section}">' in text
    steps = [int(n) for n in re.findall(r"<td>[01](?: \(slowest\))?</td><td>(\d+)</td>", text)]
    assert len(steps) == 2
    assert steps[0] == steps[1] > 20
    assert "<td>MPI_ALLREDUCE</td>" in text


@needs_browser
def test_a_browser_draws_it_and_hides_a_line_when_asked(page, tmp_path):
    picture = tmp_path / "page.png"
    browse(page, tmp_path, f"--screenshot={picture}")
    from matplotlib.image import imread

    pixels = (imread(picture)[..., :3] * 255).round().astype(np.uint8)
    assert pixels.shape[1] == 1000
    for name, color in {
        "instance 0": "2f6fde",
        "instance 1": "d1572a",
        "waiting": "e0a03a",
        "mean": "1d2430",
    }.items():
        drawn = (pixels == np.frombuffer(bytes.fromhex(color), np.uint8)).all(axis=-1).sum()
        assert drawn > 20, f"{name} is not on the picture"

    clicked = tmp_path / "clicked.html"
    click = (
        "<script>document.querySelector('#loss label').click();"
        "document.querySelectorAll('#loss path.s').forEach(function (line) {"
        "line.dataset.shown = getComputedStyle(line).display })</script></body>"
    )
    text = re.sub(r"<meta[^>]*Content-Security-Policy[^>]*>", "", page.read_text())
    clicked.write_text(text.replace("</body>", click))
    dom = browse(clicked, tmp_path, "--dump-dom")
    shown = re.findall(r'class="s p\d(?: mean)?"[^>]*data-shown="(\w+)"', dom)
    assert shown == ["none", "inline", "inline"]


ADAPTERS = """
import numpy as np, torch
import popdist, popdist.poptorch, popdist_onnx, popdist_torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x, labels):
        out = self.layer(x)
        return out, torch.nn.functional.cross_entropy(out, labels)

torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
model = popdist_torch.trainingModel(net, popdist.poptorch.Options(), optimizer)
for _ in range(3):
    model(torch.ones(2, 4), torch.tensor([0, 1]))
model = popdist_onnx.from_torch(torch.nn.Sequential(torch.nn.Linear(4, 3)), torch.ones(1, 4))
data = np.ones((16, 4), np.float32), np.zeros(16, np.int64)
trainer = popdist_onnx.train(model, *data, batch_size=4, epochs=2)
if popdist.getInstanceIndex() == 0:
    print(trainer.history.records[-1]["loss"])
"""


def test_adapters_report_their_steps_without_a_word_of_the_program(tmp_path):
    result = tmp_path / "result.json"
    code, output = run_command(
        [*LAUNCHER, "-np", "2", f"--json={result}", *python("torch"), "-c", ADAPTERS]
    )
    assert code == 0, output
    instances = json.loads(result.read_text())["instances"]
    # Three calls of PyTorch's model; two epochs of ONNX's, whose updates take eight samples.
    assert [one["step"] for one in instances] == [3 + 2 * 2] * 2
    assert [one["phase"] for one in instances] == ["training"] * 2
    assert all(one["samples_per_second"] > 0 for one in instances)
    # All samples are alike, so the epoch's mean lies around the last loss, which is the smallest.
    assert all(0 < one["loss"] < float(output.splitlines()[-1]) for one in instances)


TENSORFLOW = """
import numpy as np, popdist, tensorflow as tf
from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy

rng = np.random.default_rng(popdist.getInstanceIndex())
x = rng.normal(size=(32, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(4, drop_remainder=True)
with PopDistStrategy().scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=4)
history = model.fit(data, epochs=3, verbose=0).history
if popdist.getInstanceIndex() == 0:
    print(history["loss"][-1])
"""


def test_keras_reports_its_steps_and_losses(tmp_path):
    result = tmp_path / "result.json"
    program = [*python("tensorflow"), "-c", TENSORFLOW]
    code, output = run_command([*LAUNCHER, "-np", "2", f"--json={result}", *program])
    assert code == 0, output
    instances = json.loads(result.read_text())["instances"]
    assert [one["step"] for one in instances] == [3 * 8] * 2
    assert [one["phase"] for one in instances] == ["training"] * 2
    last = pytest.approx(float(output.splitlines()[-1]), rel=1e-4)
    assert [one["loss"] for one in instances] == [last] * 2
