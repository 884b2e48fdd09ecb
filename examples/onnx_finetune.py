"""Fine-tunes a network that was trained in PyTorch and exported to ONNX.

    poprun --num-instances 2 --num-replicas 2 python examples/onnx_finetune.py

The network learns the digits 0 to 4 in PyTorch. Its file then goes to `popdist_onnx.Trainer`, which
knows nothing of PyTorch and trains it on all ten, on all instances together. What comes out is an
ONNX file again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import digits
import numpy as np
import onnxruntime
import torch
from torch import nn

import popdist
import popdist_onnx
import popdist_onnx.horovod as hvd

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOWEST_ACCURACY = 0.93
KNOWN = 5


def pretrained(data: digits.Digits) -> bytes:
    """A network that has seen the first digits only, as the content of an ONNX file."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (data.side // 2) ** 2, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    chosen = data.train.labels < KNOWN
    images = torch.from_numpy(data.train.images[chosen, None])
    labels = torch.from_numpy(data.train.labels[chosen])
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(images), labels)
        torch.autograd.backward(loss)
        optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        torch.onnx.export(
            network.eval(),
            (images[:1],),
            path,
            input_names=["images"],
            output_names=["scores"],
            dynamic_axes={"images": {0: "batch"}, "scores": {0: "batch"}},
            dynamo=False,
        )
        return path.read_bytes()


def accuracy(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """The share of digits named correctly."""
    return float((scores.argmax(1) == labels).mean())


def instances_agree(trainer: popdist_onnx.Trainer) -> bool:
    """Whether all instances hold the same weights, bit for bit."""
    if popdist.getNumInstances() == 1:
        return True
    hvd.init()
    same = all(
        np.array_equal(array, hvd.broadcast(array, root_rank=0, name=name))
        for name, array in trainer.weights.items()
    )
    return bool(hvd.allreduce(np.asarray([float(same)]))[0] == 1)


def main() -> int:
    """Trains, tests, checks, saves.

    Returns:
        0; 1 where the accuracy is too low, the instances differ, or the file does not run.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=8, help="passes over the training data")
    args = parser.parse_args()
    data = digits.load()
    model = pretrained(data)
    optimizer = popdist_onnx.SGD(
        {"defaultLearningRate": (0.02, False), "defaultMomentum": (0.9, True)}
    )
    trainer = popdist_onnx.Trainer(model, optimizer=optimizer, batch_size=8)
    images = data.test.images[:, None]
    before = accuracy(trainer.predict(images), data.test.labels)
    history = trainer.fit(data.train.images[:, None], data.train.labels, epochs=args.epochs)
    after = accuracy(trainer.predict(images), data.test.labels)
    agree = instances_agree(trainer)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "finetuned.onnx"
        trainer.save(path)
        (scores,) = onnxruntime.InferenceSession(path).run(None, {"images": images})
    alone = accuracy(scores, data.test.labels)
    if popdist.getReplicaIndexOffset() == 0:
        print(
            f"accuracy {before:.3f} before, {after:.3f} after (loss {history[-1]:.4f}), "
            f"{alone:.3f} in onnxruntime alone; instances {'agree' if agree else 'DISAGREE'}"
        )
    return 0 if agree and min(after, alone) >= LOWEST_ACCURACY else 1


if __name__ == "__main__":
    sys.exit(main())
