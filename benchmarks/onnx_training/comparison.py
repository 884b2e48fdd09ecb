"""Starts the processes and makes the rows."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.ranks import run_on_ranks
from benchmarks.rows import Aim, Row, compare
from benchmarks.sampling import MeasurementError, Missing, Samples, slowest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Effort

_WHAT = {
    "mlp": "MLP 784-1024-1024-10, batch 64",
    "resnet": "small ResNet on 32 x 32, batch 32",
    "transformer": "4-layer transformer encoder, width 128, 16 x 64 tokens",
    "resnet50": "ResNet-50, 4 x 224 x 224",
}
_STEP_AIMS = {
    "mlp": Aim(sentence="1.8 times faster than torch eager", of="ratio", at_most=1 / 1.8),
    "resnet": Aim(sentence="faster than torch eager", of="ratio", at_most=1.0),
    "transformer": Aim(sentence="1.5 times faster than torch eager", of="ratio", at_most=1 / 1.5),
}
_MEMORY_AIM = Aim(sentence="at most 1.2 times torch's peak memory", of="ratio", at_most=1.2)
_COMPILE_AIM = Aim(sentence="ResNet-50 compiles in 10 s", of="value", at_most=10.0)
AIMS = (*_STEP_AIMS.values(), _MEMORY_AIM, _COMPILE_AIM)

_ONNX, _TORCH, _HOROVOD = "popdist_onnx", "torch eager", "horovod.torch"
_MIB = 2**20
_JOB = "benchmarks.onnx_training.job"


def measure(effort: Effort) -> Iterator[Row]:
    """Measures training steps, on one rank and on two, peak memory, and compilation.

    Args:
        effort: How much to measure.

    Yields:
        Each model against torch, then ResNet-50's compilation.
    """
    # Imported here because it brings torch, which choosing a benchmark does not need.
    from benchmarks.onnx_training.models import export

    repetitions = effort.choose(full=40, quick=5)
    with tempfile.TemporaryDirectory(prefix="popdist-bench-") as folder:
        for name in _STEP_AIMS:
            path = Path(folder) / f"{name}.onnx"
            export(name, path)
            yield _step(name, path, repetitions)
            yield _two_ranks(name, path, repetitions)
            yield _memory(name, path)
        path = Path(folder) / "resnet50.onnx"
        export("resnet50", path)
        yield _compilation(path, effort.choose(full=3, quick=1))


def _step(name: str, path: Path, repetitions: int) -> Row:
    (times,) = run_on_ranks(
        f"{_JOB}:steps", ranks=1, name=name, path=str(path), repetitions=repetitions
    )
    return compare(
        f"step, {_WHAT[name]}",
        Samples(tuple(times[_ONNX])),
        unit="ms",
        peer=_TORCH,
        against=Samples(tuple(times[_TORCH])),
        aim=_STEP_AIMS[name],
        note="one thread",
        parameters={"model": name, "ranks": 1},
    )


def _two_ranks(name: str, path: Path, repetitions: int) -> Row:
    ours = _on_two_ranks(name, path, repetitions, _ONNX)
    theirs = _on_two_ranks(name, path, repetitions, _HOROVOD)
    return compare(
        f"step on 2 ranks, {_WHAT[name]}",
        ours,
        unit="ms",
        peer="horovod.torch.DistributedOptimizer",
        against=theirs,
        note="one thread a rank; two jobs, one after the other",
        parameters={"model": name, "ranks": 2},
    )


def _on_two_ranks(name: str, path: Path, repetitions: int, contender: str) -> Samples | Missing:
    try:
        answers = run_on_ranks(
            f"{_JOB}:ranks",
            ranks=2,
            launcher="poprun" if contender == _ONNX else "mpirun",
            name=name,
            path=str(path),
            repetitions=repetitions,
            contender=contender,
        )
    except MeasurementError as error:
        return Missing(str(error))
    return Samples(tuple(slowest(answers)))


def _memory(name: str, path: Path) -> Row:
    peaks = {}
    for contender in (_ONNX, _TORCH):
        (answer,) = run_on_ranks(
            f"{_JOB}:memory", ranks=1, name=name, path=str(path), contender=contender
        )
        peaks[contender] = answer
    grown = {c: (a["peak"] - a["before"]) / _MIB for c, a in peaks.items()}
    return Row(
        name=f"peak memory of a process, {_WHAT[name]}",
        unit="MiB",
        value=peaks[_ONNX]["peak"] / _MIB,
        samples=1,
        peer=_TORCH,
        peer_value=peaks[_TORCH]["peak"] / _MIB,
        aim=_MEMORY_AIM,
        note=f"of which after importing: {grown[_ONNX]:.0f} MiB, torch {grown[_TORCH]:.0f} MiB",
        parameters={"model": name},
    )


def _compilation(path: Path, repetitions: int) -> Row:
    times = [
        run_on_ranks(f"{_JOB}:compile_time", ranks=1, path=str(path))[0] for _ in range(repetitions)
    ]
    return compare(
        f"compiling, {_WHAT['resnet50']}",
        Samples(tuple(times)),
        unit="s",
        aim=_COMPILE_AIM,
        note="from file to prepared session: passes, ONNX Runtime's own optimisation",
        parameters={"model": "resnet50"},
    )
