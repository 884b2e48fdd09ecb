"""Local replicas that meet in the middle of a model: to gather, add or exchange values.

Replicas of one process run one after the other. One that needs values of the others cannot end
before they have come to the same place. So there it stops, and the next replica runs in a thread
of its own until it gets there; with the last one, the values of all are known, and each replica
continues in its turn. Only one of them runs at any time, so all they share is theirs in turn.
Models in which replicas do not meet start no thread.
"""

from __future__ import annotations

import contextvars
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.errors import CustomOperatorError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    Values = list[torch.Tensor]

_turn: ContextVar[tuple[Turns, int] | None] = ContextVar("turn", default=None)


_ALL_ENDED = -1  # the place of what the first thread waits for at the end


def _nothing(_: int) -> None:
    """No micro-batch."""


class _AbandonedError(Exception):
    """Another replica has failed, so a replica does not continue."""


class Turns:
    """The local replicas of a micro-batch, which run in the order of their indices.

    Args:
        replicas: Their number.
        suspended: Wraps the time in which a replica that has begun waits: puts aside what belongs
            to it, and puts it back afterwards.

    Attributes:
        meets: Whether replicas have met, now or before.
    """

    def __init__(
        self, replicas: int, suspended: Callable[[int], AbstractContextManager[None]]
    ) -> None:
        self.meets = False
        self._replicas = replicas
        self._suspended = suspended
        self._begin(_nothing)

    def run(self, work: Callable[[int], None]) -> None:
        """Runs the micro-batch of each replica.

        Args:
            work: Called with the index of a local replica.
        """
        if self._replicas == 1:
            work(0)
            return
        self._begin(work)
        try:
            for replica in range(self._replicas):
                if not self._threads:
                    self._do(replica)
            if self._threads:
                self._wakes[_ALL_ENDED].acquire()
                for thread in self._threads.values():
                    thread.join()
            if self._failure is not None:
                raise self._failure
        finally:
            self._begin(_nothing)  # keeps no batch, no value and no error

    def meet(self, replica: int, value: torch.Tensor, join: Callable[[Values], Values]) -> Any:
        """Waits until all replicas have given a value.

        Args:
            replica: The index of the replica that runs.
            value: Its value.
            join: Makes of the values of all local replicas a result for each; called once.

        Returns:
            The replica's own result.

        Raises:
            CustomOperatorError: Not all replicas meet here, or a GPU runs the backward pass.
        """
        if threading.get_ident() != self._idents[replica]:
            raise CustomOperatorError(
                "PD364",
                "local replicas cannot exchange gradients on a GPU: torch runs the backward passes "
                "of all of them in one thread",
                value=f"{self._replicas} local replicas",
                hint="start as many instances as replicas (poprun --num-instances=N "
                "--num-replicas=N)",
            )
        if self._ended:
            raise self._unequal()
        self.meets = True
        self._given[replica] = value.detach()  # a weight's values may differ between replicas
        if len(self._given) == self._replicas:
            self._results[:] = join([self._given[n] for n in range(self._replicas)])
            self._given.clear()
        if not self._wakes:
            self._wakes += [threading.Semaphore(0) for _ in range(self._replicas + 1)]
        with self._suspended(replica):
            torch.clear_autocast_cache()  # of casts of this replica's weights
            self._continue((replica + 1) % self._replicas)
            self._wakes[replica].acquire()
        if self._failure is not None:
            raise _AbandonedError
        return self._results[replica]

    def _begin(self, work: Callable[[int], None]) -> None:
        self._work = work
        self._threads: dict[int, threading.Thread] = {}
        self._idents: dict[int, int] = {}
        self._wakes: list[threading.Semaphore] = []  # until replicas meet
        self._given: dict[int, torch.Tensor] = {}
        self._results: Values = []
        self._ended: set[int] = set()
        self._failure: BaseException | None = None

    def _do(self, replica: int) -> None:
        """Runs a replica to its end, and lets the next one continue that waits."""
        self._idents[replica] = threading.get_ident()
        token = _turn.set((self, replica))
        try:
            self._work(replica)
            if self._given:
                raise self._unequal()  # noqa: TRY301 - as if the replica's own work had failed
        except _AbandonedError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again where the replicas began
            if self._failure is None:
                self._failure = error
        finally:
            _turn.reset(token)
            self._ended.add(replica)
        waiting = [n for n in self._idents if n not in self._ended]
        if waiting:
            self._wakes[min(waiting)].release()
        elif self._threads:
            self._wakes[_ALL_ENDED].release()
        elif self._failure is not None:
            raise self._failure

    def _continue(self, replica: int) -> None:
        """Lets a replica continue, or begin."""
        if replica in self._idents:
            self._wakes[replica].release()
            return
        context, cast = contextvars.copy_context(), _autocast()

        def begin() -> None:
            with cast:
                context.run(self._do, replica)

        self._idents[replica] = 0
        self._threads[replica] = threading.Thread(target=begin, daemon=True)
        self._threads[replica].start()

    def _unequal(self) -> CustomOperatorError:
        return CustomOperatorError(
            "PD365",
            "a replica exchanges values with the others, and another one does not",
            value=f"{len(self._ended)} of {self._replicas} local replicas have ended before",
            accepted="the same exchanges on all replicas, in the same order",
        )


def _autocast() -> torch.autocast:
    """The autocast of this thread, for another thread."""
    return torch.autocast(
        "cpu",
        dtype=torch.get_autocast_dtype("cpu"),
        enabled=torch.is_autocast_enabled("cpu"),
        cache_enabled=torch.is_autocast_cache_enabled(),
    )


def present_turn() -> tuple[Turns, int] | None:
    """The local replica that runs, and the turns that it takes part in; None outside of a model."""
    return _turn.get()


# What torch.compiler.disable sets, which loads Dynamo.
Turns.meet._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001 - as above
