"""What the fields of the contract must have in common, whichever way they came about."""

from __future__ import annotations

from popdist.contract import NAMES, written
from popdist.errors import ContractError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from popdist.contract import Fields


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
