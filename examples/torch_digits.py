"""Trains a small network on handwritten digits, on every replica of every instance.

    poprun --num-instances 2 --num-replicas 4 python examples/torch_digits.py

The program has the three phases of the PopDist guide (section 4.3): it parses its arguments, finds
its place in the job, and digests both into options, data and model. It works without poprun too, as
a job of one instance with one replica.

At the end it checks itself: all instances must hold the same weights, bit for bit, and these must
be the weights that one process gets in plain torch from the same global batches.
"""

from __future__ import annotations

import argparse
import sys
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

TOLERANCE = 1e-3
"""Largest accepted difference of a weight from the plain torch run. Sums are taken in another
order there, and each of some hundred updates builds on the rounding of the one before."""

LOWEST_ACCURACY = 0.95


class Network(nn.Module):
    """Two convolutions and a linear layer; returns the loss itself when it is given labels.

    Args:
        side: Pixels per side of the images.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.GELU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * (side // 2) ** 2, 10),
        )
        self.loss = nn.CrossEntropyLoss()

    def forward(
        self, images: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Scores images [n, 1, side, side]; with labels [n], the scores come with the loss."""
        scores: torch.Tensor = self.layers(images)
        return scores if labels is None else (scores, self.loss(scores, labels))


# --- Parsing phase --------------------------------------------------------------------------------


def command_line_arguments() -> argparse.Namespace:
    """Parses the program's own arguments; those of poprun never arrive here."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training data")
    parser.add_argument("--batch-size", type=int, default=8, help="samples of a micro-batch")
    parser.add_argument("--accumulation", type=int, default=2, help="micro-batches an update")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate")
    parser.add_argument("--seed", type=int, default=42, help="of weights and shuffling")
    parser.add_argument("--mnist", type=Path, help="folder with the MNIST files; default: none")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="write the loss curve")
    return parser.parse_args()


# --- Initialisation phase -------------------------------------------------------------------------


def init_popdist(args: argparse.Namespace) -> None:
    """Notes this process's place in the job that poprun started."""
    popdist.init()
    args.use_popdist = True
    args.instance = popdist.getInstanceIndex()
    args.instances = popdist.getNumInstances()
    args.replicas = popdist.getNumLocalReplicas()


def init_alone(args: argparse.Namespace) -> None:
    """The place of a process that no launcher started."""
    args.use_popdist = False
    args.instance, args.instances, args.replicas = 0, 1, 1


# --- Digestion phase ------------------------------------------------------------------------------


def create_options(args: argparse.Namespace) -> poptorch.Options:
    """Options for training, which know this instance's place in the job."""
    options = popdist.poptorch.Options() if args.use_popdist else poptorch.Options()
    options.Training.gradientAccumulation(args.accumulation)
    # Also gives every instance the same first weights, as the model is built after this.
    options.randomSeed(args.seed)
    return options


def as_dataset(part: digits.Part) -> TensorDataset:
    """Images as torch wants them, with one channel, and their labels."""
    return TensorDataset(torch.as_tensor(part.images).unsqueeze(1), torch.as_tensor(part.labels))


def create_loader(
    args: argparse.Namespace, options: poptorch.Options, data: digits.Digits
) -> poptorch.DataLoader:
    """The training data of the process that the options describe."""
    return poptorch.DataLoader(
        options,
        as_dataset(data.train),
        batch_size=args.batch_size,
        shuffle=True,
        # Shuffles in a job of one process; larger ones shuffle by the options' seed.
        generator=torch.Generator().manual_seed(args.seed),
    )


def create_optimizer(args: argparse.Namespace, model: nn.Module) -> torch.optim.Optimizer:
    """Any optimizer of torch will do."""
    return torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)


def train(args: argparse.Namespace, data: digits.Digits) -> Network:
    """Trains on all instances together."""
    options = create_options(args)
    loader = create_loader(args, options, data)
    model = Network(data.side)
    training_model = poptorch.trainingModel(model, options, create_optimizer(args, model))
    report = args.instance == 0
    total = args.instances * args.replicas
    if report:
        print(
            f"{data.name}: {len(data.train)} to train on, {len(data.test)} to test on\n"
            f"{args.instances} instance(s) x {args.replicas} replica(s), global batch "
            f"{args.batch_size} x {args.accumulation} accumulation x {total} replicas = "
            f"{args.batch_size * args.accumulation * total}",
            flush=True,
        )
    started = time.perf_counter()
    losses = []
    with curves.progress(args.epochs * len(loader), shown=report) as bar:
        for epoch in range(args.epochs):
            for images, labels in loader:
                _, loss = training_model(images, labels)
                losses.append(loss.mean().item())
                metrics.record(loss=losses[-1], samples=len(images))
                bar.update()
            bar.set_postfix(epoch=epoch + 1, loss=f"{losses[-1]:.4f}")
    if report:
        seconds = time.perf_counter() - started
        samples = args.epochs * len(loader) * args.batch_size * args.accumulation * total
        print(f"trained at {samples / seconds:,.0f} samples/s", flush=True)
        if args.plot:
            curves.write_curve(losses, args.plot, data.name)
    training_model.destroy()
    return model


def accuracy(model: nn.Module, data: digits.Digits) -> float:
    """Part of the test digits that the model names rightly; runs on one instance alone."""
    options = poptorch.Options()
    options.Distributed.disable()
    count = len(data.test)
    batch = max(size for size in range(1, 501) if count % size == 0)
    inference_model = poptorch.inferenceModel(model.eval(), options)
    loader = poptorch.DataLoader(options, as_dataset(data.test), batch_size=batch)
    right = sum(int((inference_model(x).argmax(1) == y).sum()) for x, y in loader)
    return right / count


# --- Checks ---------------------------------------------------------------------------------------


def flat(model: nn.Module) -> torch.Tensor:
    """All weights of a model, one after the other."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def same_everywhere(model: nn.Module) -> bool:
    """Whether all instances hold the same weights, bit for bit; all of them must ask."""
    import horovod.torch as hvd

    everywhere = hvd.allgather(flat(model).unsqueeze(0))
    return bool((everywhere == everywhere[0]).all())


def train_alone(args: argparse.Namespace, data: digits.Digits) -> Network:
    """The same training in one process and plain torch: one big batch per update."""
    loaders = []
    for process in range(args.instances):
        options = poptorch.Options().replicationFactor(args.replicas)
        options.Training.gradientAccumulation(args.accumulation)
        options.Distributed.configureProcessId(process, args.instances)
        options.randomSeed(args.seed)
        loaders.append(create_loader(args, options, data))
    model = Network(data.side)
    optimizer = create_optimizer(args, model)
    with poptorch.local_training():
        for _ in range(args.epochs):
            for batches in zip(*loaders, strict=True):
                images = torch.cat([images for images, _ in batches])
                labels = torch.cat([labels for _, labels in batches])
                optimizer.zero_grad()
                model.loss(model.layers(images), labels).backward()
                optimizer.step()
    return model


def check(args: argparse.Namespace, model: Network, data: digits.Digits) -> bool:
    """Prints how good the model is and whether its weights are right; runs on instance 0."""
    reached = accuracy(model, data)
    difference = (flat(model) - flat(train_alone(args, data))).abs().max().item()
    good, equal = reached >= LOWEST_ACCURACY, difference <= TOLERANCE
    print(
        f"test accuracy {reached:.2%} (at least {LOWEST_ACCURACY:.0%}: {_verdict(good)})\n"
        f"largest difference of a weight from one process in plain torch {difference:.1e} "
        f"(at most {TOLERANCE:.0e}: {_verdict(equal)})",
        flush=True,
    )
    return good and equal


def _verdict(holds: bool) -> str:
    return "ok" if holds else "FAILED"


def main() -> int:
    """Runs the phases; the exit code says whether every check held."""
    args = command_line_arguments()

    if popdist.isPopdistEnvSet():
        init_popdist(args)
    else:
        init_alone(args)

    data = digits.load(args.mnist)
    model = train(args, data)

    right = True
    if args.instances > 1:
        right = same_everywhere(model)
        if args.instance == 0:
            print(f"weights identical on all {args.instances} instances: {_verdict(right)}")
    if args.instance == 0:
        right = check(args, model, data) and right
        print(
            "next, try\n"
            "  poprun --num-instances 4 --num-replicas 4 python examples/torch_digits.py\n"
            "  python examples/torch_digits.py --epochs 3 --accumulation 8\n"
            "  --mnist FOLDER with the four MNIST files, and docs/torch.md for your own program",
            flush=True,
        )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
