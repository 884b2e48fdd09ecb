"""The comparison of a job with its program alone, from what `popdist.recording` has written.

Two trainings that start from the same weights and see the same samples in each update have the same
weights after it, but for rounding. What is compared is the distance between the weights, in parts
of the distance that the program alone has moved them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from popdist.recording import GIVEN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_TOLERANCES = {"float64": 1e-7, "complex128": 1e-7, "float32": 1e-3, "complex64": 1e-3}
_OF_HALVES = 0.05
_ULPS = 8
"""Rounding of the weights themselves, in units of their last place."""

_SEED = (
    "set a seed that is the same for each number of instances before the model is built, or load "
    "the same first weights"
)
_TRAIN = (
    "the program has to train at least one update with torch, Keras, an Estimator or popdist_onnx; "
    "see docs/compare.md"
)
_DIVIDE = (
    "the program has to divide a batch of the same samples by the number of processes: see "
    "docs/compare.md; random numbers of the data need the same seed, whatever the rank"
)


@dataclass(frozen=True)
class Update:
    """One update of one model, in the job and alone.

    Attributes:
        model: The model.
        number: The number of the update from 1 on; 0 for the first weights.
        distance: The distance between the weights of the job and those of the program alone, in
            parts of the distance that the program alone has moved them.
        tolerance: What rounding explains of it.
        gradients: The same distance between the gradients; None where they are not recorded.
        precision: What rounding explains of that.
        weight: The weight with the largest difference; empty where all are equal.
        factor: The factor between the job's update and the program's; None where there is none.
        inputs: ``"given"`` to the program alone by the job; else ``"same"``, ``"other"``, or
            ``"unknown"`` where they are not recorded.
        diverged: The weights that differ between the instances of the job.
        is_moved: Whether a weight has changed since the start, in the job or alone.
    """

    model: str
    number: int
    distance: float
    tolerance: float
    gradients: float | None = None
    precision: float = 0.0
    weight: str = ""
    factor: float | None = None
    inputs: str = "unknown"
    diverged: tuple[str, ...] = ()
    is_moved: bool = True

    @property
    def is_equal(self) -> bool:
        """Whether weights or gradients are equal but for rounding, on all instances.

        An adaptive optimizer turns a gradient that is zero but for rounding into a whole step. But
        weights that all move by one factor more are those of another learning rate.
        """
        is_sound = self.gradients is not None and self.gradients <= self.precision
        is_sound = is_sound and self.factor is None
        return (is_sound or self.distance <= self.tolerance) and not self.diverged

    @property
    def is_too_coarse(self) -> bool:
        """Whether rounding hides the update, as where weights of half precision hardly move."""
        return self.gradients is None and self.tolerance >= 1 and not self.diverged

    @property
    def result(self) -> str:
        """The result in words."""
        if self.diverged:
            return f"instances differ: {self.diverged[0]}"
        if self.is_equal and self.is_too_coarse:
            return "unknown: it is smaller than rounding"
        if self.is_equal:
            return "equal" if self.is_moved else "equal: no weight has changed"
        if self.inputs == "other":
            return "other samples"
        if self.factor is not None:
            return f"different: a factor of {self.factor:.4g}"
        return f"different: {self.weight}"


@dataclass(frozen=True)
class Comparison:
    """The comparison of a job with its program alone.

    Attributes:
        updates: Each update of each model, in the order of the program.
        problem: Why they cannot be compared; empty where they can.
        hint: What to do about a difference or a problem.
        scale: What the batch sizes of the program alone were multiplied by.
        replicas: Whether one process with the job's replicas trains like the job; None where that
            was not asked.
    """

    updates: tuple[Update, ...]
    problem: str = ""
    hint: str = ""
    scale: int = 1
    replicas: bool | None = None

    @property
    def is_equal(self) -> bool:
        """Whether the job trains like the program alone."""
        return not self.problem and all(update.is_equal for update in self.updates)

    @property
    def exit_code(self) -> int:
        """0 for equal, 1 for different, 2 where the two cannot be compared."""
        return 0 if self.is_equal else 2 if self.problem else 1

    @property
    def code(self) -> str:
        """The code of the result; empty for equal weights."""
        return ("", "PD023", "PD024")[self.exit_code]

    def __str__(self) -> str:
        heads = ("model", "update", "distance", "gradients", "tolerance", "inputs", "result")
        rows = [
            (
                update.model,
                str(update.number),
                f"{update.distance:.1e}",
                "-" if update.gradients is None else f"{update.gradients:.1e}",
                f"{update.tolerance:.1e}",
                update.inputs,
                update.result,
            )
            for update in self.updates
        ]
        table = [heads, *rows]
        widths = [max(len(row[column]) for row in table) for column in range(len(heads))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        return "\n".join([*(lines if rows else ()), *self._verdict()])

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Comparison:
        """The comparison from what `as_json` returned."""
        fields = Update.__dataclass_fields__
        updates = tuple(
            Update(
                **{name: one[name] for name in fields if name != "diverged"},
                diverged=tuple(one["diverged"]),
            )
            for one in values["updates"]
        )
        return cls(
            updates,
            values["problem"] or "",
            values["hint"] or "",
            values["scale"],
            values["replicas"],
        )

    def as_json(self) -> dict[str, Any]:
        """The comparison in plain values."""
        return {
            "equal": self.is_equal,
            "code": self.code or None,
            "problem": self.problem or None,
            "hint": self.hint or None,
            "scale": self.scale,
            "replicas": self.replicas,
            "updates": [{**asdict(one), "result": one.result} for one in self.updates],
        }

    def _verdict(self) -> list[str]:
        hint = [f"  hint:     {self.hint}"] if self.hint else []
        if self.problem:
            return [f"[PD024] {self.problem}", *hint]
        if not self.is_equal:
            first = next(update for update in self.updates if not update.is_equal)
            what = (
                f"the instances have different weights after update {first.number}"
                if first.diverged
                else "the job trains another model than the program alone, from update "
                f"{first.number} of {first.model} on"
            )
            if self.replicas:
                hint.append(
                    "  seen:     one process with the job's replicas trains like the job, so it is "
                    "the loss of a part"
                )
            return [f"[PD023] {what}", *hint]
        count = len({update.number for update in self.updates})
        what = "1 update has" if count == 1 else f"{count} updates have"
        return [f"the job trains like the program alone: {what} equal weights"]


class Run:
    """What the processes of one run have recorded.

    Args:
        folder: Its folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        files = sorted(folder.glob("instance.*"), key=lambda path: int(path.suffix[1:]))
        self.instances: list[dict[tuple[str, int], dict[str, Any]]] = []
        for path in files:
            lines = map(json.loads, path.read_text("utf-8").splitlines())
            self.instances.append({(line["model"], line["update"]): line for line in lines})

    @cached_property
    def updates(self) -> list[tuple[str, int]]:
        """The updates that all instances have recorded, as models with numbers."""
        if not self.instances:
            return []
        first, *others = self.instances
        return [update for update in first if all(update in other for other in others)]

    @cached_property
    def keeps_calls(self) -> bool:
        """Whether the program alone can be given the batches of this job."""
        return any(self._folder.glob("model.*.state"))

    @cached_property
    def times(self) -> float | None:
        """How many times the numbers of this program alone those of the job are, if it knows.

        1 means that it was given them.
        """
        path = self._folder / GIVEN
        return float(path.read_text("utf-8")) if path.exists() else None

    def values(self, update: tuple[str, int]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Weights after an update, and its gradients, of the first instance in double precision.

        Both by name; no gradients where they are not recorded.
        """
        import numpy as np

        line = self.instances[0][update]
        content = (self._folder / line["values"]).read_bytes()
        weights: dict[str, Any] = {}
        gradients: dict[str, Any] = {}
        start = 0
        for arrays, rows in ((weights, line["weights"]), (gradients, line["gradients"])):
            for name, dtype, shape, _ in rows:
                kind = np.dtype(dtype)
                count = int(np.prod(shape))
                array = np.frombuffer(content, kind, count, start).reshape(shape)
                arrays[name] = array.astype(complex if kind.kind == "c" else float)
                start += count * kind.itemsize
        return weights, gradients

    def names(self, update: tuple[str, int]) -> set[str]:
        """The names of the weights after an update, of the first instance."""
        return {row[0] for row in self.instances[0][update]["weights"]}

    def diverged(self, update: tuple[str, int]) -> tuple[str, ...]:
        """The weights that differ between instances after an update."""
        first, *others = (instance[update]["weights"] for instance in self.instances)
        return tuple(
            weight[0]
            for index, weight in enumerate(first)
            if any(index >= len(other) or other[index] != weight for other in others)
        )

    def types(self, update: tuple[str, int]) -> set[str]:
        """The types of the weights; numpy has no bfloat16, so such weights come as float32."""
        import numpy as np

        line = self.instances[0][update]
        types = {dtype for _, dtype, _, _ in line["weights"]}
        if types != {"float32"}:
            return types
        content = (self._folder / line["values"]).read_bytes()
        count = sum(int(np.prod(shape)) for _, _, shape, _ in line["weights"])
        is_short = not (np.frombuffer(content, np.uint32, count) & 0xFFFF).any()
        return {"bfloat16"} if is_short and count else types

    def computed(self, update: tuple[str, int]) -> set[str]:
        """The types in which outermost modules have computed so far, where that is recorded."""
        return set(self.instances[0][update]["types"])

    def inputs(self, update: tuple[str, int]) -> list[dict[str, list[int]]]:
        """What entered the model before an update: for each instance, count and sum by name."""
        return [instance[update]["inputs"] for instance in self.instances]


def compare(job: Run, alone: Run, scale: int = 1) -> Comparison:
    """Compares a job with its program alone.

    Args:
        job: What the instances of the job have recorded.
        alone: What the program alone has recorded.
        scale: What its batch sizes were multiplied by.

    Returns:
        The comparison.
    """
    both = [update for update in job.updates if update in alone.updates]
    trained = [update for update in both if update[1] > 0]
    if not trained:
        return Comparison((), *_nothing(job, alone), scale)
    starts: dict[str, dict[str, Any]] = {}
    for model in dict.fromkeys(model for model, _ in trained):
        (ours, _), (starts[model], _) = job.values((model, 0)), alone.values((model, 0))
        if problem := _unequal_names((model, 0), job, alone) or _unequal_first(
            model, ours, starts[model]
        ):
            return Comparison((), *problem, scale)
    for update in trained:
        if problem := _unequal_names(update, job, alone):
            return Comparison((), *problem, scale)
    found = tuple(_update(update, job, alone, starts[update[0]]) for update in trained)
    return Comparison(found, *_explained(found, _ratio(job, alone, trained[0])), scale)


def with_replicas(found: Comparison | None, several: Comparison) -> Comparison:
    """Adds what one process with the job's replicas has shown.

    Args:
        found: The comparison with one replica; None if the program cannot compute all replicas as
            one, because it depends on the number of samples.
        several: The comparison with the job's replicas.

    Returns:
        The comparison.
    """
    if found is None:
        return replace(several, replicas=several.is_equal)
    return replace(found, replicas=several.is_equal)


def _update(update: tuple[str, int], job: Run, alone: Run, start: Mapping[str, Any]) -> Update:
    (ours, summed), (theirs, exact) = job.values(update), alone.values(update)
    # A program may add weights to an optimizer later, as where it unfreezes layers.
    moved = {name: theirs[name] - start[name] for name in theirs if name in start}
    apart = {name: ours[name] - theirs[name] for name in theirs}
    length = _norm(moved.values())
    types = alone.types(update)
    gradients = _distance(summed, exact) if exact.keys() == summed.keys() and exact else None
    parts = max(_TOLERANCES.get(one, _OF_HALVES) for one in types | alone.computed(update))
    distance = _norm(apart.values())
    unit = length or 1.0
    rounding = max(map(_precision, types)) * _ULPS * _norm(theirs.values()) / unit
    if gradients is not None:  # these tell more than weights that have hardly moved
        rounding = min(rounding, parts)
    worst = max(apart, key=lambda name: _norm([apart[name]]), default="")
    factor = _factor(moved, {name: moved[name] + apart[name] for name in moved})
    return Update(
        update[0],
        update[1],
        distance / unit,
        parts + rounding,
        gradients,
        parts,
        worst if distance else "",
        factor,
        "given"
        if job.keeps_calls or alone.times == 1
        else _same_inputs(job.inputs(update), alone.inputs(update)[0]),
        job.diverged(update),
        bool(length or distance),
    )


def _distance(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """The distance between arrays by name, in parts of the size of the second ones."""
    return _norm(ours[name] - theirs[name] for name in theirs) / (_norm(theirs.values()) or 1.0)


def _precision(dtype: str) -> float:
    import numpy as np

    if dtype == "bfloat16":
        return float(2**-8)
    return float(np.finfo(dtype).eps) if np.dtype(dtype).kind in "fc" else 0.0


def _norm(arrays: Any) -> float:
    import numpy as np

    return float(np.sqrt(sum(float(np.vdot(array, array).real) for array in arrays)))


def _factor(alone: Mapping[str, Any], job: Mapping[str, Any]) -> float | None:
    """By what one movement of the weights is a multiple of the other; None where it is not."""
    import numpy as np

    square = sum(float(np.vdot(one, one).real) for one in alone.values())
    if not square:
        return None
    product = sum(float(np.vdot(alone[name], job[name]).real) for name in alone)
    factor = product / square
    left = _norm(job[name] - factor * alone[name] for name in alone)
    return factor if left <= 1e-4 * abs(factor) * square**0.5 else None


def _same_inputs(job: Sequence[Mapping[str, list[int]]], alone: Mapping[str, list[int]]) -> str:
    if not alone or not all(job):
        return "unknown"
    for name, whole in alone.items():
        parts = [instance[name] for instance in job if name in instance]
        together = [sum(count for count, _ in parts), sum(total for _, total in parts) % (1 << 64)]
        # An input that each instance has as a whole, such as a mask for all samples.
        if len(parts) < len(job) or (whole != together and any(part != whole for part in parts)):
            return "other"
    return "same"


def _ratio(job: Run, alone: Run, update: tuple[str, int]) -> float:
    """How many times as many numbers as the program alone the job has trained on."""
    whole = alone.inputs(update)[0]
    parts = job.inputs(update)
    found = [
        sum(part[name][0] for part in parts) / whole[name][0]
        for name in whole
        if whole[name][0]
        and all(name in part for part in parts)
        and any(part[name] != whole[name] for part in parts)
    ]
    return max(found, default=1.0)


def missing_scale(job: Run, alone: Run) -> int:
    """What batch sizes of the program alone have to be multiplied by to be those of the job.

    Returns:
        The factor; 1 where the batches are of equal size, or their sizes are not known.
    """
    both = [update for update in job.updates if update in alone.updates and update[1] == 1]
    ratio = alone.times or (_ratio(job, alone, both[0]) if both else 1.0)
    return int(ratio) if ratio > 1 and ratio == int(ratio) else 1


def _unequal_names(update: tuple[str, int], job: Run, alone: Run) -> tuple[str, str] | None:
    names = sorted(job.names(update) ^ alone.names(update))
    if not names:
        return None
    return f"the job and the program alone train different weights: {names[0]}", (
        "build the same model whatever the number of instances"
    )


def _unequal_first(
    model: str, job: Mapping[str, Any], alone: Mapping[str, Any]
) -> tuple[str, str] | None:
    differing = [
        name
        for name in job
        if job[name].shape != alone[name].shape or (job[name] != alone[name]).any()
    ]
    if not differing:
        return None
    return (
        f"{model} starts from other weights in the job than alone: {differing[0]}",
        _SEED,
    )


def _nothing(job: Run, alone: Run) -> tuple[str, str]:
    who = [
        name
        for name, run in (("the job", job), ("the program alone", alone))
        if not any(number for _, number in run.updates)
    ]
    return (
        f"no update of {' and '.join(who) or 'the same model'} was recorded",
        _TRAIN,
    )


def _unproved(updates: Sequence[Update]) -> tuple[str, str]:
    """Why equal updates prove nothing."""
    coarse = next((update for update in updates if update.is_too_coarse), None)
    if coarse is not None:
        return (
            f"update {coarse.number} has moved the weights by less than their rounding",
            "compare the program in float32, or with a larger learning rate",
        )
    if any(update.is_moved for update in updates):
        return "", ""
    return "no weight has changed, in the job and alone", (
        "compare more updates, such as those after a warm-up from a learning rate of zero"
    )


def _explained(updates: Sequence[Update], ratio: float) -> tuple[str, str]:
    """Why the two cannot be compared, and what to do about a difference."""
    first = next((update for update in updates if not update.is_equal), None)
    if first is None:
        return _unproved(updates)
    if first.diverged:
        return "", "give all instances the same first weights, and exchange all gradients"
    if first.inputs == "other":
        size = f"on {ratio:g} times as many numbers as" if ratio != 1 else "on other samples than"
        return (
            f"update {first.number} of the job trains {size} the program alone",
            _DIVIDE,
        )
    if first.factor is not None:
        return "", (
            f"each update of the job is {first.factor:.4g} times that of the program alone: a "
            "learning rate that is multiplied by size(), or a loss or gradient that is a sum where "
            "a mean is expected, or the reverse"
        )
    return "", (
        "the mean of the losses of parts is not the loss of the whole batch: divide sums by "
        "global_mean(total, count), gather what is compared over the batch, or accept that the "
        "loss is one of each process"
    )
