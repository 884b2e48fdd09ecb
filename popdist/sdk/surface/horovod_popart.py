"""What ``horovod.popart`` publishes: its own few names, and Horovod's."""

from __future__ import annotations

from popdist.sdk.surface.vocabulary import surface, works

SURFACE = surface(
    "horovod.popart",
    "popdist_onnx.horovod",
    works(
        "init",
        "shutdown",
        "is_initialized",
        "rank",
        "size",
        "local_rank",
        "local_size",
        "cross_rank",
        "cross_size",
        "is_homogeneous",
        "mpi_threads_supported",
        "mpi_enabled",
        "mpi_built",
        "gloo_enabled",
        "gloo_built",
        "nccl_built",
        "Average",
        "Sum",
        "allreduce",
        "allgather",
        "broadcast",
        "DistributedTrainingSession",
    ),
    works(
        "DistributedOptimizer",
        note="Every optimizer is exchanged, by its raw gradients; sums over the processes, as in "
        "published results, unless op=Average is given.",
    ),
    works(
        "DistributedOptimizer.insert_host_allreduce",
        note="Called after prepareDevice; before the first step all processes compare their "
        "models, and where they differ all of them raise.",
    ),
    works("broadcast_weights"),
)
