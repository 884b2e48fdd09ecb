"""The attributes and enumerations of `IPUConfig`, as published, and their effects on a host."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from popdist.settings import Setting

if TYPE_CHECKING:
    from popdist_tf.config.nested import Table


# The published enumerations of the configuration.


class DeviceConnectionType(Enum):
    """When a program attaches to its devices."""

    ALWAYS = 0
    ON_DEMAND = 1
    NEVER = 2
    PRE_COMPILE = 3


class SelectionOrder(Enum):
    """In which order devices are taken."""

    AUTO = 0
    ZIGZAG = 1
    SNAKE = 2
    HOOF = 3


class SchedulingAlgorithm(Enum):
    """Which scheduler orders a program's operations."""

    CHOOSE_BEST = 0
    CLUSTERING = 1
    POST_ORDER = 2
    LOOK_AHEAD = 3
    SHORTEST_PATH = 4


class StochasticRoundingBehaviour(Enum):
    """Whether values are rounded stochastically."""

    OFF = 0
    ON = 1
    REPLICA_IDENTICAL_ONLY = 2

    @staticmethod
    def from_bool(value: object) -> StochasticRoundingBehaviour:
        """`ON` for a true value, otherwise `OFF`.

        Args:
            value: What older programs set.
        """
        return StochasticRoundingBehaviour.ON if value else StochasticRoundingBehaviour.OFF


class ExecutionProfileType(Enum):
    """What a profile records (the options of SDK 2.2 and before)."""

    NO_PROFILE = 0
    DEVICE_PROFILE = 1
    IPU_PROFILE = 2
    TILE_PROFILE = 3


class MergeRemoteBuffersBehaviour(Enum):
    """Whether remote buffers of equal shape are merged."""

    NO_MERGING = 0
    MERGE = 1
    IF_BENEFICIAL = 2


_FLAG_OFF = Setting(default=False, types=(bool,))
_FLAG_ON = Setting(default=True, types=(bool,))
_TEXT = Setting(default="", types=(str,))
_COUNT = Setting(default=0, types=(int,))
_OPTIONS = Setting(default={}, types=(dict,))

_DEVICES = "how many local devices (GPUs, or parts of the CPU) this process takes"

ATTRIBUTES: Table = {
    "allow_recompute": _FLAG_OFF,
    "auto_select_ipus": Setting(default=[], types=(int, list, tuple), items=int, effect=_DEVICES),
    "select_ipus": Setting(default=[], types=(int, list, tuple), items=int, effect=_DEVICES),
    "selection_order": Setting(default=SelectionOrder.AUTO, types=(SelectionOrder,)),
    "serialization_output_folder": _TEXT,
    "compilation_poplar_options": _OPTIONS,
    "gcl_poplar_options": _OPTIONS,
    "convolutions": {"poplar_options": _OPTIONS},
    "device_connection": {
        "enable_remote_buffers": _FLAG_OFF,
        "type": Setting(default=DeviceConnectionType.ALWAYS, types=(DeviceConnectionType,)),
        "version": _TEXT,
    },
    "experimental": {
        "always_rearrange_copies_on_the_host": _FLAG_OFF,
        "enable_prng_stability": _FLAG_OFF,
        "enable_remote_buffer_embedding": _FLAG_OFF,
        "multi_replica_distribution": {
            "process_count": Setting(
                default=0, types=(int,), effect="checked against the job's instances"
            ),
            "process_index": Setting(
                default=0, types=(int,), effect="checked against this instance's index"
            ),
        },
    },
    "floating_point_behaviour": {
        "div0": _FLAG_OFF,
        "esr": Setting(
            default=StochasticRoundingBehaviour.OFF,
            types=(StochasticRoundingBehaviour, bool),
        ),
        "inv": _FLAG_OFF,
        "nanoo": _FLAG_OFF,
        "oflo": _FLAG_OFF,
        "set_all": _FLAG_OFF,
    },
    "io_tiles": {
        "available_memory_proportion": Setting(default=0.9, types=(float,)),
        "num_io_tiles": _COUNT,
        "place_ops_on_io_tiles": _FLAG_OFF,
    },
    "ipu_model": {
        "compile_ipu_code": _FLAG_ON,
        "tiles_per_ipu": _COUNT,
        "version": Setting(default="ipu2", types=(str,)),
    },
    "matmuls": {"clear_pass_type": _FLAG_OFF, "poplar_options": _OPTIONS},
    "norms": {
        "experimental": {"distributed_batch_norm_replica_group_size": Setting(1, (int,))},
        "use_stable_statistics": _FLAG_OFF,
    },
    "optimizations": {
        "combine_embedding_lookups": _FLAG_OFF,
        "combine_matmuls": _FLAG_OFF,
        "enable_dynamic_slice_replacement": _FLAG_ON,
        "enable_fast_math": _FLAG_OFF,
        "enable_gather_simplifier": _FLAG_OFF,
        "enable_graph_outlining": _FLAG_ON,
        "math": {
            "associative": _FLAG_OFF,
            "dot_strength": _FLAG_ON,
            "fast": _FLAG_OFF,
        },
        "maximum_cross_replica_sum_buffer_size": _COUNT,
        "maximum_inter_ipu_copies_buffer_size": _COUNT,
        "maximum_reduce_many_buffer_size": _COUNT,
        "maximum_reduce_scatter_buffer_size": _COUNT,
        "maximum_send_recv_cluster_size": _COUNT,
        "merge_infeed_io_copies": _FLAG_ON,
        "merge_remote_buffers": Setting(
            default=MergeRemoteBuffersBehaviour.IF_BENEFICIAL,
            types=(MergeRemoteBuffersBehaviour,),
        ),
        "minimum_remote_tensor_size": Setting(default=128, types=(int,)),
        "prefetch_data_streams": _FLAG_ON,
        "triangular_solve_expander_block_size": _COUNT,
        "cholesky_block_size": _COUNT,
    },
    "pooling": {"poplar_options": _OPTIONS},
    "scheduling": {
        "algorithm": Setting(default=SchedulingAlgorithm.CHOOSE_BEST, types=(SchedulingAlgorithm,)),
        "maximum_scheduler_lookahead_depth": Setting(default=5, types=(int,)),
        "maximum_scheduler_search_space_size": Setting(default=64, types=(int,)),
    },
    "slices": {"poplar_options": _OPTIONS},
    "verified_transfers": {
        "enabled": _FLAG_OFF,
    },
}
"""Name to attribute, or to a table of the attributes below it."""
