"""Rounds of a few numbers, in which all processes say what they do before they wait for each other.

A process that saves a checkpoint, and another that waits for its gradients, would wait for ever.
So every call that waits for all processes begins with a round: a sum of numbers that say which call
it is. All processes get the same sums, so where calls differ, all of them raise the same error.
Horovod's ``join`` could show that as well, but not reliably: a joined process fuses cached
responses that the others send apart, and then all of them wait.

A backward pass may reach the parameters of one optimizer on one process, and those of another
optimizer elsewhere: a branch that depends on the data, or a task that only some processes have.
So the round at the end of each pass says too which optimizers have gradients. All processes
exchange those that have some on any process, in the order of their creation; a gradient that a
process does not have counts as zero, as within one optimizer.
"""

from __future__ import annotations

import sys
import zlib
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

import torch
from torch.autograd.function import BackwardCFunction

from popdist.agreement import disagreements
from popdist.backend import announce_waits
from popdist.errors import BackendError, PopdistError
from popdist.exchange import Exchange, Item, allocate, gather, plan
from popdist_torch.errors import AgreementError, PlainLoopError
from popdist_torch.gradient_exchange import Facts, require_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_NESTED = BackwardCFunction.apply.__code__

_STEP = 32
"""Optimizers by which the numbers of a round grow, once all processes have as many more."""

_ON_ALL = (
    "make such calls on all processes (no `if rank == 0`), after as many updates; all processes "
    "need as many batches in each epoch"
)

_CALL = Facts("the call")
_FIXED = 3 + len(_CALL.numbers([0]))
"""Numbers of a round before those of the optimizers."""


class Member(Protocol):
    """The gradients of one optimizer."""

    number: int

    def passed(self, *, nested: bool) -> bool:
        """Notes that a backward pass ended; whether gradients are due to be exchanged."""

    def require_unchanged(self) -> None:
        """Refuses gradients that were changed before they are exchanged."""

    def send(self, *, outside: bool) -> None:
        """Sends all gradients that have not been sent, and waits for none."""

    def exchange(self) -> None:
        """Waits until gradients are those of all processes."""

    def has_changed(self) -> bool:
        """Whether the program has changed weights since the last update."""

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights by name."""


class Call(NamedTuple):
    """A call that waits for all processes.

    Attributes:
        name: What it is; equal on all processes.
        detail: More about it, for messages.
        error: Raised where others make another call.
    """

    name: str
    detail: str = ""
    error: type[PopdistError] = AgreementError

    @property
    def text(self) -> str:
        """The call with its detail."""
        return f"{self.name} ({self.detail})" if self.detail else self.name


_PASS = Call("a backward pass")


class Rounds:
    """What this process says in rounds, and the distributed optimizers that it has.

    Attributes:
        count: Optimizers that were distributed so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._members: WeakValueDictionary[int, Member] = WeakValueDictionary()
        self._tasks: dict[int, dict[int, Member]] = {}  # what passes that still run have reached
        self._memory = torch.zeros(0)
        self._sum: Exchange | None = None
        self._said: list[int] = []  # the numbers of the round that is on its way
        self._begun: Call | None = None  # the round that is on its way
        self._horovod: Any = None  # since the first round

    def add(self, member: Member) -> int:
        """Adds an optimizer; returns its number, which is equal on all processes."""
        number = self.count
        self._members[number] = member
        self.count += 1
        return number

    def members(self) -> list[Member | None]:
        """All optimizers, in the order of their creation; None for those that are gone."""
        return [self._members.get(number) for number in range(self.count)]

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
        self.begin(_PASS, horovod, due)
        for member in due:
            member.send(outside=outside)
        members = self.settle()
        for member in members:
            if member not in due:
                member.require_unchanged()
                member.send(outside=outside)
        for member in members:
            member.exchange()

    def meet(self, call: Call, horovod: Any) -> None:
        """Waits until all processes make the same call.

        Args:
            call: What this process does.
            horovod: The module ``horovod.torch``, initialised.

        Raises:
            PopdistError: Others do something else, or have ended; the call's error.
        """
        try:
            self.begin(call, horovod)
            self.settle()
        except BackendError as ended:
            raise call.error(
                "PD323",
                f"{call.text} was called on this process, and another one has ended",
                value=ended.value,
                hint=_ON_ALL,
            ) from ended

    def announce(self, name: str) -> None:
        """Waits for the same call on all processes, if they have had a round before.

        Before the first one, some processes may not have imported this module.

        Raises:
            AgreementError: Others do something else, or have ended.
        """
        if self._horovod is not None:
            self.meet(Call(name), self._horovod)

    def begin(self, call: Call, horovod: Any, due: list[Member] | None = None) -> None:
        """Says what this process does, and waits for nothing: `settle` must follow.

        Args:
            call: What this process does.
            horovod: The module ``horovod.torch``, initialised.
            due: The optimizers whose gradients it exchanges.
        """
        self.settle()  # an earlier call of this process may have failed in between
        # Processes that differ in their optimizers have to see that in a round of equal size.
        if self._sum is None:
            self._make_room(_STEP, horovod)
        reached = [0] * self.count
        for member in due or ():
            reached[member.number] = 1
        self._said = [1, self.count, self.count**2, *_numbers(call.name), *reached]
        self._send()
        self._begun, self._horovod = call, horovod

    def settle(self) -> list[Member]:
        """Waits until all processes have said the same as the last `begin`, if one is on its way.

        Returns:
            The optimizers that have gradients on any process.

        Raises:
            AgreementError: Some do something else; the call's own error where it has one.
            BackendError: Another process has ended or failed.
            PlainLoopError: They have distributed different numbers of optimizers.
        """
        if self._begun is None or self._sum is None:
            return []
        call, self._begun = self._begun, None
        size = int(self._horovod.size())
        self._sum.finish()
        present, counts, squares, *said = map(int, self._memory.tolist())
        require_all(present, size)
        if not _CALL.equal(said, size):
            self._raise_difference(call)
        self._require_equal(counts, squares, size)
        if len(self._said) > len(self._memory):  # on all processes, as their counts are equal
            self._make_room(-(-(len(self._said) - _FIXED) // _STEP) * _STEP, self._horovod)
            self._send()
            self._sum.finish()
            said = [int(number) for number in self._memory[3:]]
        reached = said[_FIXED - 3 :]
        return [self._member(number) for number, processes in enumerate(reached) if processes]

    def _make_room(self, optimizers: int, horovod: Any) -> None:
        room = _FIXED + optimizers
        layout = plan([Item("what processes do", room, "float32", 4)])
        name = f"popdist calls of all processes, {room} numbers"
        with torch.inference_mode(mode=False):  # this call may be in that mode, and others not
            [self._memory] = arenas = allocate(layout)
            self._sum = Exchange(layout, arenas, horovod, name=name)

    def _send(self) -> None:
        """Sends the numbers of this process, as many as there is room for."""
        assert self._sum is not None  # noqa: S101 - made before
        room = len(self._memory)
        said = [*self._said, *[0] * (room - len(self._said))][:room]
        self._memory.copy_(torch.tensor(said))
        self._sum.begin()
        self._sum.send()

    def _raise_difference(self, call: Call) -> None:
        """Names the calls of all processes; all of them come here."""
        [found] = disagreements({"call": call.text}, gather(self._horovod))
        raise call.error(
            "PD323",
            "the processes wait for each other in different calls",
            value=found.says,
            accepted="the same call on all of them",
            hint=_ON_ALL,
        )

    def _require_equal(self, counts: int, squares: int, size: int) -> None:
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


@cache
def _numbers(name: str) -> list[int]:
    """A call as a round's numbers."""
    return _CALL.numbers([zlib.crc32(name.encode()) & 0xFFFFFF])


def _nested() -> bool:
    """Whether the backward pass that ends here runs inside that of an autograd function."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - the cheapest way to look
    while frame is not None and frame.f_code is not _NESTED:
        frame = frame.f_back
    return frame is not None


ROUNDS = Rounds()
"""The rounds of this process."""

announce_waits(ROUNDS.announce)
