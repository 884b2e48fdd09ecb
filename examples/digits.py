"""Handwritten digits for the examples: scikit-learn's own set, or MNIST files where given.

Nothing is downloaded: scikit-learn ships 1797 real digits of 8 x 8 pixels (UCI, 1998).
"""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.utils.data import TensorDataset

if TYPE_CHECKING:
    from pathlib import Path

MNIST_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_TEST_DIGITS = 297  # leaves 1500 of the 1797 to train on
_UNSIGNED_BYTES = 8  # the idx format's code of the element type


@dataclass(frozen=True)
class Digits:
    """Images with labels, split for training and testing.

    Attributes:
        name: Where they come from.
        train: Images float32 [n, 1, side, side] in 0..1, labels int64 [n].
        test: As above.
        side: Pixels per side.
    """

    name: str
    train: TensorDataset
    test: TensorDataset
    side: int


def load(mnist: Path | None = None) -> Digits:
    """Loads a set of digits.

    Args:
        mnist: Folder that holds the four MNIST files, packed with gzip or not; None for
            scikit-learn's set.

    Returns:
        The digits, in the same order on every call.

    Raises:
        SystemExit: A file is missing or malformed.
    """
    if mnist is not None:
        images, labels, test_images, test_labels = (_idx(mnist, name) for name in MNIST_FILES)
        return _digits(f"MNIST in {mnist}", images / 255, labels, test_images / 255, test_labels)
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.as_tensor(bunch.images, dtype=torch.float32) / 16
    labels = torch.as_tensor(bunch.target)
    # The set is ordered by writer; every writer should be in both parts.
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[_TEST_DIGITS:], order[:_TEST_DIGITS]
    name = "scikit-learn's handwritten digits"
    return _digits(name, images[train], labels[train], images[test], labels[test])


def _digits(
    name: str,
    images: torch.Tensor,
    labels: torch.Tensor,
    test_images: torch.Tensor,
    test_labels: torch.Tensor,
) -> Digits:
    train = TensorDataset(images.float().unsqueeze(1), labels.long())
    test = TensorDataset(test_images.float().unsqueeze(1), test_labels.long())
    return Digits(name, train, test, images.shape[-1])


def _idx(folder: Path, name: str) -> torch.Tensor:
    """Reads a file of the idx format: a header of big-endian sizes, then unsigned bytes."""
    plain, packed = folder / name, folder / f"{name}.gz"
    if plain.is_file():
        content = plain.read_bytes()
    elif packed.is_file():
        content = gzip.decompress(packed.read_bytes())
    else:
        raise SystemExit(f"no {name} and no {name}.gz in {folder}")
    zero, kind, dimensions = struct.unpack_from(">HBB", content)
    sizes = struct.unpack_from(f">{dimensions}I", content, 4)
    body = torch.frombuffer(bytearray(content[4 + 4 * dimensions :]), dtype=torch.uint8)
    if zero != 0 or kind != _UNSIGNED_BYTES or body.numel() != torch.Size(sizes).numel():
        raise SystemExit(f"{name} in {folder} is no idx file of unsigned bytes")
    return body.view(sizes)
