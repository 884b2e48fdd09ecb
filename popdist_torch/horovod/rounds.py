"""The order in which the distributed optimizers of a process exchange gradients.

A backward pass may reach the parameters of one optimizer on one process, and those of another
optimizer elsewhere: a branch that depends on the data, or a task that only some processes have.
Processes that waited for different optimizers would wait for ever. So with several optimizers, the
end of each pass begins with a round of a few numbers that says which optimizers have gradients on
any process. All processes exchange these, in the order of their creation; a gradient that a process
does not have counts as zero, as within one optimizer.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch.autograd.function import BackwardCFunction

from popdist.exchange import Exchange, Item, allocate, plan
from popdist_torch.errors import AgreementError, PlainLoopError
from popdist_torch.gradient_exchange import require_all

if TYPE_CHECKING:
    from types import FrameType

_NESTED = BackwardCFunction.apply.__code__

_STEP = 32
"""Optimizers by which the numbers of a round grow."""


class Member(Protocol):
    """The gradients of one optimizer."""

    number: int

    @property
    def is_new(self) -> bool:
        """Whether nothing was exchanged yet."""

    def passed(self, *, nested: bool) -> bool:
        """Notes that a backward pass ended; whether gradients are due to be exchanged."""

    def require_unchanged(self) -> None:
        """Refuses gradients that were changed before they are exchanged."""

    def send(self, *, outside: bool) -> None:
        """Sends all gradients that have not been sent, and waits for none."""

    def exchange(self) -> None:
        """Waits until gradients are those of all processes."""


class Rounds:
    """Exchanges of all distributed optimizers of a process.

    Attributes:
        count: Optimizers that were distributed so far.
        always: Whether a round precedes the exchange of a single optimizer too, so that a process
            that waits in `meet` instead is noticed.
    """

    def __init__(self) -> None:
        self.count = 0
        self.always = False
        self._members: WeakValueDictionary[int, Member] = WeakValueDictionary()
        self._tasks: dict[int, dict[int, Member]] = {}  # what passes that still run have reached
        self._memory = torch.zeros(0)
        self._reached: Exchange | None = None

    def add(self, member: Member) -> int:
        """Adds an optimizer; returns its number, which is equal on all processes."""
        number = self.count
        self._members[number] = member
        self.count += 1
        return number

    def arrived(self, task: int, member: Member, horovod: Any) -> None:
        """Notes that a backward pass has reached an optimizer, before the pass ends."""
        reached = self._tasks.get(task)
        if reached is None:
            reached = self._tasks[task] = {}
            torch.autograd.Variable._execution_engine.queue_callback(  # noqa: SLF001 - as DDP
                partial(self._passed, task, horovod)
            )
        reached[member.number] = member

    def exchange(self, due: list[Member], horovod: Any, *, outside: bool) -> None:
        """Exchanges the gradients of some optimizers, and of those that other processes name.

        Args:
            due: The optimizers, in the order of their creation.
            horovod: The module ``horovod.torch``, initialised.
            outside: Whether that happens outside of a backward pass.

        Raises:
            AgreementError: Processes differ in what they train.
            PlainLoopError: They have distributed different numbers of optimizers.
        """
        for member in due:
            member.send(outside=outside)
        members = due
        if self.always or self.count > 1 or any(member.is_new for member in due):
            members = self._agreed(due, horovod)
            for member in members:
                if member not in due:
                    member.require_unchanged()
                    member.send(outside=outside)
        for member in members:
            member.exchange()

    def meet(self, event: str, horovod: Any) -> None:
        """Waits until all processes call this.

        Args:
            event: What happens on this process, for messages.
            horovod: The module ``horovod.torch``, initialised.

        Raises:
            AgreementError: Others exchange gradients; raised on all of them, if `always`.
        """
        self._agreed([], horovod, event)

    def require_equal(self, counts: int, squares: int, size: int) -> None:
        """Checks that all processes have as many optimizers, from sums of counts and squares.

        Raises:
            PlainLoopError: They have not; raised on all processes that see these sums.
        """
        if counts * counts != size * squares:
            raise PlainLoopError(
                "PD330",
                "processes have distributed different numbers of optimizers",
                value=f"{self.count} on this process, {counts / size:g} on average",
                hint="call DistributedOptimizer on every process, in the same order "
                "(no `if rank == 0`)",
            )

    def _passed(self, task: int, horovod: Any) -> None:
        """Ends the exchanges that are due with the backward pass that ends here."""
        reached = self._tasks.pop(task)
        # One inside another pass, as of a checkpoint, may be followed by more gradients of that.
        nested = _nested()
        due = [reached[number] for number in sorted(reached)]
        due = [member for member in due if member.passed(nested=nested)]
        if due:
            self.exchange(due, horovod, outside=False)

    def _agreed(self, due: list[Member], horovod: Any, event: str = "") -> list[Member]:
        """The optimizers that are due on any process; none, where all processes have an event."""
        room = 4 + -(-self.count // _STEP) * _STEP
        if self._reached is None or len(self._memory) != room:
            layout = plan([Item("optimizers with gradients", room, "float32", 4)])
            [self._memory] = arenas = allocate(layout)
            self._reached = Exchange(
                layout,
                arenas,
                horovod,
                name=f"popdist optimizers with gradients, of {room}",
                beside_computing=True,
            )
        said = [1, int(bool(event)), self.count, self.count**2, *[0] * (room - 4)]
        for member in due:
            said[4 + member.number] = 1
        self._memory.copy_(torch.tensor(said))
        self._reached.begin()
        self._reached.finish()
        present, events, counts, squares, *reached = map(int, self._memory.tolist())
        require_all(present, horovod.size())
        if events not in (0, horovod.size()):
            raise AgreementError(
                "PD323",
                f"{event or 'a backward pass ended'} on this process, and others did something "
                "else",
                value=f"{events} of {horovod.size()} processes exchange no gradients",
                hint="all processes need as many batches in each epoch, and must make the same "
                "calls of the trainer (no `if trainer.is_global_zero` around save_checkpoint)",
            )
        self.require_equal(counts, squares, horovod.size())
        return [self._member(number) for number, processes in enumerate(reached) if processes]

    def _member(self, number: int) -> Member:
        member = self._members.get(number)
        if member is None:
            raise PlainLoopError(
                "PD330",
                "another process exchanges gradients of an optimizer that this one has deleted",
                value=f"optimizer {number}, in the order of DistributedOptimizer calls",
                hint="keep the optimizer on every process as long as one uses it",
            )
        return member


def _nested() -> bool:
    """Whether the backward pass that ends here runs inside that of an autograd function."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - the cheapest way to look
    while frame is not None and frame.f_code is not _NESTED:
        frame = frame.f_back
    return frame is not None
