"""The user's requests to each part of the launcher, as typed records of option values.

A field has the name of its option with underscores, and its value unchanged.
"""

from __future__ import annotations

import os

from popdist.errors import UsageError
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from typing_extensions import Self


class Request(Record):
    """Base of the records; selects the options of a record."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The record from the values of all options, by name."""
        return cls(**{field: values[field.replace("_", "-")] for field in cls._fields})


class Reach(Request):
    """How other hosts are reached and prepared."""

    host_subnet: str | None = None
    preflight: bool = True
    distribute_ssh_key: bool = False
    synchronise_python_venv: bool = False


class Binding(Request):
    """How instances are bound on a host; None leaves the choice to the launcher."""

    numa_aware: bool | None = None
    process_placement: str | None = None

    def check(self) -> None:
        """Checks that the two options, one a newer form of the other, agree.

        Raises:
            UsageError: The options contradict each other.
        """
        newer = {None: None, "disabled": False}.get(self.process_placement, True)
        if None not in (newer, self.numa_aware) and newer != self.numa_aware:
            raise UsageError(
                "PD101",
                "--numa-aware and --process-placement contradict each other",
                value=f"--numa-aware={'yes' if self.numa_aware else 'no'} "
                f"--process-placement={self.process_placement}",
                accepted="yes with spreadnuma, no with disabled, or one of the two options",
                hint="leave out --numa-aware, which is the older form",
            )

    def applies(self, neighbours: int) -> bool:
        """Whether instances are bound to NUMA nodes.

        The user's choice applies; without a choice, instances are bound where a host has several.
        """
        if self.process_placement is not None:
            return self.process_placement != "disabled"
        return neighbours > 1 if self.numa_aware is None else self.numa_aware


class Partition(Request):
    """Which partition of devices the job wants, and what may be done to it."""

    vipu_server_host: str = "localhost"
    vipu_server_port: int = 8090
    vipu_server_timeout: float = 10.0
    vipu_partition: str | None = None
    vipu_partition_attempts: int = 1
    vipu_allocation: str | None = None
    vipu_cluster: str | None = None
    update_partition: bool = False
    reset_partition: bool | None = None
    remove_partition: bool = True
    ipu_link_routing_type: str | None = None
    gw_link_routing_type: str | None = None
    sync_type: str | None = None


class Limits(Request):
    """How the job may end; times are in seconds."""

    timeout: float | None = None
    stall_warning: float = 60.0
    stall_timeout: float | None = None
    max_restarts: int = 0
    min_instances: int | None = None
    grace_period: float = 5.0
    forward_signals: str = "USR1,USR2"
    host_timeout: float = 30.0
    allow_daemons: bool = False
    control_groups: bool | None = None
    check_weights: bool = True

    @property
    def longest_wait(self) -> float:
        """Seconds of waiting for other instances before a message; 0 for never."""
        return min((wait for wait in (self.stall_warning, self.stall_timeout) if wait), default=0.0)


class Display(Request):
    """What is shown and kept beside the programs' output."""

    json: str | None = None
    timeline: str | None = None
    log_dir: str | None = None
    status: str = "auto"
    color: str = "auto"
    repeated_output: str = "first"

    @property
    def shows_status(self) -> bool:
        """Whether there is a status line: on a terminal that can move the cursor, or always."""
        if self.status != "auto":
            return self.status == "always"
        return os.isatty(2) and os.environ.get("TERM") != "dumb"
