"""Horovod's basics under their published names, over the real ``horovod.tensorflow``."""

from __future__ import annotations

import os
from typing import Any

from popdist.alone import connected_by_gloo
from popdist_tf.collectives.binding import binding
from popdist_tf.errors import CollectiveError

# Horovod's own numbers for its reductions, known before it is initialised.
Average = binding().Average
Sum = binding().Sum
Adasum = binding().Adasum


def init(*args: Any, **kwargs: Any) -> None:
    """Starts Horovod among all processes of the job; safe to call again.

    A process that nobody launched is rank 0 of 1.

    Args:
        *args: Passed on to Horovod.
        **kwargs: Passed on to Horovod.
    """
    # popdist.execute_on_instances forms groups later, which must be allowed from the start.
    os.environ.setdefault("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    with connected_by_gloo(binding()):
        binding().init(*args, **kwargs)


def require_op(op: Any) -> Any:
    """Which reduction a program asks for.

    Args:
        op: `Average` or `Sum`; None for `Average`.

    Returns:
        One of the two.

    Raises:
        NotImplementedError: `Adasum`.
        CollectiveError: Another operation.
    """
    op = Average if op is None else op
    if op == Adasum:
        raise NotImplementedError("The Adasum reduction is not implemented")
    if op not in (Average, Sum):
        raise CollectiveError(
            "PD410", "this reduction is not supported", value=op, accepted="Average or Sum"
        )
    return op


shutdown = binding().shutdown
size = binding().size
rank = binding().rank
local_size = binding().local_size
local_rank = binding().local_rank
is_homogeneous = binding().is_homogeneous
mpi_threads_supported = binding().mpi_threads_supported
mpi_enabled = binding().mpi_enabled
mpi_built = binding().mpi_built
gloo_enabled = binding().gloo_enabled
gloo_built = binding().gloo_built
nccl_built = binding().nccl_built
ddl_built = binding().ddl_built
