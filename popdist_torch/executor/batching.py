"""Batch algebra: which rows of a call's tensors go to which replica, when. Arithmetic only.

A call brings tensors whose first dimension holds D x A x R micro-batches, the replica changing
fastest: row block ``(d * A + a) * R + r`` goes to local replica ``r`` in accumulation step ``a`` of
device iteration ``d`` (PopART glossary, "Input data shape"). Where replicas share input, R counts
groups of them. The original leaves the order open where groups meet several iterations or
accumulation steps; here it is the same.
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

        Args:
            options: The options.

        Returns:
            The counts.

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
        """Micro-batches that one call brings."""
        return self.iterations * self.accumulation * self.groups

    def part(self, iteration: int, step: int, replica: int) -> int:
        """The place of one micro-batch among those of a call.

        Args:
            iteration: Device iteration, from 0.
            step: Accumulation step, from 0.
            replica: Local replica, from 0.

        Returns:
            Its index, from 0.
        """
        group = replica % self.groups if self.orthogonal else replica // self.group_size
        return (iteration * self.accumulation + step) * self.groups + group

    def micro_batch(self, rows: int, name: str) -> int:
        """Divides a tensor's first dimension.

        Args:
            rows: Its length; 1 for a tensor without dimensions.
            name: What the tensor is, for the message.

        Returns:
            Rows of one micro-batch.

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
        return rows // self.parts
