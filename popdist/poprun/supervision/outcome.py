"""How a job went: what the guards reported and how mpirun ended."""

from __future__ import annotations


class InstanceRecord:
    """What is known of an instance's process.

    Attributes:
        index: Which instance.
        pid: The program's process, which leads a group of its own; 0 before it has started.
        guard: The guard's process.
        began: When the program's process began, to tell it from a later one of the same number.
        ended: Whether the guard has reported the program's end.
        code: The exit code.
        signal: The signal that ended it, or 0.
        lost: Why the guard ended it, where the launcher or mpirun had gone.
        tail: The end of its standard error.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.pid = 0
        self.guard = 0
        self.began = ""
        self.ended = False
        self.code = 0
        self.signal = 0
        self.lost = ""
        self.tail = b""

    @property
    def failed(self) -> bool:
        """Whether it has ended, and not well."""
        return self.ended and bool(self.code or self.signal)


class Outcome:
    """How a job ended.

    Attributes:
        instances: What is known of each instance, by index.
        first_failure: The instance that failed first, or None.
        first_lost: The instance that was first ended by its guard for want of mpirun, or None.
        mpirun_code: mpirun's exit code; negative for the signal that ended it; None while it runs.
        interrupted: The signal that ended the job from outside, or 0.
        forced: Whether patience ran out and mpirun was killed.
    """

    def __init__(self) -> None:
        self.instances: dict[int, InstanceRecord] = {}
        self.first_failure: InstanceRecord | None = None
        self.first_lost: InstanceRecord | None = None
        self.mpirun_code: int | None = None
        self.interrupted = 0
        self.forced = False

    def running(self) -> list[InstanceRecord]:
        """The instances that have started and not reported their end."""
        return [one for one in self.instances.values() if one.guard and not one.ended]

    def record(self, index: int) -> InstanceRecord:
        """The record of an instance, made on its first mention."""
        return self.instances.setdefault(index, InstanceRecord(index))

    @property
    def exit_code(self) -> int:
        """The truth in one number: the interrupt, else the first failure, else mpirun's own."""
        if self.interrupted:
            return 128 + self.interrupted
        if self.first_failure is not None:
            one = self.first_failure
            return 128 + one.signal if one.signal else one.code
        code = self.mpirun_code or 0
        return 128 - code if code < 0 else code
