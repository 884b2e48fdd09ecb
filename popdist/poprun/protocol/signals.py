"""The signals by which poprun, mpirun and guards reach each other and the program."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` adds enums, for 5 ms

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a program gets when mpirun, or the launcher, sends them."""

END_SOFTLY, END_AT_ONCE = signal.SIGALRM, signal.SIGABRT
"""What the launcher sends mpirun for guards on other hosts, where it cannot reach them itself.

mpirun carries both to all of its programs and does nothing about them, whereas after SIGTERM it
grants the programs a second, whatever --grace-period says."""

KILL_NOW = signal.SIGQUIT
"""Tells a guard to end its program without patience; mpirun never sends it."""

WAKE = signal.SIGCONT
"""Asks a guard for the Python stacks of its program; mpirun carries it to other hosts. The kernel
sends it when a guard's parent has ended, as a guard that was stopped must hear of that."""
