"""The guard of all programs on this machine: a child of poprun, in which one loop watches all.

mpirun starts ``front.sh`` for each instance. A front writes its process number into a pipe of the
job's folder, and waits for the exit code from another. Its environment, command line, folder,
processors and limits are what mpirun has prepared for the program: the guard reads them from the
kernel, and starts the program as its own child. So a launch pays for one more Python process, not
for one per instance, and that process is loaded while mpirun starts.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` adds enums, for 5 ms
import os
import resource
from time import monotonic, time

from popdist.poprun.guard.guard import LAST_WORD_SECONDS, NOT_STARTED, Guard, passed_signals
from popdist.poprun.guard.loop import Loop
from popdist.poprun.guard.program import Origin
from popdist.poprun.guard.reporter import PipeChannel
from popdist.poprun.machines.cpus import read_machine
from popdist.poprun.protocol.frames import LARGEST_ON_OWN_PIPE
from popdist.poprun.protocol.guard_argv import FRONT, read_words
from popdist.poprun.protocol.processes import (
    children_of,
    kill_descendants,
    lead_group,
    variables_of,
    watchable,
    words_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from popdist.poprun.machines.cpus import Machine
    from popdist.poprun.protocol.guard_argv import Fronts

_READ_SIZE = 1 << 16
_LIMITS = range(16)  # all that Linux knows
_RANK = "OMPI_COMM_WORLD_RANK"
_SHELL_SCRIPT_PYTHON = 3
_SIGNALS = {
    b"HUP": signal.SIGHUP,
    b"INT": signal.SIGINT,
    b"USR1": signal.SIGUSR1,
    b"USR2": signal.SIGUSR2,
    b"TERM": signal.SIGTERM,
}


def guard_host(settings: Mapping[str, str], mpirun: int, fronts: Fronts, reports: int) -> None:
    """Guards the programs of a job in the calling process, a child of poprun, until all have ended.

    Args:
        settings: Settings of a guard, of which those are used that all instances have in common.
        mpirun: mpirun's process.
        fronts: The pipes to the fronts.
        reports: The pipe to the launcher.
    """
    lead_group(0)
    # Programs get the limits of their fronts.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _keep_only({reports, fronts.calls, *fronts.codes})
    _HostGuard(settings, mpirun, fronts, reports).run()


def _keep_only(ours: set[int]) -> None:
    """Closes what belongs to poprun, and its standard input; mpirun's programs have none either."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in ours:  # noqa: PLR2004 - the standard streams
            try:
                os.close(int(name))
            except OSError:  # the descriptor of the listing itself
                pass
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


class _Front(Origin):
    """A process that mpirun has started, and the program's guard reads."""

    def __init__(self, environ: dict[str, str], process: int, machine: Machine) -> None:
        super().__init__(environ)
        self.machine = machine
        self._process = process

    def enter(self) -> None:
        """Takes over the folder, the processors and the limits of the process.

        Raises:
            ProcessLookupError: The process has ended.
            OSError: The control group cannot be entered.
        """
        super().enter()
        try:
            os.chdir(f"/proc/{self._process}/cwd")
        except FileNotFoundError as gone:
            raise ProcessLookupError from gone
        cpus = os.sched_getaffinity(self._process)
        if cpus != os.sched_getaffinity(0):
            os.sched_setaffinity(0, cpus)
        for which in _LIMITS:
            limits = resource.prlimit(self._process, which)
            if limits != resource.getrlimit(which):
                resource.setrlimit(which, limits)


class _HostGuard:
    def __init__(
        self, settings: Mapping[str, str], mpirun: int, fronts: Fronts, reports: int
    ) -> None:
        self._mpirun = mpirun
        self._fronts = fronts
        self._reports = reports
        self._adopts = settings.get("daemons") != "1"
        self._has_groups = "group" in settings
        self._to_come = len(fronts.codes)
        self._guards: dict[bytes, Guard] = {}
        self._ranks: dict[Guard, int] = {}
        self._pending = b""
        self._machine = read_machine()
        if len(self._machine.nodes) > 1:
            import ctypes  # noqa: F401 - binds memory; loaded here once, and not in each child
        self._began = time()
        self._mpirun_lost = False
        self._loop = Loop(passed_signals(settings), reports, adopts=self._adopts, repeats=False)
        self._loop.watch(fronts.calls, self._on_calls)
        ended = watchable(mpirun)
        if ended is not None:
            self._loop.watch(ended, self._on_mpirun_end)

    def run(self) -> None:
        """Serves fronts until no program runs and none can follow."""
        loop = self._loop
        while loop.guards or (self._to_come and not self._is_over):
            for guard in loop.turn(self._stay_quick()):
                self._end(guard)
        if self._adopts:
            kill_descendants(LAST_WORD_SECONDS)
        if self._mpirun_lost:
            from popdist.poprun.guard.ending import remove_segments

            remove_segments(self._began)
        # mpirun may take a second to end; a poprun that is killed meanwhile leaves its folder.
        while not (loop.is_killed or loop.launcher_lost):
            loop.turn()
        if loop.launcher_lost:
            from popdist.poprun.guard.ending import remove_after

            remove_after(self._mpirun, self._fronts.folder)

    def _stay_quick(self) -> float:
        """When to do so again: while programs are to come, entering their groups stays quick."""
        if not (self._to_come and self._has_groups):
            return float("inf")
        from popdist.poprun.protocol.control_group import QUICK_SECONDS, stay_quick

        stay_quick()
        return monotonic() + QUICK_SECONDS

    def _on_calls(self) -> bool:
        data = self._pending + os.read(self._fronts.calls, _READ_SIZE)
        *lines, self._pending = data.split(b"\n")
        for line in lines:
            front, word, *rank = line.split()
            if word == b"START":
                self._start(front, int(rank[0]))
            elif front in self._guards:
                self._guards[front].on_signal(_SIGNALS[word])
        return True

    @property
    def _is_over(self) -> bool:
        """Whether programs have been ended at once; one that started now would stay for ever."""
        loop = self._loop
        return loop.is_killed or loop.launcher_lost or self._mpirun_lost

    def _start(self, front: bytes, rank: int) -> None:
        self._to_come -= 1
        if self._is_over:  # one look at events may bring that and a front's call
            os.write(self._fronts.codes[rank], b"%d\n" % NOT_STARTED)
            return
        try:
            environ, words = _read_front(int(front))
        except OSError:
            words = []
        if not words:  # it was killed, of which mpirun knows
            return
        settings, program = read_words(words, environ)
        guard = Guard(
            settings,
            program,
            PipeChannel(int(settings["index"]), self._reports, LARGEST_ON_OWN_PIPE),
            _Front(environ, int(front), self._machine),
            above=(int(front),),
        )
        if self._loop.add(guard):
            self._guards[front] = guard
            self._ranks[guard] = rank
        else:
            os.write(self._fronts.codes[rank], b"%d\n" % NOT_STARTED)

    def _on_mpirun_end(self) -> bool:
        self._mpirun_lost = True
        for guard in self._loop.guards:
            guard.on_mpirun_end()
        return False

    def _end(self, guard: Guard) -> None:
        rank = self._ranks.pop(guard)
        if self._adopts:
            self._kill_detached(rank)
        code = guard.finish()
        os.write(self._fronts.codes[rank], b"%d\n" % code)

    def _kill_detached(self, rank: int) -> None:
        """Kills what an instance's program has detached; with the last program, all that is left.

        Detached processes are known by the variable that mpirun gave their program.
        """
        programs = {guard.pid for guard in self._loop.guards}
        if not programs and not self._to_come:
            kill_descendants(LAST_WORD_SECONDS)
        elif children_of(os.getpid()) - programs:
            mark = f"{_RANK}={rank}"
            kill_descendants(LAST_WORD_SECONDS, lambda child: mark in variables_of(child))


def _read_front(front: int) -> tuple[dict[str, str], list[str]]:
    """The environment for a program, and the words for its guard."""
    environ = {}
    for pair in words_of(f"/proc/{front}/environ"):
        name, equals, value = pair.partition("=")
        if equals and name != FRONT:
            environ[name] = value
    return environ, words_of(f"/proc/{front}/cmdline")[_SHELL_SCRIPT_PYTHON:]
