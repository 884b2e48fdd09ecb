"""Handwritten digits for the examples: scikit-learn's own set, or MNIST files where given.

Nothing is downloaded: scikit-learn ships 1797 real digits of 8 x 8 pixels (UCI, 1998).
"""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

MNIST_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_TEST_DIGITS = 297  # leaves 1500 of the 1797 to train on
_UNSIGNED_BYTES = 8  # the idx format's code of the element type


@dataclass(frozen=True)
class Part:
    """Images with labels.

    Attributes:
        images: float32 [n, side, side] in 0..1.
        labels: int64 [n].
    """

    images: NDArray[np.float32]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Digits:
    """Digits, split for training and testing.

    Attributes:
        name: Where they come from.
        train: To train on.
        test: To test on.
        side: Pixels per side.
    """

    name: str
    train: Part
    test: Part
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
        train = _part(images / 255, labels)
        return Digits(f"MNIST in {mnist}", train, _part(test_images / 255, test_labels), 28)
    from sklearn.datasets import load_digits

    bunch = load_digits()
    # The set is ordered by writer; every writer should be in both parts.
    order = np.random.default_rng(0).permutation(len(bunch.target))
    train, test = (
        _part(bunch.images[part] / 16, bunch.target[part])
        for part in (order[_TEST_DIGITS:], order[:_TEST_DIGITS])
    )
    return Digits("scikit-learn's handwritten digits", train, test, 8)


def _part(images: NDArray[np.float64], labels: NDArray[np.integer[Any]]) -> Part:
    return Part(np.ascontiguousarray(images, dtype=np.float32), labels.astype(np.int64))


def _idx(folder: Path, name: str) -> NDArray[np.uint8]:
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
    body = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions)
    if zero != 0 or kind != _UNSIGNED_BYTES or body.size != np.prod(sizes):
        raise SystemExit(f"{name} in {folder} is no idx file of unsigned bytes")
    return body.reshape(sizes)
