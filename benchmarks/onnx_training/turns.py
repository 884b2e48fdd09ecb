"""Contenders in processes of their own that take turns: all others are stopped meanwhile.

Threads of a contender that waits would otherwise poll, and keep the threads of the one that is
sampled from their processors.
"""

from __future__ import annotations

import select
import signal
import subprocess
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from benchmarks.ranks import environment
from benchmarks.sampling import MeasurementError, Missing, Samples, interleave

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

_WARM_UP = 3
_ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT = 300.0
_TAIL = 2000
_SECONDS = 20.0
_LEAST = 5
_FIRST = 1e-5
"""By how much of itself the loss of the first step may differ, before any update. Networks whose
later losses may differ much have a thousandth of that."""


class Contender:
    """A process that takes steps on request, as a context; it is stopped between them.

    Args:
        command: Its argument list. It answers each line with the seconds and the loss of a step.
        env: Variables beside those in which everything is measured.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._said = TemporaryFile()  # noqa: SIM115 - closed with the context
        self._process = subprocess.Popen(
            command,
            cwd=_ROOT,
            env=environment(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def steps(self, count: int) -> list[tuple[float, float]]:
        """Lets the process run for some steps.

        Args:
            count: How many.

        Returns:
            The seconds and the loss of each.
        """
        self._process.send_signal(signal.SIGCONT)
        taken = [self._step() for _ in range(count)]
        self._process.send_signal(signal.SIGSTOP)
        return taken

    def _step(self) -> tuple[float, float]:
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None  # noqa: S101 - a pipe, as made above
        assert answers is not None  # noqa: S101 - as above
        try:
            asked.write("step\n")
            asked.flush()
        except BrokenPipeError:
            raise self._failed("ended") from None
        if not select.select([answers], [], [], _TIMEOUT)[0]:
            raise self._failed(f"took no step in {_TIMEOUT:.0f} s")
        answer = answers.readline().split()
        if len(answer) != 2:  # noqa: PLR2004 - seconds and loss
            raise self._failed("ended")
        return float(answer[0]), float(answer[1])

    def _failed(self, what: str) -> MeasurementError:
        self._said.seek(0)
        said = self._said.read().decode(errors="replace")[-_TAIL:]
        return MeasurementError(f"{self._process.args!r} {what}\n{said}")


def take_turns(
    commands: Mapping[str, Sequence[str]],
    env: Mapping[str, str],
    repetitions: int,
    difference: float,
    without_loss: str,
) -> dict[str, Samples | Missing]:
    """Times a training step of all contenders.

    Args:
        commands: Argument lists by contender; others are compared with the first.
        env: Variables of all of them.
        repetitions: Samples of each, or fewer where a step is long. The step before a sample is
            not timed, as it finds cold caches.
        difference: By how much of the first loss the others may differ, after updates.
        without_loss: The contender that has no loss.

    Returns:
        The samples by contender, or why one takes no step.

    Raises:
        MeasurementError: The first one takes no step, or a loss differs from the others'.
    """
    with ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        gaps: dict[str, Missing] = {}
        losses, seconds = {}, 0.0
        for name, command in commands.items():
            contender = stack.enter_context(Contender(command, env))
            try:
                taken = contender.steps(_WARM_UP)
            except MeasurementError as error:
                if not contenders:
                    raise
                gaps[name] = Missing(str(error).splitlines()[-1])
                continue
            contenders[name] = contender
            seconds += taken[-1][0]
            if name != without_loss:
                losses[name] = [loss for _, loss in taken]
        require_agreement(losses, difference)
        fitting = max(_LEAST, int(_SECONDS / (2 * seconds)))
        samplers = {name: partial(_sample, one) for name, one in contenders.items()}
        times = interleave(samplers, min(repetitions, fitting))
    return gaps | {name: Samples(tuple(taken)) for name, taken in times.items()}


def _sample(contender: Contender) -> float:
    return contender.steps(2)[-1][0]


def require_agreement(losses: Mapping[str, Sequence[float]], difference: float) -> None:
    """Refuses losses that differ: the speed of a wrong step is of no interest.

    Args:
        losses: Of the first steps, by contender.
        difference: By how much of the first loss the others may differ, after updates.

    Raises:
        MeasurementError: A loss differs by more.
    """
    steps = list(zip(*losses.values(), strict=True))
    for index, step in enumerate(steps):
        allowed = difference if index else max(_FIRST, difference / 1000)
        if max(step) - min(step) > allowed * max(steps[0]):
            raise MeasurementError(f"the contenders' losses differ: {losses}")
