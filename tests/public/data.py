"""Generated data for public programs: ``python data.py NAME ARGUMENTS``.

A program's manifest names the calls, which run in the program's folder. Nothing is downloaded.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

_RNG = np.random.default_rng(7)


def bert_records(path: str, count: str, length: str = "128", masked: str = "20") -> None:
    """Writes masked sentences as TFRecord with an index, in the form of BERT's pretraining data."""
    from tfrecord.tools.tfrecord2idx import create_index
    from tfrecord.writer import TFRecordWriter

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    writer = TFRecordWriter(path)
    for _ in range(int(count)):
        words = _RNG.integers(5, 200, int(length))
        positions = np.sort(_RNG.choice(int(length), int(masked), replace=False))
        row = {
            "input_ids": np.where(np.isin(np.arange(int(length)), positions), 4, words),
            "input_mask": np.ones(int(length), int),
            "segment_ids": np.arange(int(length)) // (int(length) // 2),
            "masked_lm_positions": positions,
            "masked_lm_ids": words[positions],
            "next_sentence_labels": _RNG.integers(0, 2, 1),
        }
        writer.write({name: (value.tolist(), "int") for name, value in row.items()})
    writer.close()
    create_index(path, path.replace(".tfrecord", ".index"))


def bert_samples(path: str, count: str, length: str, masked: str, words: str) -> None:
    """Writes masked sentences as whole numbers, in the form of the data of PopART's BERT."""
    rows, size, hidden = int(count), int(length), int(masked)
    parts = [
        _RNG.integers(5, int(words), (rows, size)),  # words
        np.tile(np.arange(size), (rows, 1)),  # positions
        np.tile(np.arange(size) // (size // 2), (rows, 1)),  # segments
        np.full((rows, 1), hidden),
        np.full((rows, 1), size),
        _RNG.integers(5, int(words), (rows, hidden)),  # masked words
        _RNG.integers(0, 2, (rows, 1)),  # whether a sentence follows the other
    ]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    np.concatenate(parts, axis=1).astype(np.uint32).tofile(path)


def library(path: str) -> None:
    """Writes the library that a program loads for its custom operators."""
    from popdist.sdk.loadable import write

    write([path])


def images(folder: str, classes: str, count: str, size: str = "256") -> None:
    """Writes pictures of noise, in a folder for each class."""
    from PIL import Image

    for kind in range(int(classes)):
        place = Path(folder) / f"n{kind:08}"
        place.mkdir(parents=True, exist_ok=True)
        for number in range(int(count)):
            coarse = _RNG.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            picture = Image.fromarray(coarse).resize((int(size), int(size)))
            picture.save(place / f"{kind}-{number}.JPEG")


def vit(folder: str, width: str, layers: str, heads: str, inner: str) -> None:
    """Writes a vision transformer with random weights, as a checkpoint of transformers."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(1)
    config = ViTConfig(
        hidden_size=int(width),
        num_hidden_layers=int(layers),
        num_attention_heads=int(heads),
        intermediate_size=int(inner),
        num_labels=10,
    )
    ViTForImageClassification(config).save_pretrained(folder)


def graphs(folder: str, count: str) -> None:
    """Writes small rings with random labels, in the form of the TU data sets."""
    place = Path(folder)
    place.joinpath("raw").mkdir(parents=True, exist_ok=True)
    edges: list[str] = []
    owners: list[int] = []
    for number in range(int(count)):
        size = int(_RNG.integers(4, 12))
        first = len(owners) + 1
        for node in range(size):
            one, other = first + node, first + (node + 1) % size
            edges += [f"{one}, {other}", f"{other}, {one}"]
        owners += [number + 1] * size
    kinds = np.arange(len(owners)) % 3
    columns = {
        "A": edges,
        "graph_indicator": owners,
        "graph_labels": np.arange(int(count)) % 2,
        "node_labels": kinds,
        "node_attributes": kinds / 2.0,
    }
    for name, rows in columns.items():
        text = "".join(f"{row}\n" for row in rows)
        place.joinpath("raw", f"{place.name}_{name}.txt").write_text(text)


def main(name: str, *arguments: str) -> None:
    """Calls one function of this module."""
    globals()[name.replace("-", "_")](*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
