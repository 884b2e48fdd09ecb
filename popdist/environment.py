"""The contract between launcher and instance: the ``POPDIST_*`` environment variables.

The only module that spells the variables' names. It reads them (`Topology.from_environ`) and writes
them (`Topology.to_environ`); both directions pass the same validation, so what the launcher writes
is what an instance accepts.

The published variables carry no number of instances: with uniform replicas it follows as
``total / local``. For non-uniform jobs the launcher adds ``POPDIST_NUM_INSTANCES`` and
``POPDIST_INSTANCE_INDEX``, which are optional and checked against the rest when present.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from popdist.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NUMBER = re.compile(r"[0-9]{1,9}")


def _positive(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) and int(text) > 0 else None


def _natural(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _flag(text: str) -> bool | None:
    return {"0": False, "1": True}.get(text)


def _path(text: str) -> str | None:
    return text or None


@dataclass(frozen=True)
class Variable:
    """One variable of the contract.

    Attributes:
        name: The name in the environment.
        field: The field of `Topology` that it sets.
        parse: Text to value, or None where the text is not accepted.
        accepted: What is accepted, in words.
        meaning: One line for the documentation.
        needs_total: Whether it makes sense only beside ``POPDIST_NUM_TOTAL_REPLICAS``.
    """

    name: str
    field: str
    parse: Callable[[str], int | bool | str | None]
    accepted: str
    meaning: str
    needs_total: bool = True


_AT_LEAST_1 = "a whole number, 1 or more"
_AT_LEAST_0 = "a whole number, 0 or more"

TOTAL = "POPDIST_NUM_TOTAL_REPLICAS"

VARIABLES: tuple[Variable, ...] = (
    Variable(
        TOTAL,
        "num_total_replicas",
        _positive,
        _AT_LEAST_1,
        "replicas of the whole job; its presence marks a job started by poprun",
    ),
    Variable(
        "POPDIST_NUM_LOCAL_REPLICAS",
        "num_local_replicas",
        _positive,
        _AT_LEAST_1,
        "replicas of this instance",
    ),
    Variable(
        "POPDIST_REPLICA_INDEX_OFFSET",
        "replica_index_offset",
        _natural,
        _AT_LEAST_0,
        "global index of this instance's first replica",
    ),
    Variable(
        "POPDIST_NUM_IPUS_PER_REPLICA",
        "num_ipus_per_replica",
        _positive,
        _AT_LEAST_1,
        "devices that one replica uses",
        needs_total=False,
    ),
    Variable(
        "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE",
        "uniform",
        _flag,
        "0 or 1",
        "whether every instance has the same number of replicas",
    ),
    Variable(
        "POPDIST_NUM_INSTANCES",
        "num_instances",
        _positive,
        _AT_LEAST_1,
        "instances of the whole job (ours; derived as total / local where absent)",
    ),
    Variable(
        "POPDIST_INSTANCE_INDEX",
        "instance_index",
        _natural,
        _AT_LEAST_0,
        "index of this instance (ours; derived as offset / local where absent)",
    ),
    Variable(
        "POPDIST_LOCAL_INSTANCE_INDEX",
        "local_instance_index",
        _natural,
        _AT_LEAST_0,
        "index of this instance among those on its host",
    ),
    Variable(
        "POPDIST_DEVICE_ID",
        "device_id",
        _natural,
        _AT_LEAST_0,
        "index of this instance's first device on its host (ours; derived where absent)",
    ),
    Variable(
        "POPDIST_OFFLINE_MODE",
        "offline",
        _flag,
        "0 or 1",
        "whether the job runs without attaching to devices (ours)",
        needs_total=False,
    ),
    Variable(
        "POPDIST_EXECUTABLE_CACHE_PATH",
        "executable_cache_path",
        _path,
        "a path",
        "folder for compiled programs",
        needs_total=False,
    ),
)
"""The whole contract, in the order in which the launcher writes it."""

_BY_FIELD = {variable.field: variable for variable in VARIABLES}


def _contradiction(what: str, value: object, hint: str) -> NoReturn:
    raise ContractError("PD002", what, value=value, hint=hint)


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Where one instance stands in its job.

    Attributes:
        launched: Whether the variables of a launcher are present.
        num_total_replicas: Replicas of the whole job.
        num_local_replicas: Replicas of this instance.
        replica_index_offset: Global index of this instance's first replica.
        num_ipus_per_replica: Devices that one replica uses.
        uniform: Whether every instance has the same number of replicas.
        num_instances: Instances of the job; None in a non-uniform job of a foreign launcher.
        instance_index: Index of this instance; None in the same case.
        local_instance_index: Index of this instance among those on its host.
        device_id: Index of this instance's first device on its host.
        offline: Whether the job runs without attaching to devices.
        executable_cache_path: Folder for compiled programs.

    Raises:
        ContractError: The fields contradict each other.
    """

    launched: bool = False
    num_total_replicas: int = 1
    num_local_replicas: int = 1
    replica_index_offset: int = 0
    num_ipus_per_replica: int = 1
    uniform: bool = True
    num_instances: int | None = 1
    instance_index: int | None = 0
    local_instance_index: int = 0
    device_id: int = 0
    offline: bool = False
    executable_cache_path: str | None = None

    def __post_init__(self) -> None:
        self._check_replicas()
        self._check_instances()

    def _check_replicas(self) -> None:
        end = self.replica_index_offset + self.num_local_replicas
        if end > self.num_total_replicas:
            _contradiction(
                "this instance's replicas lie beyond the job's: "
                "offset + local replicas must not exceed the total",
                f"{self._shown('replica_index_offset')}, {self._shown('num_local_replicas')}, "
                f"{self._shown('num_total_replicas')}",
                "start the program with poprun, or correct the three variables together",
            )
        if not self.uniform:
            return
        for field in ("num_total_replicas", "replica_index_offset"):
            if getattr(self, field) % self.num_local_replicas:
                _contradiction(
                    f"{_BY_FIELD[field].name} must be a multiple of "
                    "POPDIST_NUM_LOCAL_REPLICAS while replicas are uniform",
                    f"{self._shown(field)}, {self._shown('num_local_replicas')}",
                    "set POPDIST_UNIFORM_REPLICAS_PER_INSTANCE=0 where instances differ",
                )

    def _check_instances(self) -> None:
        if (self.num_instances is None) != (self.instance_index is None):
            _contradiction(
                "POPDIST_NUM_INSTANCES and POPDIST_INSTANCE_INDEX go together",
                f"{self._shown('num_instances')}, {self._shown('instance_index')}",
                "set both or neither",
            )
        if self.num_instances is None or self.instance_index is None:
            if self.uniform:
                _contradiction(
                    "a uniform job always has a number of instances",
                    self._shown("uniform"),
                    "leave the instance fields out to have them derived",
                )
            return
        if self.instance_index >= self.num_instances:
            _contradiction(
                "POPDIST_INSTANCE_INDEX must be smaller than POPDIST_NUM_INSTANCES",
                f"{self._shown('instance_index')}, {self._shown('num_instances')}",
                "instances are numbered from 0",
            )
        if self.uniform and (self.num_instances, self.instance_index) != (
            self.num_total_replicas // self.num_local_replicas,
            self.replica_index_offset // self.num_local_replicas,
        ):
            _contradiction(
                "instances and replicas disagree: a uniform job has total / local instances, "
                "and this one's index is offset / local",
                ", ".join(
                    self._shown(field)
                    for field in (
                        "num_instances",
                        "instance_index",
                        "num_total_replicas",
                        "num_local_replicas",
                        "replica_index_offset",
                    )
                ),
                "unset POPDIST_NUM_INSTANCES and POPDIST_INSTANCE_INDEX, or correct them",
            )
        self._check_room_for_others(self.num_instances, self.instance_index)

    def _check_room_for_others(self, num_instances: int, index: int) -> None:
        """Every other instance needs a replica of its own, before or after this one's."""
        after = self.num_total_replicas - self.replica_index_offset - self.num_local_replicas
        others_after = num_instances - index - 1
        fits = self.replica_index_offset >= index and after >= others_after
        ends = (index > 0 or self.replica_index_offset == 0) and (others_after > 0 or after == 0)
        if not (fits and ends):
            _contradiction(
                "the replicas before and after this instance cannot be divided over the other "
                "instances, each of which has at least one",
                f"{self._shown('replica_index_offset')}, {self._shown('num_local_replicas')}, "
                f"{self._shown('num_total_replicas')}, {self._shown('num_instances')}, "
                f"{self._shown('instance_index')}",
                "start the program with poprun, or correct the variables together",
            )

    def _shown(self, field: str) -> str:
        return f"{_BY_FIELD[field].name}={_write(getattr(self, field))}"

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Topology:
        """Reads the contract from an environment.

        Args:
            environ: A mapping such as ``os.environ``.

        Returns:
            The topology; the single-instance default where no launcher's variables are present.

        Raises:
            ContractError: A variable is malformed, missing beside another, or contradicts another.
        """
        seen: dict[str, Any] = {}
        for variable in VARIABLES:
            text = environ.get(variable.name)
            if text is None:
                continue
            value = variable.parse(text)
            if value is None:
                raise ContractError(
                    "PD001",
                    f"environment variable {variable.name} is malformed",
                    value=text,
                    accepted=variable.accepted,
                    hint=f"unset {variable.name}, or start the program with poprun, which sets it",
                )
            seen[variable.field] = value
        if "num_total_replicas" not in seen:
            _reject_orphans(seen)
        else:
            seen["launched"] = True
            _derive(seen)
        return cls(**seen)

    def to_environ(self) -> dict[str, str]:
        """Writes the contract.

        Returns:
            Variable names with their values; `from_environ` of it gives an equal topology. Empty of
            replica variables where ``launched`` is False.
        """
        written = {}
        for variable in VARIABLES:
            value = getattr(self, variable.field)
            if value is None or (variable.needs_total and not self.launched):
                continue
            written[variable.name] = _write(value)
        return written


def _write(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _reject_orphans(seen: Mapping[str, object]) -> None:
    for variable in VARIABLES:
        if variable.needs_total and variable.field in seen:
            raise ContractError(
                "PD002",
                f"environment variable {variable.name} is set, but {TOTAL} is not",
                value=f"{variable.name}={_write(seen[variable.field])}",
                accepted="all variables of a job, or none",
                hint=f"unset {variable.name} to run alone, or start the program with poprun",
            )


def _derive(seen: dict[str, Any]) -> None:
    """Fills in what the published variables leave to be derived."""
    local = seen.setdefault("num_local_replicas", 1)
    offset = seen.setdefault("replica_index_offset", 0)
    if seen.get("uniform", True):
        seen.setdefault("num_instances", seen["num_total_replicas"] // local)
        seen.setdefault("instance_index", offset // local)
    else:
        seen.setdefault("num_instances", None)
        seen.setdefault("instance_index", None)
    per_instance = local * seen.get("num_ipus_per_replica", 1)
    seen.setdefault("device_id", seen.get("local_instance_index", 0) * per_instance)
