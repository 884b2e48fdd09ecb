"""``Checkpoint``: the complete state of a run in one file, to resume it bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from popdist_torch.checkpoint import file, parts
from popdist_torch.checkpoint.parts import Job
from popdist_torch.errors import CheckpointError
from popdist_torch.executor.executor import Executor

if TYPE_CHECKING:
    import os

_FORMAT = 1


class Checkpoint:
    """The state of a run: saved by instance 0, atomically; loaded by all instances.

    It holds weights, optimizer state, each replica's random stream and buffers, each instance's
    place in the data, and the host's random streams (torch's, Python's and numpy's). A run that
    loads it goes on with the very numbers of a run that was never interrupted. The file is read by
    instance 0 alone, so hosts need no common file system.

    Args:
        path: The file.
        **kept: What is saved, under names of the program's choice: a training model (with its
            optimizer), or a module and an optimizer of a plain loop; a loader; a scheduler; or
            anything with ``state_dict`` and ``load_state_dict``.

    Raises:
        CheckpointError: Something cannot be saved and loaded.
    """

    def __init__(self, path: str | os.PathLike[str], **kept: Any) -> None:
        parts.require_parts(kept)
        self._path = Path(path)
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
        job = Job.joined(self._processes)
        job.meet("Checkpoint.save()")
        own = {name: parts.own(part) for name, part in self._parts.items()}
        mine = file.packed({"parts": own, "random": file.state()}, ", ".join(own) or "nothing")
        everyone = job.gathered(mine)
        job.on_first(lambda: self._write(everyone, values))

    def load(self) -> dict[str, Any] | None:
        """Brings everything to the saved state; all instances must call it, before they train.

        Returns:
            The values that `save` was given; None where there is no file yet.

        Raises:
            CheckpointError: The file is damaged, holds other things, or is of another layout of
                instances. It is raised on all instances, and nothing has been changed.
        """
        job = Job.joined(self._processes)
        job.meet("Checkpoint.load()")
        content = job.from_first(job.on_first(self._bytes) or b"")
        if not content:
            return None
        saved = file.unpacked(content)
        self._require_fitting(saved, job)
        for name, part in self._parts.items():
            each = [instance["parts"][name] for instance in saved["instances"]]
            parts.load(part, saved["shared"][name], each, job.index)
        file.restore(saved["instances"][job.index]["random"])
        values: dict[str, Any] = saved["values"]
        return values

    def read(self) -> dict[str, Any]:
        """The file's content as it is, for programs that want only some of it.

        Returns:
            ``shared`` with what is equal on all instances, such as the ``module`` of a training
            model; ``instances`` with what was each one's own; ``values``.

        Raises:
            CheckpointError: It is not there, or damaged.
        """
        content = file.read(self._path)
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise CheckpointError(
                "PD307",
                f"{self._path} is no checkpoint",
                accepted="a file that Checkpoint.save wrote",
            )
        return content

    def _write(self, everyone: list[bytes], values: dict[str, Any]) -> None:
        file.packed(values, "the values given to save")
        file.write(
            self._path,
            {
                "format": _FORMAT,
                "shared": {name: parts.shared(part) for name, part in self._parts.items()},
                "instances": [file.unpacked(content) for content in everyone],
                "values": values,
            },
        )

    def _bytes(self) -> bytes:
        if not self._path.exists():
            return b""
        self.read()  # a file that cannot be used is found before it travels
        return self._path.read_bytes()

    def _require_fitting(self, saved: dict[str, Any], job: Job) -> None:
        seen, wanted = sorted(saved["shared"]), sorted(self._parts)
        if seen != wanted:
            raise CheckpointError(
                "PD307",
                f"the checkpoint {self._path} holds other things than this program keeps",
                value=seen,
                accepted=str(wanted),
            )
        if len(saved["instances"]) != job.count:
            raise CheckpointError(
                "PD307",
                f"the checkpoint {self._path} is of another layout of instances",
                value=f"{len(saved['instances'])} instances then, {job.count} now",
                hint="resume with as many instances as before; read()['shared'] has the weights "
                "for a run that need not be bit-identical",
            )
