"""A plain torch loop with Horovod's six steps, on handwritten digits.

    poprun --num-instances 2 --num-replicas 2 python examples/torch_six_steps.py

A program written for Horovod changes one import: ``popdist_torch.horovod`` for ``horovod.torch``.
It works under mpirun alone too, and without a launcher. With --checkpoint it can be killed at any
moment and started again.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import curves
import digits
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import popdist_torch.horovod as hvd
from popdist import metrics
from popdist_torch import Checkpoint

LOWEST_ACCURACY = 0.95


def command_line_arguments() -> argparse.Namespace:
    """Parses the program's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=15, help="passes over the training data")
    parser.add_argument("--batch-size", type=int, default=32, help="samples of all ranks together")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate of Adam")
    parser.add_argument("--mnist", type=Path, help="folder with the MNIST files; default: none")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="write the loss curve")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="save and resume here")
    return parser.parse_args()


def network(side: int) -> nn.Module:
    """A small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (side // 2) ** 2, 10),
    )


def as_dataset(part: digits.Part) -> TensorDataset:
    """Images with one channel, and their labels."""
    return TensorDataset(torch.as_tensor(part.images).unsqueeze(1), torch.as_tensor(part.labels))


def evaluate(model: nn.Module, part: digits.Part, device: torch.device) -> float:
    """Part of the digits that the model names rightly; every rank looks at some of them."""
    own = slice(hvd.rank(), None, hvd.size())
    images, labels = (tensor[own].to(device) for tensor in as_dataset(part).tensors)
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean().item()
    return hvd.average_metrics({"accuracy": right}, weight=len(labels))["accuracy"]


def main() -> int:
    """Trains; the exit code says whether the model became good."""
    args = command_line_arguments()
    data = digits.load(args.mnist)

    # 1. Initialisation.
    hvd.init()
    torch.manual_seed(42 + hvd.rank())  # unequal on purpose: step 5 makes the weights equal
    # 2. The local batch size.
    local_batch = hvd.local_batch_size(args.batch_size)
    # 3. A device for each process.
    device = hvd.pin_device()
    torch.set_num_threads(1)
    # 4. Sharding the data.
    dataset = as_dataset(data.train)
    sampler = hvd.DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=local_batch, sampler=sampler, drop_last=True)
    # 5. The same first weights everywhere.
    model = network(data.side).to(device)
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    # 6. Gradients of all ranks.
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    first = hvd.rank() == 0
    saved = args.checkpoint and Checkpoint(args.checkpoint, model=model, optimizer=optimizer)
    values = (saved and saved.load()) or {"epoch": 0, "losses": []}
    losses: list[float] = values["losses"]
    epochs = range(values["epoch"], args.epochs)
    if first:
        print(
            f"{data.name}: {len(data.train)} to train on, {len(data.test)} to test on\n"
            f"{hvd.size()} rank(s) x {local_batch} samples = global batch {args.batch_size}"
            f"{f', resuming after {epochs.start} epochs' if epochs.start else ''}",
            flush=True,
        )
    started = time.perf_counter()
    with curves.progress(len(epochs) * len(loader), shown=first) as bar:
        for epoch in epochs:
            sampler.set_epoch(epoch)
            for images, labels in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                losses.append(loss.item())
                metrics.record(loss=losses[-1], samples=len(images))
                bar.update()
            mean = hvd.average_metrics({"loss": losses[-1]})["loss"]
            bar.set_postfix(epoch=epoch + 1, loss=f"{mean:.4f}")
            if saved:
                saved.save(epoch=epoch + 1, losses=losses)
    seconds = time.perf_counter() - started
    reached = evaluate(model, data.test, device)
    if first:
        samples = len(epochs) * len(loader) * args.batch_size
        print(f"trained at {samples / seconds:,.0f} samples/s")
        print(f"test accuracy {reached:.2%} (at least {LOWEST_ACCURACY:.0%} expected)", flush=True)
        if args.plot:
            curves.write_curve(losses, args.plot, data.name)
    return 0 if reached >= LOWEST_ACCURACY else 1


if __name__ == "__main__":
    raise SystemExit(main())
