"""The outcome of a job: the guards' reports, the first failure, and whether to restart."""

from __future__ import annotations

from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_FOLLOWING = (
    b"Horovod has been shut down",
    b"[PD021]",
    b"Connection closed by peer",
    b"Connection reset by peer",
)
"""What programs say when another instance has gone; the words are Horovod's, ours and gloo's.

Other errors of Horovod are no such sign: what it says of mismatched shapes, types or names is the
cause itself."""

_OWN = b"Traceback (most recent call last)"

MISTAKES = {2: "a mistake on its command line", 126: "not executable", 127: "not found"}
"""Exit codes by which programs and shells say that the user has to change something; 2 is what
``argparse`` and most tools use."""

START_CODE = 2
"""The exit code of a job that this machine could not start."""

ENDED_UNHEARD = "if the host still runs, its guards end what is left there"
"""The end of a sentence about instances on a host that cannot be reached."""

_KILLED = 137
_RAISED = 1
"""The exit code of Python after an error."""


class Progress:
    """How far a program is, as it has reported.

    Attributes:
        phase: What it does: importing, connecting, loading, compiling, training; or empty.
        step: Steps that are done.
        total: How many there will be.
        loss: The last loss.
        samples_per_second: Since its first step.
    """

    def __init__(self) -> None:
        self.phase = ""
        self.step: int | None = None
        self.total: int | None = None
        self.loss: float | None = None
        self.samples_per_second: float | None = None

    def take(self, fields: Mapping[str, str]) -> None:
        """Stores the program's reported values; a value that is not a number is ignored."""
        self.phase = fields.get("phase", "")
        step, total = _number(fields.get("step")), _number(fields.get("total"))
        self.step = None if step is None else int(step)
        self.total = None if total is None else int(total)
        self.loss = _number(fields.get("loss"))
        self.samples_per_second = _number(fields.get("rate"))


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None  # NaN is excluded too


class InstanceRecord:
    """What is known of an instance's process.

    Attributes:
        index: Which instance.
        pid: The program's process, which leads a group of its own; 0 before it has started.
        guard: The guard's process.
        began: When the program's process began, to tell it from a later one of the same number.
        started_at: When the launcher heard of its start, in seconds since the epoch.
        ended: Whether the guard has reported the program's end.
        ended_at: When the launcher heard of its end, in seconds since the epoch.
        code: The exit code.
        signal: The signal that ended it, or 0.
        seconds: How long it ran.
        memory: The most memory that its process had at a time, in bytes.
        oom: What speaks for its having been killed for want of memory; empty where nothing does.
        asked: Whether it had been asked to end before, by the launcher or by mpirun.
        lost: Why the guard ended it, where the launcher or mpirun had gone.
        progress: How far it is, as it has reported.
        speaks: Whether it imports popdist, so that its waiting and its stacks can be seen.
        stacks: Its Python stacks when the launcher asked it to end; empty if it did not ask.
        tail: The end of its standard error.
        trained: What it has trained, as it has stated at its end (JSON); empty without a statement.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.pid = 0
        self.guard = 0
        self.began = ""
        self.started_at = 0.0
        self.ended = False
        self.ended_at = 0.0
        self.code = 0
        self.signal = 0
        self.seconds = 0.0
        self.memory = 0
        self.oom = ""
        self.asked = False
        self.lost = ""
        self.speaks = False
        self.progress = Progress()
        self.stacks = ""
        self.tail = b""
        self.trained = ""

    @property
    def failed(self) -> bool:
        """Whether the instance has ended with a failure."""
        return self.ended and bool(self.code or self.signal)


class Ending(Record):
    """Why the launcher itself ended the job.

    Attributes:
        kind: "timeout", "stall", "host" or "start".
        exit_code: The job's exit code.
        text: What happened, in words.
        lines: More about it.
        instances: The instances that it is about.
        with_stacks: Whether the instances' stacks belong to the report.
    """

    kind: str
    exit_code: int
    text: str
    lines: tuple[str, ...] = ()
    instances: tuple[int, ...] = ()
    with_stacks: bool = False


class Outcome:
    """How a job ended.

    Attributes:
        instances: What is known of each instance, by index.
        first_failure: The instance that failed first, or None.
        first_lost: The instance that was first ended by its guard for want of mpirun, or None.
        ending: Why the launcher ended the job, or None.
        mpirun_code: mpirun's exit code; negative for the signal that ended it; None while it runs.
        interrupted: The signal that ended the job from outside, or 0.
        guard_died: Whether a guard was killed.
        was_refused: Whether the kernel has refused a process for an instance.
        forced: Whether patience ran out and mpirun was killed.
        needs_tcp: Whether mpirun has said that programs cannot reach each other, and MPI's TCP is
            off.
        unwritten: Bytes of output that could not be written.
        began_at: When it was started, in seconds since the epoch.
        seconds: How long it took.
        diverged: The lines of an error about weights that differ when all programs have ended.
    """

    def __init__(self) -> None:
        self.diverged: list[str] = []
        self.instances: dict[int, InstanceRecord] = {}
        self.first_failure: InstanceRecord | None = None
        self.first_lost: InstanceRecord | None = None
        self.ending: Ending | None = None
        self.mpirun_code: int | None = None
        self.interrupted = 0
        self.guard_died = False
        self.was_refused = False
        self.forced = False
        self.needs_tcp = False
        self.unwritten = 0
        self.began_at = 0.0
        self.seconds = 0.0

    def running(self) -> list[InstanceRecord]:
        """The instances that have started and not reported an end."""
        return [one for one in self.instances.values() if one.guard and not one.ended]

    def record(self, index: int) -> InstanceRecord:
        """The record of an instance, made on first use."""
        return self.instances.setdefault(index, InstanceRecord(index))

    @property
    def is_over(self) -> bool:
        """Whether the job is known to end, for any reason."""
        return bool(self.interrupted or self.ending or self.first_failure or self.first_lost)

    @property
    def is_over_without_mpirun(self) -> bool:
        """Whether the job ends for another reason than that mpirun ends its instances."""
        failed_alone = any(one.failed and not one.asked for one in self.instances.values())
        return bool(self.interrupted or self.ending or self.first_lost or failed_alone)

    @property
    def exit_code(self) -> int:
        """The job's exit code: the interrupt's, else the first failure's, else mpirun's."""
        if self.interrupted:
            return 128 + self.interrupted
        if self.ending is not None:
            return self.ending.exit_code
        one = root_cause(self)
        if one is not None and was_leaving(self, one):
            return _RAISED
        if one is not None:
            return 128 + one.signal if one.signal else one.code
        code = 0 if self.mpirun_was_stuck else self._code_of_mpirun(self.mpirun_code or 0)
        return code or (_RAISED if self.diverged else 0)

    @property
    def lost_proxy(self) -> bool:
        """Whether what mpirun started for an instance was killed, and its guard said nothing."""
        return self.mpirun_code == _KILLED and bool(self.running())

    @property
    def mpirun_was_stuck(self) -> bool:
        """Whether mpirun alone had to be killed, after every program had ended well."""
        alone = self.forced and not self.interrupted and self.ending is None
        ended = bool(self.instances) and not self.running() and self.first_lost is None
        return alone and ended and self.first_failure is None

    def _code_of_mpirun(self, code: int) -> int:
        """The exit code where no instance failed by itself; mpirun has codes of its own."""
        if code < 0:
            return 128 - code
        if (code and self.guard_died) or self.lost_proxy:
            return _KILLED
        if self.first_lost is not None and self.first_lost.lost == "mpirun ended":
            return _KILLED  # what mpirun had started for the instance was killed
        if self.running() or self.first_lost:
            return 1  # a host was lost; Open MPI 5 may call that a good end
        return code


def name_instances(indices: Collection[int]) -> str:
    """Instances in words: "instance 1", "instances 0 and 2"."""
    *first, last = (str(index) for index in sorted(indices))
    return f"instances {', '.join(first)} and {last}" if first else f"instance {last}"


def follows(one: InstanceRecord) -> bool:
    """Whether an instance reports that it failed because another instance had ended."""
    return any(words in one.tail for words in _FOLLOWING)


def root_cause(outcome: Outcome) -> InstanceRecord | None:
    """The instance whose failure came first; None without a failure.

    Usually the first instance to end is the cause. But a program that fails in Python tells the
    other instances before it ends, and the others may end earlier. Where the first to end reports
    that another instance had ended, an instance with a failure of its own is the cause.
    """
    first = outcome.first_failure
    if first is None or not follows(first):
        return first
    others = [one for one in outcome.instances.values() if one.failed and not follows(one)]
    own = [one for one in others if _OWN in one.tail] or [one for one in others if not one.signal]
    return own[0] if own else first


def was_leaving(outcome: Outcome, cause: InstanceRecord) -> bool:
    """Whether the cause had raised its error, and was ended by a signal while it was exiting.

    An exit may take a while, and mpirun ends all instances when the first of them has ended.
    """
    return bool(cause.signal and cause.asked) and cause is not outcome.first_failure


def may_restart(outcome: Outcome) -> bool:
    """Whether a restart could succeed.

    The result is False where the job succeeded, was interrupted or timed out, was not started by
    mpirun, or made a mistake that a restart would repeat.
    """
    if outcome.exit_code == 0 or outcome.interrupted or outcome.diverged:
        return False
    if outcome.ending is not None:
        return outcome.ending.kind not in ("timeout", "start")
    cause = root_cause(outcome)
    if cause is None:
        return bool(outcome.instances)
    return bool(cause.signal) or cause.code not in MISTAKES
