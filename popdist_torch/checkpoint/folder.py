"""The sharded form of a checkpoint: a folder in which each instance writes its part.

One save is a subfolder with a file per instance and an index; a small file names the current one.
Tensors that are equal on all instances are written once, each by one of them.
"""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from popdist_torch.checkpoint import file
from popdist_torch.errors import CheckpointError
from popdist_torch.memory import dense_parts, size

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from popdist_torch.checkpoint.parts import Instances

CURRENT = "current"
"""The file with the name of the save that is complete."""

_INDEX = "index.pt"
_FILES = re.compile(r"(index|instance-\d+)\.pt|\.(index|instance-\d+)\.pt\.unfinished")


def write(path: Path, job: Instances, shared: Any, private: Collection[str], content: Any) -> None:
    """Writes a save; all instances must call it.

    A job that is killed at any moment leaves the save before, or this one.

    Args:
        path: The folder.
        job: The instances.
        shared: What is equal on all of them; nested, with tensors.
        private: Paths of tensors in it that differ after all, of which instance 0's are kept.
        content: ``own``, what only this instance has, and ``index``, what is written once.

    Raises:
        CheckpointError: Something cannot be written; raised on all instances.
    """
    tensors = _tensors(shared)
    begun = job.on_first(lambda: _begin(path, tensors, private, job.count))
    name, owners = json.loads(job.from_first(json.dumps(begun).encode()))
    save = path / name
    mine = {key: _compact(tensors[key]) for key, owner in owners.items() if owner == job.index}
    job.on_each(
        lambda: file.write(_part(save, job.index), {"own": content["own"], "tensors": mine})
    )
    job.on_first(lambda: _finish(path, name, job.count, {**content["index"], **_rest(shared)}))


def read(path: Path) -> dict[str, Any]:
    """The content of the current save, in the merged form: ``shared``, ``instances`` and others.

    Raises:
        CheckpointError: There is none, or a file of it is damaged or not there.
    """
    try:
        name = (path / CURRENT).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise CheckpointError(
            "PD307",
            f"the checkpoint {path} cannot be read",
            value=str(error),
            accepted="a folder that Checkpoint.save wrote",
        ) from error
    index = file.read(path / name / _INDEX)
    parts = [file.read(_part(path / name, number)) for number in range(index.pop("count"))]
    tensors: dict[str, torch.Tensor] = {}
    for part in parts:
        tensors |= part["tensors"]
    leaves, spec = pytree.tree_flatten(index.pop("rest"))
    for position, key in index.pop("places"):
        leaves[position] = tensors[key]
    shared = pytree.tree_unflatten(leaves, spec)
    return {**index, "shared": shared, "instances": [part["own"] for part in parts]}


def _compact(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without the rest of the memory that it is a view of, which torch would save."""
    whole = all(part.untyped_storage().nbytes() == part.nbytes for part in dense_parts(tensor))
    return tensor.detach() if whole else tensor.detach().clone()


def _tensors(shared: Any) -> dict[str, torch.Tensor]:
    named, _ = pytree.tree_flatten_with_path(shared)
    return {pytree.keystr(p): leaf for p, leaf in named if isinstance(leaf, torch.Tensor)}


def _rest(shared: Any) -> dict[str, Any]:
    """Everything but the tensors, and the places among all leaves where they belong."""
    named, spec = pytree.tree_flatten_with_path(shared)
    places = [
        [position, pytree.keystr(path)]
        for position, (path, leaf) in enumerate(named)
        if isinstance(leaf, torch.Tensor)
    ]
    leaves = [None if isinstance(leaf, torch.Tensor) else leaf for _, leaf in named]
    return {"rest": pytree.tree_unflatten(leaves, spec), "places": places}


def _begin(
    path: Path, tensors: Mapping[str, torch.Tensor], private: Collection[str], count: int
) -> tuple[str, dict[str, int]]:
    """Makes the folder of a save; returns its name, and who writes each tensor."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        past = (path / CURRENT).read_text(encoding="utf-8") if (path / CURRENT).exists() else "0"
        number = int(past) + 1
        while not _may_become_save(path / str(number)):
            number += 1
        name = str(number)
        if _is_save(path / name):  # a killed job had begun it
            shutil.rmtree(path / name)
        (path / name).mkdir(exist_ok=True)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            "PD307",
            f"the checkpoint {path} cannot be written; an earlier one is as it was",
            value=str(error),
            hint="give a folder that may be written to and holds nothing else",
        ) from error
    loads, owners = [0] * count, {}
    for key, tensor in sorted(tensors.items(), key=lambda item: -size(item[1])):
        owner = 0 if key in private else loads.index(min(loads))
        owners[key], loads[owner] = owner, loads[owner] + size(tensor)
    return name, owners


def _finish(path: Path, name: str, count: int, index: dict[str, Any]) -> None:
    absent = [number for number in range(count) if not _part(path / name, number).exists()]
    if absent:
        raise CheckpointError(
            "PD325",
            "a sharded checkpoint needs a folder that all instances have in common",
            value=f"instance 0 does not find what {len(absent)} instances wrote in {path / name}, "
            f"the first of them instance {absent[0]}",
            accepted="a folder on a file system that all hosts have mounted",
            hint="leave out sharded=True: instance 0 then writes one file",
        )
    file.write(path / name / _INDEX, {**index, "count": count})
    file.write_bytes(path / CURRENT, name.encode())
    for other in path.iterdir():
        if other.name.isdigit() and other.name != name and _is_save(other):
            shutil.rmtree(other, ignore_errors=True)


def _may_become_save(folder: Path) -> bool:
    if folder.is_symlink() or not folder.exists():
        return not folder.is_symlink()
    return _is_save(folder) or (folder.is_dir() and not any(folder.iterdir()))


def _is_save(folder: Path) -> bool:
    """Whether a folder has files of a save only; other folders are the user's."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    files = list(folder.iterdir())
    return bool(files) and all(_FILES.fullmatch(one.name) and one.is_file() for one in files)


def _part(save: Path, index: int) -> Path:
    return save / f"instance-{index}.pt"
