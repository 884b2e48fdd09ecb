"""Batch arithmetic: which rows of a call's tensors each replica receives, and when.

The first dimension of a call's tensors holds D x A x R micro-batches. The replica changes fastest:
row block ``(d * A + a) * R + r`` goes to local replica ``r`` in accumulation step ``a`` of device
iteration ``d`` (PopART glossary, "Input data shape"). Where replicas share input, R counts groups
of them. The original does not define the order for groups with several iterations or accumulation
steps; here the same formula holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from popdist_torch.errors import BatchError
from popdist_torch.options.enums import CommGroupType

if TYPE_CHECKING:
    from popdist_torch.options import Options


@dataclass(frozen=True)
class Batching:
    """The counts that a call multiplies.

    Attributes:
        iterations: Device iterations D.
        accumulation: Accumulation steps A.
        replicas: Local replicas.
        group_size: Replicas that read the same input.
        orthogonal: Whether a group is every n-th replica, n groups apart, and not neighbours.
    """

    iterations: int
    accumulation: int
    replicas: int
    group_size: int = 1
    orthogonal: bool = False

    @classmethod
    def of(cls, options: Options) -> Batching:
        """The counts that options set.

        Raises:
            BatchError: The replicas cannot be grouped as asked.
        """
        size = options.input_group_size
        if options.replication_factor % size:
            raise BatchError(
                "PD301",
                "inputReplicaGrouping needs a group size that divides the replicas",
                value=f"groups of {size}, {options.replication_factor} local replicas",
            )
        return cls(
            iterations=options.device_iterations,
            accumulation=options.Training.gradient_accumulation,
            replicas=options.replication_factor,
            group_size=size,
            orthogonal=options.input_cgt == CommGroupType.Orthogonal,
        )

    @property
    def groups(self) -> int:
        """Groups of local replicas that read the same input."""
        return self.replicas // self.group_size

    @property
    def parts(self) -> int:
        """Micro-batches of one call."""
        return self.iterations * self.accumulation * self.groups

    def part(self, iteration: int, step: int, replica: int) -> int:
        """The index of one micro-batch among those of a call; all indices start at 0."""
        group = replica % self.groups if self.orthogonal else replica // self.group_size
        return (iteration * self.accumulation + step) * self.groups + group

    def require_divisible(self, rows: int, name: str) -> None:
        """Checks the length of a tensor's first dimension.

        Raises:
            BatchError: The rows do not divide.
        """
        if rows % self.parts:
            raise BatchError(
                "PD301",
                f"Invalid batch dimension: {name} cannot be divided into micro-batches",
                value=f"{rows} rows",
                accepted=f"a multiple of {self.parts} = {self.iterations} device iterations x "
                f"{self.accumulation} accumulation steps x {self.groups} local replicas"
                f"{'' if self.group_size == 1 else ' (groups of them)'}",
                hint="feed the model from popdist_torch.DataLoader with drop_last=True",
            )
