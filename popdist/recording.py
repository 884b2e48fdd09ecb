"""Weights after each update, recorded for a comparison of a job with its program alone.

``poprun --compare-alone`` names a folder in the environment. In each process, the adapter of its
framework records the weights before the first update and after each of the first updates, and what
numbers entered the model meanwhile. `popdist.comparison` reads the folder. A process ends when it
has recorded the wanted updates.

The instances of a job and the program alone divide the same numbers into different batches. So
inputs are recorded as a sum of hashes of their elements, which does not depend on the order: the
sums of all instances are those of the program alone, if they train on the same samples.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popdist.agreement import digest, numbered
from popdist.popdist_core import topology

if TYPE_CHECKING:
    from collections.abc import Iterable

PLAN = "plan.json"
"""The file that says how many updates are recorded, and by what batch sizes are multiplied."""

GIVEN = "given"
"""The file that says how many times the numbers of the program alone those of the job are."""

_FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
_64 = (1 << 64) - 1


class Recording:
    """What this process records.

    Args:
        folder: The folder of the run.

    Attributes:
        scale: What the program's batch sizes are multiplied by: 1, or the number of parts into
            which the job divides a batch.
        replicas: Replicas of the job, whose work this process does as one; 1 in the job.
        merges: Whether this process alone computes all replicas of the job as one.
        folder: The folder of the run, for what the adapter of a framework keeps.
        job: The folder of the job, for the program alone; None in the job.
        instance: The index of this instance.
    """

    def __init__(self, folder: Path) -> None:
        plan = json.loads((folder / PLAN).read_text("utf-8"))
        self.scale: int = plan["scale"]
        self.replicas = topology().compare_replicas
        self.folder = folder
        self.merges: bool = plan["merges"]
        self.job = Path(plan["job"]) if plan["job"] else None
        self.instance = topology().instance_index or 0
        self._last: int = plan["updates"]
        self._process = os.getpid()
        self._times = 0.0
        self._inputs: dict[str, list[int]] = {}
        self._types: set[str] = set()
        self._updates: dict[str, int] = {}
        self._places: dict[str, int] = {}
        # By identity; owners are kept, so that no other object gets the identity of one.
        self._owners: dict[int, tuple[int, Any]] = {}

    def note_input(self, name: str, array: Any) -> None:
        """Notes numbers that enter a model before the next update.

        Args:
            name: Of the input; equal in the job and alone.
            array: A numpy array.
        """
        if os.getpid() != self._process:  # a data worker
            return
        count, total = self._inputs.get(name, (0, 0))
        self._inputs[name] = [count + array.size, (total + _sum_of_hashes(array)) & _64]

    def note_given(self, times: float) -> None:
        """Notes how many times the numbers of the program alone those of the job are.

        Args:
            times: 1 where the program alone was given them; the largest of all calls counts.
        """
        if times > self._times:
            self._times = times
            (self.folder / GIVEN).write_text(str(times), "utf-8")

    def note_type(self, name: str) -> None:
        """Notes a type in which a model computes.

        Args:
            name: Of the type, such as ``float16``.
        """
        self._types.add(name)

    def model(self, owner: Any, kind: str) -> str:
        """The name of what updates weights, equal in the job and alone.

        Args:
            owner: An optimizer or a session.
            kind: What it is.
        """
        number, _ = self._owners.setdefault(id(owner), (len(self._owners), owner))
        return f"{kind} {number}"

    def before_update(self, model: str, weights: Iterable[tuple[str, Any]]) -> None:
        """Records the weights before the first update of a model; later calls do nothing.

        Args:
            model: Its name, as `model` gives it.
            weights: Names and numpy arrays.
        """
        if model not in self._updates and os.getpid() == self._process:
            self._updates[model] = 0
            self._write(model, weights)

    def begin_again(self, model: str) -> None:
        """Records the first weights of a model again, before its next update.

        Args:
            model: As for `before_update`.
        """
        self._updates.pop(model, None)

    def after_update(
        self,
        model: str,
        weights: Iterable[tuple[str, Any]],
        gradients: Iterable[tuple[str, Any]] = (),
    ) -> None:
        """Records the weights after an update of a model.

        Args:
            model: As for `before_update`.
            weights: As for `before_update`.
            gradients: What the update was made of, by the names of the weights, where that is
                known.

        Raises:
            SystemExit: The wanted updates are recorded; the program ends.
        """
        if os.getpid() != self._process:
            return
        self._updates[model] = self._updates.get(model, 0) + 1
        if self._updates[model] <= self._last:
            self._write(model, weights, gradients)
        if self._updates[model] >= self._last:
            raise SystemExit(0)

    def _write(
        self,
        model: str,
        weights: Iterable[tuple[str, Any]],
        gradients: Iterable[tuple[str, Any]] = (),
    ) -> None:
        update = self._updates[model]
        line: dict[str, Any] = {"model": model, "update": update, "inputs": {}}
        line["types"] = sorted(self._types)
        if update:
            line["inputs"], self._inputs = self._inputs, {}
        values = f"values.{self._places.setdefault(model, len(self._places))}.{update}"
        # All instances must have the same weights, so the values of one are enough.
        keeps = self.instance == 0
        with (self.folder / values if keeps else Path(os.devnull)).open("wb") as file:
            for kind, arrays in (("weights", weights), ("gradients", gradients)):
                line[kind] = []
                names: dict[str, int] = {}
                for name, array in arrays:
                    content = array.tobytes()
                    # Two parts of a model that the program calls one by one may have equal names.
                    own = numbered(name, names)
                    line[kind].append([own, array.dtype.name, [*array.shape], digest(content)])
                    file.write(content)
        if keeps:
            line["values"] = values
        with (self.folder / f"instance.{self.instance}").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def recording() -> Recording | None:
    """The recording of this process.

    Returns:
        The recording; None where nothing is compared.
    """
    folder = topology().compare_folder
    return None if folder is None else _opened(folder)


@cache
def _opened(folder: str) -> Recording:
    return Recording(Path(folder))


def _sum_of_hashes(array: Any) -> int:
    """A sum over the hashes of an array's elements, modulo 2**64."""
    import numpy as np  # the array is one, so it is imported already

    flat = np.ascontiguousarray(array).reshape(-1)
    size = flat.dtype.itemsize
    words = flat.view(f"u{size}" if size in (1, 2, 4, 8) else "u1").astype(np.uint64)
    words = (words + np.uint64(_FIRST)) * np.uint64(_SECOND)
    words ^= words >> np.uint64(29)
    words *= np.uint64(_FIRST)
    words ^= words >> np.uint64(32)
    return int(words.sum(dtype=np.uint64))
