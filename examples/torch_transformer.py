"""A small transformer that reads handwritten digits row by row, like words of a sentence.

    poprun --num-instances 2 --num-replicas 4 python examples/torch_transformer.py

Each image is a sequence of rows. The weights do not depend on how replicas are spread over
instances when --placement-invariant is given: 4 replicas in 1, 2 or 4 instances print the same
digest.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path

import curves
import digits
import torch
from torch import nn
from torch.utils.data import TensorDataset

import popdist
import popdist.poptorch
import popdist_torch as poptorch
from popdist import metrics

LOWEST_ACCURACY = 0.9


class RowReader(nn.Module):
    """An encoder over the rows of an image; returns the loss itself when it is given labels.

    Args:
        side: Pixels per side of the images.
        width: Of the encoder.
    """

    def __init__(self, side: int, width: int = 48) -> None:
        super().__init__()
        self.rows = nn.Linear(side, width)
        self.places = nn.Parameter(0.02 * torch.randn(side, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.digit = nn.Linear(width, 10)

    def forward(
        self, images: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Scores images [n, side, side]; with labels [n], the scores come with the loss."""
        scores: torch.Tensor = self.digit(self.encoder(self.rows(images) + self.places).mean(1))
        if labels is None:
            return scores
        return scores, nn.functional.cross_entropy(scores, labels)


def command_line_arguments() -> argparse.Namespace:
    """Parses the program's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=15, help="passes over the training data")
    parser.add_argument("--batch-size", type=int, default=8, help="samples of a micro-batch")
    parser.add_argument("--lr", type=float, default=3e-3, help="learning rate of AdamW")
    parser.add_argument("--mnist", type=Path, help="folder with the MNIST files; default: none")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="write the loss curve")
    parser.add_argument("--placement-invariant", action="store_true", help="see above")
    return parser.parse_args()


def as_dataset(part: digits.Part) -> TensorDataset:
    """Images and their labels."""
    return TensorDataset(torch.as_tensor(part.images), torch.as_tensor(part.labels))


def accuracy(model: nn.Module, data: digits.Digits) -> float:
    """Part of the test digits that the model names rightly; runs on one instance alone."""
    options = poptorch.Options()
    options.Distributed.disable()
    inference = poptorch.inferenceModel(model.eval(), options)
    images, labels = as_dataset(data.test).tensors
    return float((inference(images).argmax(1) == labels).float().mean())


def main() -> int:
    """Trains; the exit code of instance 0 says whether the model became good."""
    args = command_line_arguments()
    popdist.init()
    data = digits.load(args.mnist)
    options = popdist.poptorch.Options().randomSeed(42)
    loader = poptorch.DataLoader(
        options,
        as_dataset(data.train),
        batch_size=args.batch_size,
        shuffle=True,
        # Every update sees the same samples in every layout; the default divides them otherwise.
        partition=poptorch.DataPartition.Interleaved,
    )
    model = RowReader(data.side)
    training = poptorch.trainingModel(
        model,
        options,
        torch.optim.AdamW(model.parameters(), lr=args.lr),
        placement_invariant=args.placement_invariant,
        stop_at_bad_loss=True,
    )
    first, replicas = popdist.getInstanceIndex() == 0, popdist.getNumTotalReplicas()
    if first:
        print(
            f"{data.name}: {len(data.train)} to train on, {len(data.test)} to test on\n"
            f"{popdist.getNumInstances()} instance(s), {replicas} replica(s), global batch "
            f"{args.batch_size * replicas}",
            flush=True,
        )
    losses: list[float] = []
    started = time.perf_counter()
    with curves.progress(args.epochs * len(loader), shown=first) as bar:
        for epoch in range(args.epochs):
            for images, labels in loader:
                losses.append(training(images, labels)[1].mean().item())
                metrics.record(loss=losses[-1], samples=len(images))
                bar.update()
            bar.set_postfix(epoch=epoch + 1, loss=f"{losses[-1]:.4f}")
    seconds = time.perf_counter() - started
    training.destroy()
    if not first:
        return 0
    reached = accuracy(model, data)
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    digest = hashlib.blake2b(weights.numpy().tobytes(), digest_size=8).hexdigest()
    samples = len(losses) * args.batch_size * replicas
    print(
        f"trained at {samples / seconds:,.0f} samples/s\n"
        f"test accuracy {reached:.2%} (at least {LOWEST_ACCURACY:.0%} expected)\n"
        f"digest of the weights {digest}",
        flush=True,
    )
    if args.plot:
        curves.write_curve(losses, args.plot, data.name)
    return 0 if reached >= LOWEST_ACCURACY else 1


if __name__ == "__main__":
    raise SystemExit(main())
