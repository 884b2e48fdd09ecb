"""Generated data for public programs: ``python data.py NAME ARGUMENTS``.

A program's manifest names the calls, which run in the program's folder. Nothing is downloaded.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import texts
from texts import ipu_config, merges

if TYPE_CHECKING:
    from collections.abc import Iterator

_RNG = np.random.default_rng(7)


def library(*paths: str) -> None:
    """Writes the libraries that a program loads for its custom operators."""
    from popdist.sdk.loadable import write

    write([*paths])


def cython(path: str) -> None:
    """Compiles a module of Cython in its place."""
    import os

    from Cython.Build import Cythonize

    os.environ["CFLAGS"] = f"-I{np.get_include()}"
    Cythonize.main(["-i", "-3", path])


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


def boxes(path: str, count: str, size: str = "64") -> None:
    """Writes pictures of noise with labelled boxes, and the list of them, in the form of COCO."""
    place = Path(path).parent
    images(str(place / "images"), "1", count, size)
    pictures = sorted(place.glob("images/*/*"))
    for picture in pictures:
        label = place / "labels" / picture.relative_to(place / "images").with_suffix(".txt")
        label.parent.mkdir(parents=True, exist_ok=True)
        rows = (
            f"{_RNG.integers(80)} {x:.3f} {y:.3f} 0.2 0.3"
            for x, y in _RNG.uniform(0.3, 0.7, (3, 2))
        )
        label.write_text("".join(f"{row}\n" for row in rows))
    Path(path).write_text("".join(f"{picture.absolute()}\n" for picture in pictures))


def captioned(folder: str, count: str) -> None:
    """Writes pictures of noise, and beside each a file with a sentence."""
    images(folder, "1", count, "256")
    for picture in Path(folder).glob("*/*"):
        picture.rename(picture.with_suffix(".jpg"))
        picture.with_suffix(".txt").write_text(
            " ".join(_RNG.choice(["a", "red", "dog", "tree"], 5))
        )


def vqgan(folder: str, width: str = "32", words: str = "64") -> None:
    """Writes a small VQGAN with random weights, and its settings, for taming-transformers."""
    import torch
    import yaml
    from taming.models.vqgan import VQModel

    torch.manual_seed(1)
    shape = {
        "double_z": False,
        "z_channels": int(width),
        "resolution": 256,
        "in_channels": 3,
        "out_ch": 3,
        "ch": int(width),
        "ch_mult": [1] * 5,
        "num_res_blocks": 1,
        "attn_resolutions": [16],
        "dropout": 0.0,
    }
    parts = {
        "embed_dim": int(width),
        "n_embed": int(words),
        "ddconfig": shape,
        "lossconfig": {"target": "taming.modules.losses.vqperceptual.DummyLoss"},
    }
    place = Path(folder)
    place.mkdir()
    torch.save({"state_dict": VQModel(**parts).state_dict()}, place / "model.ckpt")
    settings = {"model": {"target": "taming.models.vqgan.VQModel", "params": parts}}
    place.joinpath("config.yml").write_text(yaml.safe_dump(settings))


def vision_model(folder: str, size: str = "32") -> None:
    """Writes a small ViT with random weights, its image processor, and settings for one IPU."""
    import torch
    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    torch.manual_seed(1)
    shape = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32}
    config = ViTConfig(image_size=int(size), patch_size=8, intermediate_size=64, **shape)
    ViTModel(config).save_pretrained(folder)
    side = {"height": int(size), "width": int(size)}
    ViTImageProcessor(size=side).save_pretrained(folder)
    ipu_config(folder, "2")


def folder(path: str) -> None:
    """Makes an empty folder."""
    Path(path).mkdir(parents=True)


def films(folder: str, count: str, people: str = "60", words: str = "16") -> None:
    """Writes films with directors and actors at random, in the form of PyG's IMDB."""
    from scipy import sparse

    raw = Path(folder) / "raw"
    raw.mkdir(parents=True)
    films, each = int(count), int(people)
    total = films + 2 * each
    links = sparse.lil_matrix((total, total))
    for film in range(films):
        for first in (films, films + each):  # of the directors, and of the actors
            person = first + int(_RNG.integers(each))
            links[film, person] = links[person, film] = 1
    sparse.save_npz(raw / "adjM.npz", links.tocsr())
    for kind, rows in enumerate((films, each, each)):
        features = _RNG.integers(0, 2, (rows, int(words))).astype(np.float64)
        sparse.save_npz(raw / f"features_{kind}.npz", sparse.csr_matrix(features))
    np.save(raw / "labels.npy", np.arange(films) % 3)
    order = _RNG.permutation(films)
    parts = {"train_idx": order[:40], "val_idx": order[40:80], "test_idx": order[80:]}
    np.savez(raw / "train_val_test_idx.npz", **parts)


def posts(folder: str, count: str, words: str = "16", kinds: str = "5") -> None:
    """Writes posts with random links, in the form of PyG's Reddit."""
    from scipy import sparse

    raw = Path(folder) / "raw"
    raw.mkdir(parents=True)
    total = int(count)
    ends = _RNG.integers(0, total, (2, 4 * total))
    links = sparse.coo_matrix((np.ones(ends.shape[1]), ends), shape=(total, total))
    sparse.save_npz(raw / "reddit_graph.npz", links)
    np.savez(
        raw / "reddit_data.npz",
        feature=_RNG.normal(size=(total, int(words))).astype(np.float32),
        label=np.arange(total) % int(kinds),
        node_types=1 + np.arange(total) % 3,
    )


def relations(folder: str, count: str, nodes: str = "12", kinds: str = "3") -> None:
    """Writes random triples of heads, relations and tails, in the form of FB15k-237's splits."""
    place = Path(folder) / "raw"
    place.mkdir(parents=True)
    for name in ("train_ind", "test_ind", "train", "valid"):
        ends = _RNG.integers(0, int(nodes), (int(count), 2))
        rows = (f"n{head}\tr{i % int(kinds)}\tn{tail}\n" for i, (head, tail) in enumerate(ends))
        place.joinpath(f"{name}.txt").write_text("".join(rows))
    names = "".join(f"{kind}\tr{kind}\n" for kind in range(int(kinds)))
    place.joinpath("relations.dict").write_text(names)


def events(path: str, count: str, users: str = "30", items: str = "10") -> None:
    """Writes edits of pages by users, in the form of the JODIE data sets."""
    Path(path).parent.mkdir(parents=True)
    rows = ["user_id,item_id,timestamp,state_label,features"]
    for moment in range(int(count)):
        user = _RNG.integers(int(users)) if moment else int(users) - 1
        item = _RNG.integers(int(items)) if moment else int(items) - 1
        message = ",".join(f"{value:.3f}" for value in _RNG.normal(size=172))
        rows.append(f"{user},{item},{float(moment)},0,{message}")
    Path(path).write_text("\n".join(rows) + "\n")


def ratings(path: str, count: str, users: str = "64", items: str = "32") -> None:
    """Writes ratings from 1 to 5 of items by users, at random, as rows of numbers."""
    rows = _RNG.integers([0, 0, 1], [int(users), int(items), 6], (int(count), 3))
    np.savetxt(path, rows, fmt="%d", delimiter="\t")


def sentences(folder: str, count: str, length: str = "20", frames: str = "3") -> None:
    """Writes spoken sentences as arrays, in FastPitch's form, and the mean of the pitch."""
    place = Path(folder)
    place.mkdir(parents=True)
    size, steps = int(length), int(frames)
    for number in range(int(count)):
        row = np.empty(6, object)
        row[0] = _RNG.integers(1, 100, size)
        row[1] = _RNG.normal(size=(80, size * steps)).astype(np.float32)
        row[2] = size
        row[3] = np.full(size, steps)
        row[4] = _RNG.normal(size=size).astype(np.float32)
        row[5] = 0
        np.save(place / f"{number}.npy", row)
    place.with_suffix(".json").write_text('{"mean": 0.0, "std": 1.0}')


def captions(folder: str, count: str) -> None:
    """Writes pictures of noise with sentences, and the merges of a tokenizer, in CLIP's form."""
    images(f"{folder}/images", "1", count)
    names = sorted(path.name for path in Path(folder).glob("images/*/*"))
    for name in names:
        Path(folder, "images", "n00000000", name).rename(Path(folder, "images", name))
    words = np.array(["red", "green", "dog", "tree", "a", "the", "near"])
    rows = (f"{name}\t{' '.join(_RNG.choice(words, 5))}\n" for name in names)
    Path(folder, "captions.csv").write_text("".join(rows))
    merges(f"{folder}/merges.txt.gz")


def settings(source: str, target: str, *changes: str) -> None:
    """Writes settings in YAML or JSON with other values: ``settings a.yml b.yml part.key=3``."""
    import json

    import yaml

    content = Path(source).read_text()
    # YAML takes 5e-5 for a word.
    found = json.loads(content) if source.endswith(".json") else yaml.safe_load(content)
    for change in changes:
        names, _, value = change.partition("=")
        *parts, last = names.split(".")
        place = found
        for part in parts:
            place = place[int(part) if isinstance(place, list) else part]
        place[last] = yaml.safe_load(value)
    dump = json.dumps if target.endswith(".json") else yaml.safe_dump
    Path(target).write_text(dump(found))


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


def citations(folder: str, count: str = "1600", words: str = "64", kinds: str = "7") -> None:
    """Writes papers that cite each other at random, in the form of the Planetoid data sets."""
    import pickle

    raw = Path(folder) / "raw"
    raw.mkdir(parents=True)
    total, labelled, tested = int(count), 20 * int(kinds), 500
    features = _RNG.integers(0, 2, (total, int(words))).astype(np.float32)
    labels = np.eye(int(kinds), dtype=np.int32)[np.arange(total) % int(kinds)]
    first = total - tested
    parts = {
        "x": features[:labelled],
        "y": labels[:labelled],
        "allx": features[:first],
        "ally": labels[:first],
        "tx": features[first:],
        "ty": labels[first:],
        "graph": {node: _RNG.integers(0, total, 3).tolist() for node in range(total)},
    }
    prefix = f"ind.{Path(folder).name.lower()}"
    for name, value in parts.items():
        raw.joinpath(f"{prefix}.{name}").write_bytes(pickle.dumps(value))
    rows = "".join(f"{row}\n" for row in range(first, total))
    raw.joinpath(f"{prefix}.test.index").write_text(rows)


def molecules(folder: str, count: str) -> None:
    """Writes random molecules in the form of the prepared file of QM9."""
    import torch

    torch.manual_seed(1)
    rows = []
    for number in range(int(count)):
        size = int(_RNG.integers(4, 12))
        nodes = torch.arange(size)
        pairs = torch.stack([nodes, nodes.roll(1)])
        rows.append(
            {
                "x": torch.rand(size, 11),
                "z": torch.tensor([1, 6, 7, 8, 9])[torch.randint(5, (size,))],
                "pos": torch.randn(size, 3),
                "edge_index": torch.cat([pairs, pairs.flip(0)], 1),
                "edge_attr": torch.eye(4)[torch.randint(4, (2 * size,))],
                "y": torch.randn(1, 19),
                "smiles": "C",
                "name": f"molecule {number}",
                "idx": number,
            }
        )
    raw = Path(folder) / "raw"
    raw.mkdir(parents=True)
    torch.save(rows, raw / "qm9_v3.pt")


def tfds_pictures(folder: str, count: str) -> None:
    """Writes pictures of noise in the form of the CIFAR-10 of tensorflow-datasets."""
    import tensorflow_datasets as tfds

    class Cifar10(tfds.image_classification.Cifar10, skip_registration=True):  # type: ignore[misc] # not known here
        def _split_generators(self, _manager: Any) -> dict[str, Any]:
            return {"train": self._rows(int(count)), "test": self._rows(int(count) // 2)}

        def _rows(self, total: int) -> Iterator[tuple[str, dict[str, Any]]]:
            for row in range(total):
                image = _RNG.integers(0, 256, (32, 32, 3)).astype(np.uint8)
                yield f"{row}", {"id": f"{row}", "image": image, "label": row % 10}

    Cifar10(data_dir=folder).download_and_prepare()


def mnist(folder: str, count: str) -> None:
    """Files of MNIST's form: pictures with a bright row or column for each class."""
    rng = np.random.default_rng(0)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for kind, rows in (("train", int(count)), ("t10k", int(count) // 4)):
        labels = rng.integers(0, 10, rows)
        pictures = rng.integers(0, 40, (rows, 28, 28), dtype=np.uint8)
        pictures[np.arange(rows), 2 * labels + 4] = 255
        heads = ([2051, rows, 28, 28], pictures), ([2049, rows], labels.astype(np.uint8))
        for (head, content), name in zip(heads, ("images-idx3", "labels-idx1"), strict=True):
            path = Path(folder, f"{kind}-{name}-ubyte")
            path.write_bytes(np.array(head, ">i4").tobytes() + content.tobytes())


def toymix(folder: str, count: str) -> None:
    """Writes small chains of atoms with random labels, in the form of graphium's ToyMix."""
    import pandas as pd
    import torch

    place = Path(folder)
    place.mkdir(parents=True)
    energies = [f"{name}{end}" for name in ("u0", "u298", "h298", "g298") for end in ("", "_atom")]
    moments = ["A", "B", "C", "mu", "alpha", "homo", "lumo", "gap", "r2", "zpve", "cv"]
    receptors = ["AR", "AR-LBD", "AhR", "Aromatase", "ER", "ER-LBD", "PPAR-gamma"]
    stresses = ["ARE", "ATAD5", "HSE", "MMP", "p53"]
    columns = {
        "qm9": [*moments, *energies],
        "Tox21": [*(f"NR-{name}" for name in receptors), *(f"SR-{name}" for name in stresses)],
        "ZINC12k": ["SA", "logp", "score"],
    }
    rows = int(count)
    order = _RNG.permutation(rows).tolist()
    parts = {"train": order[: -rows // 2], "val": order[-rows // 2 : -rows // 4]}
    for name, labels in columns.items():
        atoms = [_RNG.choice(["C", "N", "O", "C(C)"], _RNG.integers(3, 9)) for _ in range(rows)]
        table = pd.DataFrame({"smiles": ["".join(row) for row in atoms]})
        for label in labels:
            table[label] = _RNG.integers(0, 2, rows) if name == "Tox21" else _RNG.normal(size=rows)
        file = "Tox21-7k-12-labels" if name == "Tox21" else name
        table.to_csv(place / f"{file}.csv.gz", index=False)
        torch.save({**parts, "test": order[-rows // 4 :]}, place / f"{name}_random_splits.pt")


def standin(name: str) -> None:
    """Copies a module of the runner's stand-ins, which only this program needs."""
    import shutil

    shutil.copy(Path(__file__).parent / "standins" / name, ".")


def trainer_losses(kind: str) -> None:
    """Writes the losses that transformers' Trainer has; see `tests.public.trainers`."""
    from trainers import write_losses

    write_losses(kind)


def main(name: str, *arguments: str) -> None:
    """Calls one function of this module, or of `texts`."""
    known = {**vars(texts), **globals()}
    known[name.replace("-", "_")](*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
