"""Do all instances train on the same data set in the same order? Asked before the first update."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.runtime.allreduce import digest, require_agreement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from popdist_onnx.runtime.cells import Array
    from popdist_onnx.training.job import Job

_LOOKED_AT = 64


def require_same_training(job: Job, data: Mapping[str, Array], **facts: object) -> None:
    """Compares what decides how many updates are made, and of which samples.

    Where it differs, an instance waits for an update that another never makes, or samples are
    taken twice and others never. Of a data set's values a few samples are compared: who has divided
    it already differs in all of them.

    Args:
        job: This process's place in its job.
        data: The data set; arrays with the samples as first dimension, by id.
        **facts: What must be equal on all instances.

    Raises:
        popart_exception: Instances differ; raised on all of them.
    """
    if job.total_replicas == job.local_replicas:
        return
    # Imported here because it brings torch, which training in one process never needs.
    from popdist.exchange import connect

    looks = {f"values of {name}": digest(_few(array)) for name, array in data.items()}
    require_agreement(
        {name.replace("_", " "): str(value) for name, value in facts.items()} | looks,
        job.horovod or connect(),
        hint="give every instance the whole data set and the same settings; fit takes this "
        "instance's part of every global batch by itself",
    )


def _few(array: Array) -> Array:
    last = len(array) - 1
    few: Array = array[np.linspace(0, last, min(len(array), _LOOKED_AT), dtype=np.int64)]
    return few
