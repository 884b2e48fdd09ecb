"""What importing costs, in fresh processes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from benchmarks.processes import time_commands
from benchmarks.rows import Aim, Row, compare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Effort

IMPORT_AIM = Aim(sentence="at most 10 ms more than bare Python", of="difference", at_most=10.0)

_BARE = "bare Python"

# Statement, the statement it is compared with (both are timed), aim. An adapter needs its
# framework in any case, so what counts is what it adds.
_LIGHT = (
    ("import popdist", _BARE, IMPORT_AIM),
    ("import numpy", _BARE, None),
)
_HEAVY = (
    ("import torch", _BARE, None),
    ("import torch, popdist_torch", "import torch", None),
    ("import horovod.torch", "import torch", None),
    (
        "import onnx, onnxruntime; from popdist_onnx import TrainingSession",
        "import onnx, onnxruntime",
        None,
    ),
    ("import tensorflow, popdist_tf.keras", "import tensorflow", None),
    ("import horovod.tensorflow", "import tensorflow", None),
)


def measure(effort: Effort) -> Iterator[Row]:
    """Imports packages in fresh processes.

    Args:
        effort: How many times.

    Yields:
        A row for each statement. Those that take seconds take turns among themselves.
    """
    yield from _measure(_LIGHT, effort.choose(full=60, quick=10))
    yield from _measure(_HEAVY, effort.choose(full=9, quick=3))


def _measure(table: tuple[tuple[str, str, Aim | None], ...], repetitions: int) -> Iterator[Row]:
    statements = dict.fromkeys(part for name, peer, _ in table for part in (peer, name))
    code = {_BARE: "pass"}
    times = time_commands(
        {
            statement: [sys.executable, "-c", code.get(statement, statement)]
            for statement in statements
        },
        repetitions,
    )
    for name, peer, aim in table:
        yield compare(name, times[name], unit="ms", peer=peer, against=times[peer], aim=aim)
