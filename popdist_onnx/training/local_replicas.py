"""The replicas of this process in its job, under poprun or another launcher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from popdist import backend
from popdist.popdist_core import topology
from popdist_onnx.runtime.collectives import digest, require_agreement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from popdist_onnx.runtime.state import Array

_LOOKED_AT = 64


@dataclass(frozen=True)
class LocalReplicas:
    """The replicas of a job that a process runs.

    Attributes:
        first_replica: Index of the process's first replica.
        local_replicas: Replicas of the process.
        total_replicas: Replicas of the job.
        first: Whether this process reports for the job.
        horovod: The binding of Horovod, initialised, where another launcher than poprun started
            several processes.
    """

    first_replica: int
    local_replicas: int
    total_replicas: int
    first: bool
    horovod: Any = None

    @property
    def is_shared(self) -> bool:
        """Whether other processes take part."""
        return self.total_replicas > self.local_replicas

    @property
    def own(self) -> slice:
        """The process's replicas among all."""
        return slice(self.first_replica, self.first_replica + self.local_replicas)

    def summed(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Numbers summed over the job's processes."""
        if not self.is_shared:
            return dict(numbers)
        from popdist_onnx import horovod

        given = np.asarray(list(numbers.values()), np.float64)
        total = horovod.allreduce(given, op=horovod.Sum, name="popdist_onnx.training_numbers")
        return dict(zip(numbers, (float(one) for one in total), strict=True))

    def from_first(self, content: dict[str, Any]) -> dict[str, Any]:
        """The content that the job's first process has."""
        if not self.is_shared:
            return content
        horovod: Any = backend.connect(backend.ARRAYS)
        found: dict[str, Any] = horovod.broadcast_object(content, root_rank=0)
        return found

    def require_same(self, data: Mapping[str, Array], **facts: object) -> None:
        """Compares what decides the number of updates and their samples.

        With different facts an instance waits for an update that another instance never makes, or
        samples are used twice. Of a data set's values only a few samples are compared: where each
        instance has a part of its own, those samples differ.

        Raises:
            popart_exception: Instances differ; raised on all of them.
        """
        if not self.is_shared:
            return
        looks = {f"values of {name}": digest(_few(array)) for name, array in data.items()}
        require_agreement(
            {name.replace("_", " "): str(value) for name, value in facts.items()} | looks,
            backend.connect(backend.ARRAYS),
            hint="give every instance the whole data set and the same settings; fit takes this "
            "instance's part of every global batch by itself",
        )


def _few(array: Array) -> Array:
    last = len(array) - 1
    few: Array = array[np.linspace(0, last, min(len(array), _LOOKED_AT), dtype=np.int64)]
    return few


def current_job() -> LocalReplicas:
    """The place in poprun's job, else in another launcher's job with one replica each, else alone.

    Raises:
        BackendError: No usable Horovod is installed, or it sees another job than the launcher's.
    """
    here = topology()
    if here.launched:
        first = here.replica_index_offset
        return LocalReplicas(first, here.num_local_replicas, here.num_total_replicas, first == 0)
    horovod = backend.connect(backend.ARRAYS)
    if horovod is None:
        return LocalReplicas(0, 1, 1, first=True)
    rank = int(horovod.rank())
    return LocalReplicas(rank, 1, int(horovod.size()), rank == 0, horovod)
