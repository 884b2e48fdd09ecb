"""Counts the files that a command or a step goes through: ``python -m benchmarks.entered``.

For a launch these are the modules that Python loads (``-X importtime``); for a step of training,
the files in which code runs, by a profiling function. Files of other packages do not count.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("popdist", "popdist_torch", "popdist_tf", "popdist_onnx")

# What calls `begin` and `end` has the files counted in which code runs in between.
_RECORDER = f"""
import os, sys, threading
seen = set()
def note(frame, event, _):
    if event == "call":
        seen.add(frame.f_code.co_filename)
def begin():
    seen.clear(); threading.setprofile(note); sys.setprofile(note)
def end():
    sys.setprofile(None); threading.setprofile(None)
    show(seen)
def show(paths):
    if os.environ.get("POPDIST_INSTANCE_INDEX", "0") != "0":
        return
    for path in sorted(paths):
        inside = os.path.relpath(path or "/", {str(ROOT)!r})
        if inside.split(os.sep)[0] in {PACKAGES!r}:
            print("entered", inside)
"""

_TORCH = """
import torch, popdist.poptorch, popdist_torch as poptorch
class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def forward(self, x, y):
        return torch.nn.functional.mse_loss(self.layer(x), y)
torch.manual_seed(1)
model = Line()
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
training = poptorch.trainingModel(model, popdist.poptorch.Options(), sgd)
own = torch.Generator().manual_seed(popdist.getInstanceIndex())
x, y = torch.randn(4, 2, generator=own), torch.ones(4, 1)
for step in range(STEP):
    training(x, y)
begin(); training(x, y); end()
"""

_ONNX = """
import numpy as np, popdist_onnx
builder = popdist_onnx.Builder(opsets={"ai.onnx": 11, "ai.graphcore": 1})
x = builder.addInputTensor(popdist_onnx.TensorInfo("FLOAT", [4, 4]), "x")
w = builder.addInitializedInputTensor(np.zeros([4, 3], np.float32), "w")
scores = builder.aiOnnx.matmul([x, w])
builder.addOutputTensor(scores)
samples, classes = np.eye(4, dtype=np.float32), np.array([0, 1, 2, 0])
begin()
popdist_onnx.train(builder.getModelProto(), samples, classes, batch_size=4, epochs=1)
end()
"""

_TENSORFLOW = """
import numpy as np, tensorflow as tf
from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy
with PopDistStrategy().scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensors((np.ones([4, 2], np.float32), np.ones([4, 1], np.float32)))
for step in range(STEP):
    model.fit(data, verbose=0)
begin(); model.fit(data, verbose=0); end()
"""

STEPS = {
    "popdist_onnx.train, from the model to the end of one step": (_ONNX, 1),
    "trainingModel(...)(x), its first call, 2 processes": (_TORCH.replace("STEP", "0"), 2),
    "trainingModel(...)(x), its third call, 2 processes": (_TORCH.replace("STEP", "2"), 2),
    "fit of one step with a PopDistStrategy, the first, 2 processes": (
        _TENSORFLOW.replace("STEP", "0"),
        2,
    ),
    "fit of one step with a PopDistStrategy, the third, 2 processes": (
        _TENSORFLOW.replace("STEP", "2"),
        2,
    ),
}
"""What is measured of the adapters: the program for it, and how many processes run it."""


def of_dry_run() -> list[str]:
    """The modules of ``poprun --dry-run``."""
    return _loaded(["-m", "popdist.poprun", "--dry-run=yes", "-np", "2", "true"])


def of_launcher() -> list[str]:
    """The modules of poprun for a job of two instances."""
    return _loaded(["-m", "popdist.poprun", "-np", "2", "true"])


def of_guard() -> list[str]:
    """The modules of the guard of one machine, which poprun forks and which loads the rest."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import popdist.poprun.guard.host"
    return _loaded(["-I", "-S", "-c", code])


def of_step(program: str, processes: int = 1) -> list[str]:
    """The files that a program goes through between its ``begin()`` and its ``end()``.

    Args:
        program: Python code.
        processes: How many instances run it; the first one's files count.

    Returns:
        Their paths in the repository.
    """
    job = ["-m", "popdist.poprun", "-np", str(processes), sys.executable] if processes > 1 else []
    done = _run([sys.executable, *job, "-c", _RECORDER + program])
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    return [words[1] for words in lines if words[0] == "entered"]


def main(arguments: list[str] | None = None) -> None:
    """Prints a count for each, and with ``--list`` the names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.entered", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the names, too")
    parser.add_argument("--launcher", action="store_true", help="leave out the adapters")
    chosen = parser.parse_args(arguments)
    found = {"poprun --dry-run": of_dry_run(), "poprun": of_launcher(), "a guard": of_guard()}
    if not chosen.launcher:
        found |= {name: of_step(*program) for name, program in STEPS.items()}
    for name, files in found.items():
        print(f"{len(files):4} {name}")
        for file in files if chosen.list else ():
            print(f"       {file}")


def _loaded(arguments: list[str]) -> list[str]:
    """The modules of ours that a Python with these arguments loads, by its own account."""
    done = _run([sys.executable, "-X", "importtime", *arguments])
    names = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line]
    return sorted({name for name in names if name.split(".")[0] in PACKAGES})


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)


if __name__ == "__main__":
    main()
