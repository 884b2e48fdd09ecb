"""Pictures of the contract and of placement, made by the launcher's own placement."""

from __future__ import annotations

from svg import BLUE, GREEN, GREY, ORANGE, Picture  # beside this script

from popdist import contract
from popdist.poprun.machines.hosts import Host
from popdist.poprun.plan.job import Job
from popdist.poprun.plan.placement import Instance, place


def contract_picture() -> str:
    """What poprun writes, instance by instance, and who reads it."""
    instances = _place(2, 4)
    shown = contract.write(instances[0].fields)
    picture = Picture(860, 110 + 17 * len(shown), "poprun writes variables, programs read them")
    picture.labelled(260, 8, 340, 28, "poprun --num-instances 2 --num-replicas 4", GREY)
    for column, instance in enumerate(instances):
        left = 20 + 420 * column
        values = contract.write(instance.fields)
        picture.arrow(430, 36, left + 200, 66)
        picture.box(left, 68, 400, 30 + 17 * len(values), BLUE)
        picture.words(left + 200, 86, f"environment of instance {instance.index}", size=13)
        for row, (name, value) in enumerate(values.items()):
            picture.words(left + 12, 106 + 17 * row, f"{name}={value}", place="start", size=11)
    return picture.text()


def placement_picture() -> str:
    """Ten replicas in four instances on two hosts."""
    instances = _place(4, 10, (Host("node1"), Host("node2")))
    picture = Picture(860, 190, "Ten replicas in four instances on two hosts")
    left = 10.0
    for host in ("node1", "node2"):
        mine = [one for one in instances if one.host.name == host]
        width = sum(70 * one.num_local_replicas + 20 for one in mine) + 10
        picture.box(left, 10, width, 170, GREY)
        picture.words(left + width / 2, 28, f"host {host}")
        inner = left + 10
        for one in mine:
            span = 70.0 * one.num_local_replicas + 10
            picture.box(inner, 40, span, 130, BLUE)
            picture.words(inner + span / 2, 58, f"instance {one.index} = rank {one.index}")
            for local in range(one.num_local_replicas):
                number = one.fields["replica_index_offset"] + local
                picture.labelled(inner + 8 + 70 * local, 72, 62, 40, f"replica {number}", GREEN)
            picture.labelled(inner + 8, 124, span - 16, 34, "sum of its replicas", ORANGE)
            inner += span + 10
        left += width + 10
    return picture.text()


def _place(instances: int, replicas: int, hosts: tuple[Host, ...] = ()) -> tuple[Instance, ...]:
    job = Job(program=("true",), num_instances=instances, num_replicas=replicas, hosts=hosts)
    return place(job)


PICTURES = {"contract": contract_picture, "placement": placement_picture}
"""By the name of the file."""
