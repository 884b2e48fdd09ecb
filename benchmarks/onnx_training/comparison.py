"""Starts the processes and makes the rows."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.onnx_training.job import (
    COMPILED,
    HOROVOD,
    ONNX,
    ORT_TRAINING,
    PRODUCTS,
    RATE,
    TORCH,
)
from benchmarks.onnx_training.turns import take_turns
from benchmarks.ranks import ONE_THREAD, run_on_ranks
from benchmarks.rows import Aim, Row, compare
from benchmarks.sampling import MeasurementError, Missing, Samples, slowest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Effort

_WHAT = {
    "mlp": "MLP 784-1024-1024-10, batch 64",
    "resnet": "small ResNet on 32 x 32, batch 32",
    "transformer": "4-layer transformer encoder, width 128, 16 x 64 tokens",
    "lstm": "2-layer LSTM, width 256, 32 x 32 steps",
    "gpt2": "GPT-2 block, width 768, 4 x 64 tokens",
    "bert": "BERT-base layer, width 768, 4 x 64 tokens",
    "vit": "ViT-tiny, 16 x 32 x 32",
    "unet": "U-Net, 8 x 64 x 64",
    "resnet18-32": "ResNet-18, 16 x 32 x 32",
    "resnet50-32": "ResNet-50, 16 x 32 x 32",
    "resnet18": "ResNet-18, 4 x 224 x 224",
    "resnet50": "ResNet-50, 4 x 224 x 224",
    "gpt2-small": "GPT-2 small, 64 tokens",
}
_MODELS = tuple(name for name in _WHAT if name != "gpt2-small")
_MORE = ("mlp", "resnet", "transformer")
"""Models that are also measured on two ranks, and for their memory."""

_BOUNDED = ("mlp", "transformer", "lstm", "gpt2", "bert", "vit")
"""Models that consist of matrix products."""

_LIMITED = ("mlp", "transformer")
"""Those that always have an aim beside their products."""

_STEP_AIM = Aim(sentence="at most 0.9 of every peer's step", of="ratio", at_most=0.9)
_LIMIT_AIM = Aim(sentence="at most 1.25 times the matrix products alone", of="ratio", at_most=1.25)
_RESTATED_AIM = Aim(
    sentence="at most 1.25 times the matrix products alone, which take longer than 0.9 of a peer",
    of="ratio",
    at_most=1.25,
    was="at most 0.9 of that peer's step",
)
_MEMORY_AIM = Aim(sentence="at most 1.2 times torch's peak memory", of="ratio", at_most=1.2)
_COMPILE_AIM = Aim(sentence="compiles in 5 s", of="value", at_most=5.0)
AIMS = (_STEP_AIM, _LIMIT_AIM, _RESTATED_AIM, _MEMORY_AIM, _COMPILE_AIM)

_MIB = 2**20
_JOB = "benchmarks.onnx_training.job"
_CONTENDER = "benchmarks.onnx_training.contender"
_ENVIRONMENT = ".venv-ort-training"
"""The environment with onnxruntime-training, beside the checkout's own; `make` writes it."""


def measure(effort: Effort) -> Iterator[Row]:
    """Measures training steps, on one rank and on two, peak memory, and compilation.

    Args:
        effort: How much to measure.

    Yields:
        Each model against its peers, then compilations.
    """
    # Imported here because it brings torch, which choosing a benchmark does not need.
    from benchmarks.onnx_training.models import export

    repetitions = effort.choose(full=30, quick=3)
    with tempfile.TemporaryDirectory(prefix="popdist-bench-") as folder:
        for name in _MODELS:
            path = Path(folder) / f"{name}.onnx"
            export(name, path)
            for threads in (1, 2):
                yield from _step(name, path, repetitions, threads)
            if name in _MORE:
                yield _two_ranks(name, path, repetitions)
                yield _memory(name, path)
        for name in ("resnet50", "gpt2-small"):
            path = Path(folder) / f"{name}.onnx"
            export(name, path)
            yield _compilation(name, path, effort.choose(full=3, quick=1))


def peer_python(root: Path) -> str | None:
    """The Python of the environment with onnxruntime-training.

    Args:
        root: The checkout.

    Returns:
        Its path; None where the environment is not there, or not complete.
    """
    folder = root / _ENVIRONMENT
    return str(folder / "bin" / "python") if (folder / ".ready").exists() else None


def _step(name: str, path: Path, repetitions: int, threads: int) -> Iterator[Row]:
    from benchmarks.onnx_training.models import MODELS

    contenders = [ONNX, TORCH, COMPILED, *([PRODUCTS] if name in _BOUNDED else [])]
    commands = {
        one: [sys.executable, "-m", _CONTENDER, one, name, str(path), str(threads)]
        for one in contenders
    }
    if (python := peer_python(Path(__file__).resolve().parents[2])) is not None:
        program, data = Path(__file__).with_name("ort_training.py"), path.with_suffix(".npz")
        commands[ORT_TRAINING] = [
            *(python, "-I", str(program), str(path), str(data), str(threads), str(RATE))
        ]
    times = take_turns(
        commands,
        dict.fromkeys(ONE_THREAD, str(threads)),
        repetitions,
        MODELS[name].difference,
        without_loss=PRODUCTS,
    )
    missing = Missing(f"not installed: make {_ENVIRONMENT}/.ready")
    peers = [TORCH, COMPILED, ORT_TRAINING, *([PRODUCTS] if name in _BOUNDED else [])]
    for peer in peers:
        yield compare(
            f"step, {_WHAT[name]}, {threads} thread{'s' * (threads > 1)}",
            times[ONNX],
            unit="ms",
            peer=peer,
            against=times.get(peer, missing),
            aim=_aim(name, peer, times),
            parameters={"model": name, "ranks": 1, "threads": threads},
        )


def _aim(name: str, peer: str, times: dict[str, Samples | Missing]) -> Aim | None:
    """The aim beside a peer, or beside the products if those take longer than some peer's aim."""
    minima = {one: taken.minimum for one, taken in times.items() if isinstance(taken, Samples)}
    products = minima.get(PRODUCTS, 0.0)
    least = {one: 0.9 * minima[one] for one in (TORCH, COMPILED, ORT_TRAINING) if one in minima}
    if peer != PRODUCTS:
        return _STEP_AIM if least.get(peer, products) >= products else None
    if any(asked < products for asked in least.values()):
        return _RESTATED_AIM
    return _LIMIT_AIM if name in _LIMITED else None


def _two_ranks(name: str, path: Path, repetitions: int) -> Row:
    ours = _on_two_ranks(name, path, repetitions, ONNX)
    theirs = _on_two_ranks(name, path, repetitions, HOROVOD)
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
            launcher="poprun" if contender == ONNX else "mpirun",
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
    for contender in (ONNX, TORCH):
        (answer,) = run_on_ranks(
            f"{_JOB}:memory", ranks=1, name=name, path=str(path), contender=contender
        )
        peaks[contender] = answer
    grown = {c: (a["peak"] - a["before"]) / _MIB for c, a in peaks.items()}
    return Row(
        name=f"peak memory of a process, {_WHAT[name]}",
        unit="MiB",
        value=peaks[ONNX]["peak"] / _MIB,
        samples=1,
        peer=TORCH,
        peer_value=peaks[TORCH]["peak"] / _MIB,
        aim=_MEMORY_AIM,
        note=f"of which after importing: {grown[ONNX]:.0f} MiB, torch {grown[TORCH]:.0f} MiB",
        parameters={"model": name},
    )


def _compilation(name: str, path: Path, repetitions: int) -> Row:
    times = [
        run_on_ranks(f"{_JOB}:compile_time", ranks=1, path=str(path))[0] for _ in range(repetitions)
    ]
    return compare(
        f"compiling, {_WHAT[name]}",
        Samples(tuple(times)),
        unit="s",
        aim=_COMPILE_AIM,
        note="from file to prepared session: passes, ONNX Runtime's own optimisation",
        parameters={"model": name},
    )
