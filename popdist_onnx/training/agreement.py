"""Do all instances train on the same data set in the same order? Asked before the first update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.runtime.allreduce import require_agreement

if TYPE_CHECKING:
    from popdist_onnx.training.job import Job


def require_same_training(job: Job, **facts: object) -> None:
    """Compares what decides how many updates are made, and of which samples.

    Where it differs, an instance waits for an update that another never makes, or samples are
    taken twice.

    Args:
        job: This process's place in its job.
        **facts: What must be equal on all instances.

    Raises:
        popart_exception: Instances differ; raised on all of them.
    """
    if job.total_replicas == job.local_replicas:
        return
    # Imported here because it brings torch, which training in one process never needs.
    from popdist.exchange import connect

    require_agreement(
        {name.replace("_", " "): str(value) for name, value in facts.items()},
        job.horovod or connect(),
        hint="give every instance the whole data set and the same settings; fit takes this "
        "instance's part of every global batch by itself",
    )
