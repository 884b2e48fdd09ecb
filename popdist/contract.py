"""The contract between launcher and instance: the ``POPDIST_*`` environment variables.

The only module that spells the variables' names. What `read` gives and what `write` takes pass the
same rules (`popdist.contract`), so what the launcher writes is what an instance accepts.
`popdist.popdist_core.Topology` is the face of the contract for programs; the launcher uses this
module directly, because it must start fast and ``dataclasses`` alone would cost it a third of its
time.

The published variables carry no number of instances: with uniform replicas it follows as
``total / local``. For non-uniform jobs the launcher adds ``POPDIST_NUM_INSTANCES`` and
``POPDIST_INSTANCE_INDEX``, which are optional and checked against the rest when present.
"""

from __future__ import annotations

from popdist.errors import ContractError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Fields = Mapping[str, Any]
    from typing import NoReturn


def _positive(text: str) -> int | None:
    number = natural(text)
    return number or None


def natural(text: str) -> int | None:
    """A whole number in plain digits, of a length that can be meant; None for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None  # noqa: PLR2004


def _flag(text: str) -> bool | None:
    return {"0": False, "1": True}.get(text)


def _path(text: str) -> str | None:
    return text or None


class Variable:
    """One variable of the contract.

    Attributes:
        name: The name in the environment.
        field: The field of `popdist.popdist_core.Topology` that it sets.
        parse: Text to value, or None where the text is not accepted.
        accepted: What is accepted, in words.
        meaning: One line for the documentation.
        needs_total: Whether it makes sense only beside ``POPDIST_NUM_TOTAL_REPLICAS``.
    """

    def __init__(
        self,
        name: str,
        field: str,
        parse: Callable[[str], int | bool | str | None],
        meaning: str,
        *,
        needs_total: bool = True,
    ) -> None:
        self.name = name
        self.field = field
        self.parse = parse
        self.accepted = _ACCEPTED[parse]
        self.meaning = meaning
        self.needs_total = needs_total


_ACCEPTED: dict[Callable[[str], object], str] = {
    _positive: "a whole number, 1 or more",
    natural: "a whole number, 0 or more",
    _flag: "0 or 1",
    _path: "a path",
}

TOTAL = "POPDIST_NUM_TOTAL_REPLICAS"

VARIABLES: tuple[Variable, ...] = (
    Variable(
        TOTAL,
        "num_total_replicas",
        _positive,
        "replicas of the whole job; its presence marks a job started by poprun",
    ),
    Variable(
        "POPDIST_NUM_LOCAL_REPLICAS", "num_local_replicas", _positive, "replicas of this instance"
    ),
    Variable(
        "POPDIST_REPLICA_INDEX_OFFSET",
        "replica_index_offset",
        natural,
        "global index of this instance's first replica",
    ),
    Variable(
        "POPDIST_NUM_IPUS_PER_REPLICA",
        "num_ipus_per_replica",
        _positive,
        "devices that one replica uses",
        needs_total=False,
    ),
    Variable(
        "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE",
        "uniform",
        _flag,
        "whether every instance has the same number of replicas",
    ),
    Variable(
        "POPDIST_NUM_INSTANCES",
        "num_instances",
        _positive,
        "instances of the whole job (ours; derived as total / local where absent)",
    ),
    Variable(
        "POPDIST_INSTANCE_INDEX",
        "instance_index",
        natural,
        "index of this instance (ours; derived as offset / local where absent)",
    ),
    Variable(
        "POPDIST_LOCAL_INSTANCE_INDEX",
        "local_instance_index",
        natural,
        "index of this instance among those on its host",
    ),
    Variable(
        "POPDIST_DEVICE_ID",
        "device_id",
        natural,
        "index of this instance's first device on its host (ours; derived where absent)",
    ),
    Variable(
        "POPDIST_RESTART_COUNT",
        "restart_count",
        natural,
        "how often the launcher has started this job again after a failure (ours)",
    ),
    Variable(
        "POPDIST_OFFLINE_MODE",
        "offline",
        _flag,
        "whether the job runs without attaching to devices (ours)",
        needs_total=False,
    ),
    Variable(
        "POPDIST_IPU_VERSION",
        "ipu_version",
        _positive,
        "version of the IPUs that programs are told to be here, such as 2 for a Mk2 (ours)",
        needs_total=False,
    ),
    Variable(
        "POPDIST_EXECUTABLE_CACHE_PATH",
        "executable_cache_path",
        _path,
        "folder for compiled programs",
        needs_total=False,
    ),
    Variable(
        "POPDIST_RUN_FOLDER",
        "run_folder",
        _path,
        "folder in which the launcher keeps this run, and in which instances note metrics (ours)",
    ),
    Variable(
        "POPDIST_COMPARE_FOLDER",
        "compare_folder",
        _path,
        "folder in which --compare-alone records the weights after each update (ours)",
        needs_total=False,
    ),
    Variable(
        "POPDIST_COMPARE_REPLICAS",
        "compare_replicas",
        _positive,
        "replicas of the job with which --compare-alone compares this process (ours)",
        needs_total=False,
    ),
)
"""The whole contract, in the order in which the launcher writes it."""

NAMES = {variable.field: variable.name for variable in VARIABLES}

SKIP_CHECKS = "POPDIST_SKIP_CHECKS"
"""Names of the checks that a program's owner switches off, with commas; ``all`` for every one."""


def skipped_checks(environ: Mapping[str, str]) -> frozenset[str]:
    """The names in ``POPDIST_SKIP_CHECKS``.

    Args:
        environ: A mapping such as ``os.environ``.

    Returns:
        The names; empty where the variable is not set.
    """
    names = (name.strip() for name in environ.get(SKIP_CHECKS, "").split(","))
    return frozenset(name for name in names if name)


def read(environ: Mapping[str, str]) -> dict[str, Any]:
    """Reads the contract from an environment.

    Args:
        environ: A mapping such as ``os.environ``.

    Returns:
        The fields that are set or follow from those that are; none without a launcher.

    Raises:
        ContractError: A variable is malformed, or missing beside another.
    """
    fields: dict[str, Any] = {}
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
        fields[variable.field] = value
    if "num_total_replicas" in fields:
        _derive(fields)
    else:
        _reject_orphans(fields)
    return fields


def write(fields: Fields) -> dict[str, str]:
    """Writes the contract.

    Args:
        fields: Values by field; ``launched`` tells whether there is a job to speak of.

    Returns:
        Variable names with their values.
    """
    launched = fields["launched"]
    return {
        variable.name: written(fields[variable.field])
        for variable in VARIABLES
        if fields[variable.field] is not None and (launched or not variable.needs_total)
    }


def written(value: object) -> str:
    """How a value is written."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _derive(fields: dict[str, Any]) -> None:
    """Fills in what the published variables leave to be derived."""
    fields["launched"] = True
    local = fields.setdefault("num_local_replicas", 1)
    offset = fields.setdefault("replica_index_offset", 0)
    if fields.get("uniform", True):
        fields.setdefault("num_instances", fields["num_total_replicas"] // local)
        fields.setdefault("instance_index", offset // local)
    else:
        fields.setdefault("num_instances", None)
        fields.setdefault("instance_index", None)
    per_instance = local * fields.get("num_ipus_per_replica", 1)
    fields.setdefault("device_id", fields.get("local_instance_index", 0) * per_instance)


def _reject_orphans(fields: Fields) -> None:
    for variable in VARIABLES:
        if variable.needs_total and variable.field in fields:
            raise ContractError(
                "PD002",
                f"environment variable {variable.name} is set, but {TOTAL} is not",
                value=f"{variable.name}={written(fields[variable.field])}",
                accepted="all variables of a job, or none",
                hint=f"unset {variable.name} to run alone, or start the program with poprun",
            )


# What the fields of the contract must have in common, whichever way they came about.


def check(fields: Fields) -> None:
    """Checks that the fields do not contradict each other.

    Args:
        fields: A value for every field.

    Raises:
        ContractError: They do; the message names the variables and the rule.
    """
    _check_replicas(fields)
    _check_instances(fields)


def _check_replicas(fields: Fields) -> None:
    local, total = fields["num_local_replicas"], fields["num_total_replicas"]
    if fields["replica_index_offset"] + local > total:
        _contradiction(
            "this instance's replicas lie beyond the job's: "
            "offset + local replicas must not exceed the total",
            fields,
            ("replica_index_offset", "num_local_replicas", "num_total_replicas"),
            "start the program with poprun, or correct the three variables together",
        )
    for field in ("num_total_replicas", "replica_index_offset"):
        if fields["uniform"] and fields[field] % local:
            _contradiction(
                f"{NAMES[field]} must be a multiple of {NAMES['num_local_replicas']} "
                "while replicas are uniform",
                fields,
                (field, "num_local_replicas"),
                f"set {NAMES['uniform']}=0 where instances differ",
            )


def _check_instances(fields: Fields) -> None:
    number, index = fields["num_instances"], fields["instance_index"]
    both = ("num_instances", "instance_index")
    if (number is None) != (index is None) or (number is None and fields["uniform"]):
        _contradiction(
            f"{NAMES['num_instances']} and {NAMES['instance_index']} go together, "
            "and a uniform job always has both",
            fields,
            both,
            "set both or neither",
        )
    if number is None:
        return
    if index >= number:
        _contradiction(
            f"{NAMES['instance_index']} must be smaller than {NAMES['num_instances']}",
            fields,
            both,
            "instances are numbered from 0",
        )
    local = fields["num_local_replicas"]
    total, offset = fields["num_total_replicas"], fields["replica_index_offset"]
    if fields["uniform"] and (number, index) != (total // local, offset // local):
        _contradiction(
            "instances and replicas disagree: a uniform job has total / local instances, "
            "and this one's index is offset / local",
            fields,
            (*both, "num_total_replicas", "num_local_replicas", "replica_index_offset"),
            f"unset {NAMES['num_instances']} and {NAMES['instance_index']}, or correct them",
        )
    # Every other instance needs a replica of its own, before or after this one's.
    before, after = index, number - index - 1
    free_after = total - offset - local
    if not (_can_share(offset, before) and _can_share(free_after, after)):
        _contradiction(
            "the replicas before and after this instance cannot be divided over the other "
            "instances, each of which has at least one",
            fields,
            ("replica_index_offset", "num_local_replicas", "num_total_replicas", *both),
            "start the program with poprun, or correct the variables together",
        )


def _can_share(replicas: int, instances: int) -> bool:
    return replicas >= instances if instances else replicas == 0


def _contradiction(what: str, fields: Fields, shown: tuple[str, ...], hint: str) -> NoReturn:
    seen = ", ".join(
        f"{NAMES[field]}={'(unset)' if fields[field] is None else written(fields[field])}"
        for field in shown
    )
    raise ContractError("PD002", what, value=seen, hint=hint)
