"""``Checkpoint``: the complete state of a run, in a file or a folder, to resume it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popdist_torch.checkpoint import file, folder, parts
from popdist_torch.checkpoint.parts import Instances, Move
from popdist_torch.data.loader import DataLoader
from popdist_torch.errors import CheckpointError
from popdist_torch.executor.executor import Executor

if TYPE_CHECKING:
    import os

    from popdist_torch.data.partition import Layout

_FORMAT = 2
_FOLDER = b"folder"


class Checkpoint:
    """The state of a run: saved atomically, and loaded by all instances.

    It holds weights, optimizer state, each replica's random stream and buffers, each instance's
    place in the data, and the host's random streams (torch's, Python's and numpy's). A run that
    loads it continues with the same numbers as an uninterrupted run. The number of instances may
    change, if the job has the same number of replicas; training models then need
    ``placement_invariant=True`` for the same bits.

    In the merged form, instance 0 alone writes and reads one file, so hosts need no common file
    system. In the sharded form each instance writes its part into a folder: weights and optimizer
    states are divided over them. `load` takes either form, whatever ``sharded`` says.

    Args:
        path: The file, or the folder.
        sharded: Whether `save` writes a folder, on a file system that all instances have in common.
        **kept: What is saved, under names of the program's choice: a training model (with its
            optimizer), or a module and an optimizer of a plain loop; a loader; a scheduler; or
            anything with ``state_dict`` and ``load_state_dict``.

    Raises:
        CheckpointError: Something cannot be saved and loaded.
    """

    def __init__(self, path: str | os.PathLike[str], *, sharded: bool = False, **kept: Any) -> None:
        parts.require_parts(kept)
        self._path = Path(path)
        self._sharded = sharded
        self._parts = kept
        counts = [
            part.options.placement.num_processes
            for part in kept.values()
            if isinstance(part, Executor)
        ]
        self._processes: int | None = max(counts, default=None)

    def save(self, **values: Any) -> None:
        """Saves the present state, over what the file held; all instances must call it.

        It may be called anywhere between two updates, within an epoch too.

        Args:
            **values: Numbers and text of the program's own, such as the epoch; those of instance 0
                are kept.

        Raises:
            CheckpointError: The state cannot be kept, or the file not be written. It is raised on
                all instances, and the file is as it was.
        """
        job = Instances.connected(self._processes)
        job.meet("Checkpoint.save()")
        own = {name: parts.own(part) for name, part in self._parts.items()}
        place = self._place(job)
        content = {"parts": own, "random": file.state(), "place": place}
        if self._sharded:
            about = {"format": _FORMAT, "values": values}
            job.on_first(lambda: file.packed(values, "the values given to save"))
            kept = job.on_each(lambda: file.packed(content, ", ".join(own) or "nothing"))
            folder.write(
                self._path,
                job,
                self._shared(),
                parts.private(self._parts),
                {"own": file.unpacked(kept), "index": about},
            )
            return
        everyone = job.gathered(file.packed(content, ", ".join(own) or "nothing"))
        job.on_first(lambda: self._write(everyone, values))

    def load(self) -> dict[str, Any] | None:
        """Brings everything to the saved state; all instances must call it, before they train.

        Returns:
            The values that `save` was given; None where there is no file yet.

        Raises:
            CheckpointError: The file is damaged, holds other things, is of another number of
                replicas, or holds what another layout of instances cannot resume. It is raised on
                all instances, and nothing has been changed.
        """
        job = Instances.connected(self._processes)
        job.meet("Checkpoint.load()")
        form = job.from_first(job.on_first(self._form) or b"")
        if not form:
            return None
        if form == _FOLDER:
            saved = job.on_each(self.read)
        else:
            saved = file.unpacked(job.from_first(job.on_first(self._bytes) or b""))
        place = json.dumps(self._place(job)).encode()
        present = [json.loads(content) for content in job.gathered(place)]
        move = job.on_each(lambda: self._fitting(saved, present, job.index))
        # Loaders refuse what they cannot resume, so they come before anything is changed.
        ordered = sorted(
            self._parts, key=lambda name: not isinstance(self._parts[name], DataLoader)
        )
        for name in ordered:
            part = self._parts[name]
            each = [instance["parts"][name] for instance in saved["instances"]]
            parts.load(part, saved["shared"][name], each, move)
        states = [instance["random"] for instance in saved["instances"]]
        file.restore(file.moved(states, move.owner, move.offset))
        values: dict[str, Any] = saved["values"]
        return values

    def read(self) -> dict[str, Any]:
        """The content as it is, for programs that want only some of it; one process may call it.

        Returns:
            ``shared`` with what is equal on all instances, such as the ``module`` of a training
            model; ``instances`` with what was each one's own; ``values``.

        Raises:
            CheckpointError: It is not there, or damaged.
        """
        whole = folder.read if self._path.is_dir() else file.read
        content = whole(self._path)
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise CheckpointError(
                "PD307",
                f"{self._path} is not a checkpoint",
                accepted="a file that Checkpoint.save wrote",
            )
        return content

    def merge(self, path: str | os.PathLike[str]) -> None:
        """Writes a sharded checkpoint as one file; one process may call it.

        Args:
            path: The file. A `Checkpoint` of this path loads it.

        Raises:
            CheckpointError: The folder cannot be read, or the file not be written.
        """
        file.write(Path(path), self.read())

    def _shared(self) -> dict[str, Any]:
        return {name: parts.shared(part) for name, part in self._parts.items()}

    def _place(self, job: Instances) -> list[int]:
        places = [parts.place_of(part) for part in self._parts.values()]
        return next((place for place in places if place is not None), [job.index, 1])

    def _write(self, everyone: list[bytes], values: dict[str, Any]) -> None:
        file.packed(values, "the values given to save")
        file.write(
            self._path,
            {
                "format": _FORMAT,
                "shared": self._shared(),
                "instances": [file.unpacked(content) for content in everyone],
                "values": values,
            },
        )

    def _form(self) -> bytes:
        """Whether there is a file or a folder; nothing where there is neither."""
        if self._path.is_dir():
            return _FOLDER if (self._path / folder.CURRENT).exists() else b""
        return b"file" if self._path.exists() else b""

    def _bytes(self) -> bytes:
        self.read()  # a file that cannot be used is found before it travels
        return self._path.read_bytes()

    def _fitting(self, saved: dict[str, Any], present: Layout, index: int) -> Move:
        """How this instance takes its state from those that saved.

        Raises:
            CheckpointError: The checkpoint is of something else.
        """
        seen, wanted = sorted(saved["shared"]), sorted(self._parts)
        if seen != wanted:
            raise CheckpointError(
                "PD307",
                f"the checkpoint {self._path} holds other things than this program keeps",
                value=seen,
                accepted=str(wanted),
            )
        for name, part in self._parts.items():
            parts.require_same_kind(name, part, saved["shared"][name])
        past = [instance["place"] for instance in saved["instances"]]
        if sum(local for _, local in past) != sum(local for _, local in present):
            raise CheckpointError(
                "PD307",
                f"the checkpoint {self._path} is of another number of replicas",
                value=f"{sum(local for _, local in past)} replicas then, "
                f"{sum(local for _, local in present)} now",
                hint="resume with as many replicas as before; read()['shared'] has the weights "
                "for a run that need not be bit-identical",
            )
        move = Move.between(past, present, index)
        if move.layout is not None:
            for name, part in self._parts.items():
                each = [instance["parts"][name] for instance in saved["instances"]]
                parts.require_movable(name, part, each)
        return move
