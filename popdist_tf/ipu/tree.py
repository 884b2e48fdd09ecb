"""The published modules: what each is called, what it holds, and where that is defined.

`MODULES` is the one declaration. From it come the modules themselves (`plant`), the stubs that type
checkers read (`stubs`, written into wheels by ``setup.py``), and the page of the API. A program may
import any of the paths, in any of the ways that Python has; `pkgutil` and `help` list them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, ModuleType

ROOT = "popdist_tf.ipu"
_ENTRY = "<published below {}>"  # stands in a package's `__path__`, where folders usually stand


class Published(NamedTuple):
    """One published module.

    Attributes:
        about: What it holds, in a line.
        homes: Published name to the module below ``popdist_tf`` that defines it and its name there.
        needs_all: Whether all names are loaded with the module, so that its import says at once
            what it lacks.
    """

    about: str
    homes: dict[str, tuple[str, str]]
    needs_all: bool = False


def _module(about: str, *groups: dict[str, tuple[str, str]], needs_all: bool = False) -> Published:
    return Published(about, {k: home for group in groups for k, home in group.items()}, needs_all)


def _names(home: str, names: str, **others: str) -> dict[str, tuple[str, str]]:
    """Names of one home: those that are called the same there, and others by their name there."""
    return {name: (home, own) for name, own in ({n: n for n in names.split()} | others).items()}


_BASICS = _names(
    "collectives.instances", "Adasum Average Sum init local_rank local_size rank shutdown size"
)
_HOST_COLLECTIVES = _names("collectives.instances", "allgather allreduce broadcast")
_CONFIGURED = _names("config.ipu_config", "configure_ipu_system reset_ipu_configuration")
_POPDIST_STRATEGY = _module(
    "The strategy for PopDist jobs.",
    _names("strategies.popdist_strategy", "PopDistStrategy", PopDistStrategyV1="PopDistStrategy"),
    _names(
        "strategies.extended",
        "",
        PopDistExtended="HorovodExtended",
        PopDistExtendedV1="HorovodExtended",
    ),
)
_HOROVOD_STRATEGY = _module(
    "The strategy for any Horovod job.",
    _names(
        "strategies.popdist_strategy",
        "IPUHorovodStrategy",
        IPUHorovodStrategyV1="IPUHorovodStrategy",
    ),
    _names(
        "strategies.extended",
        "",
        IPUHorovodExtended="HorovodExtended",
        IPUHorovodExtendedV1="HorovodExtended",
    ),
)
_MULTI_WORKER = _names(
    "strategies.multi_worker_strategy",
    "IPUMultiWorkerStrategy",
    IPUMultiWorkerStrategyV1="IPUMultiWorkerStrategy",
    IPUMultiWorkerExtended="MultiWorkerExtended",
    IPUMultiWorkerExtendedV1="MultiWorkerExtended",
)
_VARIABLES = _names(
    "strategies.variables",
    "IPUDistributedVariable IPUMirroredVariable IPUOnReadPolicy IPUOnWritePolicy "
    "IPUSyncOnReadVariable",
)

_RECURRENT_LAYERS = _names(
    "loops.recurrent", "PopnnAUGRU PopnnDynamicGRU PopnnDynamicLSTM PopnnGRU PopnnLSTM"
)
_KERAS_LAYERS = _names(
    "keras.layers",
    "AssumeEqualAcrossReplicas CTCInferenceLayer CTCLoss CTCPredictionsLayer Dropout Embedding GRU "
    "GroupNorm GroupNormalization InstanceNorm InstanceNormalization LSTM LayerNorm "
    "LayerNormalization PopnnGRU PopnnLSTM RecomputationCheckpoint SerialDense",
)
_KERAS_LAYER_MODULES = {
    "assume_equal_across_replicas": "AssumeEqualAcrossReplicas",
    "ctc": "CTCInferenceLayer CTCLoss CTCPredictionsLayer",
    "dense": "SerialDense",
    "dropout": "Dropout",
    "embedding_lookup": "Embedding",
    "math": "SerialDense",
    "normalization": "GroupNorm GroupNormalization InstanceNorm InstanceNormalization LayerNorm "
    "LayerNormalization",
    "recomputation": "RecomputationCheckpoint",
    "rnn": "GRU LSTM PopnnGRU PopnnLSTM",
}


def _below_layers(path: str) -> dict[str, Published]:
    """The modules of single layers, below a module of layers."""
    about = "Layers, as in the module above."
    return {
        f"{path}.{name}": _module(about, _names("keras.layers", names))
        for name, names in _KERAS_LAYER_MODULES.items()
    }


_STAGES = _names("keras.pipelining", "ReplicatedMetricReductionMethod") | _names(
    "keras.stages",
    "FunctionalLayerPipelineStageAssignment FunctionalNestedModelPipelineStageAssignment "
    "ModelLayerPipelineStageAssignment NestedModelPipelineStageAssignment PipelineStage "
    "SequentialLayerPipelineStageAssignment SequentialNestedModelPipelineStageAssignment",
)
_WRAPPED_OPTIMIZERS = _names(
    "keras.wrapped_optimizers",
    "ALSOptimizer CrossReplicaGradientAccumulationOptimizer CrossReplicaOptimizer "
    "GradientAccumulationOptimizer MapGradientOptimizer",
    AutomaticLossScalingOptimizer="ALSOptimizer",
    CrossReplicaGradientAccumulationOptimizerV2="CrossReplicaGradientAccumulationOptimizer",
    GradientAccumulationOptimizerV2="GradientAccumulationOptimizer",
    MapGradientOptimizerInvertedChaining="MapGradientOptimizer",
)
_BASE_OPTIMIZER = _names("keras.optimizer_base", "IpuOptimizerBase")
_KERAS_OPTIMIZERS = _names("keras.formulas", "AdamIpuOptimizer LAMBIpuOptimizer SGDIpuOptimizer")

# Operations stand below `ipu.ops`, and most directly below `ipu` as well.
_OPERATIONS = {
    "all_to_all_op": _module(
        "Parts of tensors of all replicas.", _names("loops.replicas", "all_gather all_to_all")
    ),
    "cross_replica_ops": _module(
        "Sums and means over replicas.",
        _names(
            "loops.replicas", "assume_equal_across_replicas cross_replica_mean cross_replica_sum"
        ),
    ),
    "control_flow_ops": _module("The order of operations.", _names("loops.operations", "barrier")),
    "custom_ops": _module(
        "Operations of a program's own.",
        _names("loops.operations", "codelet_expression_op"),
        _names(
            "loops.user_operators",
            "cpu_user_operation host_op precompiled_user_op",
            cpu_user_op="cpu_user_operation",
        ),
    ),
    "embedding_ops": _module(
        "Rows of tables.",
        _names("loops.operations", "embedding_lookup"),
        _names(
            "loops.embeddings", "HostEmbedding HostEmbeddingOptimizerSpec create_host_embedding"
        ),
    ),
    "functional_ops": _module(
        "Functions of device code.", _names("loops.operations", "outlined_function")
    ),
    "image_ops": _module("Images.", _names("loops.operations", "normalise_image")),
    "internal_ops": _module(
        "Printing and placing tensors.",
        _names(
            "loops.operations",
            "fifo print_tensor remap",
            block_recompute="remap",
            recompute="remap",
            remap_deduce="remap",
        ),
        _names("loops.pipelining", "get_current_iteration_counter"),
    ),
    "math_ops": _module(
        "Sums of segments, and products in parts.",
        _names("loops.operations", "segment_sum serialized_matmul"),
    ),
    "nn_ops": _module(
        "Activations, convolutions, and sequences without alignment.",
        _names(
            "loops.operations",
            "gelu hard_sigmoid multi_conv nce_loss sampled_softmax_loss softmax swish",
        ),
        _names(
            "loops.ctc",
            "ctc_beam_search_decoder ctc_beam_search_decoder_with_log_probs ctc_loss_v2 "
            "ctc_loss_with_log_probs",
        ),
    ),
    "normalization_ops": _module(
        "Normalisation over groups of channels.",
        _names("loops.normalization", "group_norm instance_norm layer_norm"),
    ),
    "pipelining_ops": _module(
        "Pipelines.",
        _names(
            "loops.pipelining",
            "OptimizerFunctionOutput PipelineSchedule PipelineStageOptions RecomputationMode "
            "pipeline recomputation_checkpoint",
        ),
        _names("loops.accumulation", "GradientAccumulationReductionMethod"),
    ),
    "rand_ops": _module("Random numbers.", _names("loops.operations", "dropout")),
    "reduce_scatter_op": _module(
        "Parts of sums over replicas.", _names("loops.replicas", "reduce_scatter")
    ),
    "within_replica_ops": _module(
        "Reductions over the shards of a replica.",
        _names(
            "loops.scopes",
            "",
            all_gather="gather_shards",
            all_reduce="reduce_shards",
            reduce_scatter="reduce_and_divide_shards",
        ),
    ),
    "replication_ops": _module(
        "Which replica runs.", _names("loops.replicas", "replication_index")
    ),
    "slicing_ops": _module(
        "Copies of runs of rows.",
        _names("loops.slices", "sequence_slice sequence_slice_pack sequence_slice_unpack"),
    ),
    "rnn_ops": _module("Recurrent layers, with time as the first dimension.", _RECURRENT_LAYERS),
}

# Optimizers stand below `ipu.optimizers`, and in SDK 2.2 and before directly below `ipu`.
_OPTIMIZERS = {
    "automatic_loss_scaling_optimizer": _module(
        "Losses scaled by the size of their gradients.",
        _names("loops.optimizers", "AutomaticLossScalingOptimizer"),
    ),
    "cross_replica_optimizer": _module(
        "Averages of gradients over replicas.",
        _names(
            "loops.optimizers",
            "CrossReplicaOptimizer apply_cross_replica_op apply_cross_replica_op_single",
        ),
    ),
    "gradient_accumulation_optimizer": _module(
        "Updates after several mini-batches.",
        _names("loops.accumulation", "GradientAccumulationReductionMethod"),
        _names(
            "loops.optimizers",
            "CrossReplicaGradientAccumulationOptimizer "
            "CrossReplicaGradientAccumulationOptimizerV2 "
            "GradientAccumulationOptimizer GradientAccumulationOptimizerV2",
        ),
    ),
    "ipu_optimizer": _module(
        "The base of optimizers around optimizers.", _names("loops.optimizers", "IpuOptimizer")
    ),
    "map_gradient_optimizer": _module(
        "Gradients that are changed by a function.",
        _names("loops.optimizers", "MapGradientOptimizer MapGradientOptimizerInvertedChaining"),
    ),
    "sharded_optimizer": _module(
        "Updates beside their variables.", _names("loops.optimizers", "ShardedOptimizer")
    ),
}

# Programs import these modules for their effect: the gradients of operations below the public ones.
_GRADIENTS = {
    f"ops.{name}_grad": _module("Gradients, which operations bring along here.")
    for name in (
        *("all_to_all_op", "control_flow_ops", "cross_replica_ops", "embedding_ops"),
        *("functional_ops", "grad_util_ops", "internal_ops", "nn_ops", "normalization_ops"),
        *("pipelining_ops", "rand_ops", "rnn_ops", "slicing_ops", "within_replica_ops"),
    )
}

ROOT_NAMES = _OPERATIONS["functional_ops"].homes
"""Names directly below `ipu`."""

MODULES: dict[str, Published] = {
    "config": _module(
        "The configuration of the system.",
        _names("config.ipu_config", "IPUConfig"),
        _names("config.nested", "AttributeMetadata"),
        _names("loops.scopes", "running_on_ipu_model"),
        _CONFIGURED,
        _names(
            "config.tables",
            "DeviceConnectionType ExecutionProfileType MergeRemoteBuffersBehaviour "
            "SchedulingAlgorithm SelectionOrder StochasticRoundingBehaviour",
        ),
    ),
    "utils": _module(
        "Configuration as SDK 2.2 and before had it, and small questions.",
        _CONFIGURED,
        _names("config.ipu_config", "IPUConfig"),
        _names(
            "config.legacy",
            "auto_select_ipus create_ipu_config select_ipus set_compilation_options "
            "set_convolution_options set_experimental_multi_replica_distribution_options "
            "set_floating_point_behaviour_options set_gcl_options set_io_tile_options "
            "set_ipu_connection_type set_ipu_model_options set_matmul_options set_norm_options "
            "set_optimization_options set_pooling_options set_recomputation_options "
            "set_report_options set_serialization_options set_transfer_options",
        ),
        _names(
            "config.tables",
            "DeviceConnectionType ExecutionProfileType MergeRemoteBuffersBehaviour "
            "SchedulingAlgorithm SelectionOrder StochasticRoundingBehaviour",
        ),
        _names(
            "loops.scopes",
            "get_num_of_ipus_in_device move_variable_initialization_to_cpu running_on_ipu_model",
        ),
        _names("strategies.random_numbers", "reset_ipu_seed"),
        _names("loops.data", "SyntheticDataCategory use_synthetic_data_for"),
    ),
    # Strategies and collectives, where each generation of the SDK has them.
    "horovod": _module(
        "Horovod's basics and collectives for TensorFlow programs (SDK 2, and TensorFlow 1).",
        _BASICS,
        _names(
            "collectives.instances",
            "ddl_built gloo_built gloo_enabled is_homogeneous mpi_built mpi_enabled "
            "mpi_threads_supported nccl_built",
        ),
        _names("collectives.published", "allgather allreduce broadcast"),
    ),
    "horovod.ipu_horovod_strategy": _HOROVOD_STRATEGY,
    "horovod.ipu_multi_replica_strategy": _module(
        "`PopDistStrategy` as SDK 2.3 and before called it.",
        _names(
            "strategies.popdist_strategy",
            "",
            IPUMultiReplicaStrategy="PopDistStrategy",
            IPUMultiReplicaStrategyV1="PopDistStrategy",
        ),
        _names(
            "strategies.extended",
            "",
            IPUMultiReplicaExtended="HorovodExtended",
            IPUMultiReplicaExtendedV1="HorovodExtended",
        ),
    ),
    "horovod.popdist_strategy": _POPDIST_STRATEGY,
    "distributed": _module(
        "Strategies and host collectives (SDK 3).",
        _BASICS,
        _HOST_COLLECTIVES,
        _names("strategies.multi_worker_strategy", "IPUMultiWorkerStrategy"),
        _names("strategies.popdist_strategy", "IPUHorovodStrategy PopDistStrategy"),
    ),
    "distributed.host_collective_ops": _module(
        "Collectives among the instances.", _HOST_COLLECTIVES
    ),
    "distributed.ipu_horovod_strategy": _HOROVOD_STRATEGY,
    "distributed.ipu_multi_worker_strategy": _module(
        "The strategy over TensorFlow's own collectives.", _MULTI_WORKER
    ),
    "distributed.popdist_strategy": _POPDIST_STRATEGY._replace(
        homes=_POPDIST_STRATEGY.homes | _VARIABLES
    ),
    "ipu_multi_worker_strategy": _module(
        "The strategy over TensorFlow's own collectives, and its variables.",
        _MULTI_WORKER,
        _VARIABLES,
        # The policy of variables that are reduced when written, until SDK 2.3.
        _names("strategies.variables", "", IPUAutoPolicy="IPUOnWritePolicy"),
    ),
    "ipu_strategy": _module(
        "The strategy for one instance.",
        _names("strategies.popdist_strategy", "IPUStrategy", IPUStrategyV1="IPUStrategy"),
        _names(
            "strategies.extended",
            "",
            IPUExtended="HorovodExtended",
            IPUExtendedV1="HorovodExtended",
        ),
    ),
    # Estimators.
    "ipu_estimator": _module(
        "The Estimator.",
        _names("estimator.estimator", "IPUEstimator", IPUEstimatorV1="IPUEstimator"),
        _names("estimator.spec", "IPUEstimatorSpec"),
        needs_all=True,
    ),
    "ipu_pipeline_estimator": _module(
        "The Estimator of pipelines.",
        _names(
            "estimator.pipeline",
            "IPUPipelineEstimator IPUPipelineEstimatorSpec",
            IPUPipelineEstimatorV1="IPUPipelineEstimator",
        ),
        needs_all=True,
    ),
    "ipu_run_config": _module(
        "The settings of an Estimator's runs.",
        _names("estimator.run_config", "IPURunConfig RunConfig"),
        needs_all=True,
    ),
    # Compiled loops.
    "ipu_compiler": _module(
        "Calling a function as one computation.", _names("loops.repeat", "compile")
    ),
    "ipu_infeed_queue": _module(
        "A data set as a loop's source.",
        _names("loops.queues", "IPUInfeedQueue IPUIterator", IPUOwnedIterator="IPUIterator"),
    ),
    "dataset_benchmark": _module(
        "How fast data sets are read.", _names("loops.data", "dataset_benchmark infeed_benchmark")
    ),
    "data": _module("Data sets."),
    "data.ops": _module("Data sets."),
    "data.ops.dataset_ops": _module(
        "Data sets of whole groups of elements.", _names("loops.data", "BufferDataset")
    ),
    "ipu_session_run_hooks": _module(
        "Hooks of sessions.", _names("loops.hooks", "IPULoggingTensorHook")
    ),
    "ipu_outfeed_queue": _module(
        "What a loop says of its iterations.",
        _names(
            "loops.queues",
            "IPUOutfeedMode IPUOutfeedQueue IPUOutfeedQueueIterator ScopedIPUOutfeedQueue",
        ),
    ),
    "loops": _module(
        "Bodies that run several times in one call.", _names("loops.repeat", "repeat while_loop")
    ),
    "scopes": _module(
        "Scopes of device code.",
        _names(
            "loops.scopes",
            "frontend_attribute ipu_jit_scope ipu_scope ipu_shard outside_compilation_scope "
            "partials_type stochastic_rounding",
        ),
    ),
    # A replica has one device on a host: models may be divided, and are computed in one place.
    "autoshard": _module(
        "Dividing a graph over devices.",
        _names("loops.scopes", "automatic_sharding ipu_autoshard"),
    ),
    "autoshard_cnn": _module(
        "Dividing a graph of convolutions over devices.",
        _names("loops.scopes", "automatic_sharding"),
    ),
    "sharding": _module(
        "Which shard an operation of a graph was assigned to.",
        _names("loops.scopes", "dependencies get_sharding has_attr propagate_sharding"),
    ),
    "ops": _module("Operations of device code."),
    "ops.autoshard": _module(
        "Dividing a graph over devices.",
        _names("loops.scopes", "automatic_sharding ipu_autoshard"),
    ),
    **_OPERATIONS,
    **{f"ops.{name}": module for name, module in _OPERATIONS.items()},
    **_GRADIENTS,
    "optimizers": _module(
        "Optimizers around optimizers of TensorFlow 1.",
        _names("loops.optimizers", "IpuOptimizer"),
        *(module.homes for module in _OPTIMIZERS.values()),
    ),
    **_OPTIMIZERS,
    **{f"optimizers.{name}": module for name, module in _OPTIMIZERS.items()},
    # Keras.
    "keras": _module("Models in pipeline stages.", _STAGES),
    "keras.extensions": _module("The stages of models' layers.", _STAGES),
    **{
        f"keras.extensions.{kind}_extensions": _module("The stages of models' layers.", _STAGES)
        for kind in ("functional", "model", "sequential")
    },
    "keras.extensions.pipeline_stage_assignment": _module("The stages of layers.", _STAGES),
    "keras.layers": _module("Layers under their published names.", _KERAS_LAYERS),
    **_below_layers("keras.layers"),
    "keras.losses": _module("Losses as layers.", _names("keras.layers", "CTCLoss")),
    "keras.losses.ctc": _module("Losses as layers.", _names("keras.layers", "CTCLoss")),
    "keras.optimizers": _module(
        "Optimizers of Keras: wrappers, and optimizers whose states have dtypes of their own.",
        _WRAPPED_OPTIMIZERS,
        _KERAS_OPTIMIZERS,
    ),
    **{
        f"keras.optimizers.{name}": _module(
            "Optimizers, as in the module above.",
            {one: home for one, home in _WRAPPED_OPTIMIZERS.items() if part in one},
        )
        for name, part in {
            "als_optimizer": "ALSOptimizer",
            "cross_replica_optimizer": "CrossReplicaOptimizer",
            "gradient_accumulate_optimizer": "GradientAccumulationOptimizer",
            "gradient_accumulation_optimizer": "GradientAccumulationOptimizer",
            "map_gradient_optimizer": "MapGradientOptimizer",
        }.items()
    },
    "gradient_accumulation": _module(
        "How gradients of micro-batches are combined.",
        _names("loops.accumulation", "GradientAccumulationReductionMethod"),
    ),
    # The package `tensorflow.compiler.plugin`, of which programs use a few operations.
    "plugin": _module("The original's plugin of TensorFlow."),
    "plugin.poplar": _module("The original's plugin of TensorFlow."),
    "plugin.poplar.ops": _module("Operations below the public ones."),
    "plugin.poplar.ops.gen_ipu_ops": _module(
        "Events of the device.", _names("loops.plugin", "ipu_event_trace")
    ),
    "plugin.poplar.ops.gen_popops_ops": _module(
        "Operations among replicas, and on rows of tables.",
        _names("loops.plugin", "ipu_multi_slice ipu_multi_update_add"),
        _names(
            "loops.replicas",
            "",
            ipu_all_gather="all_gather",
            ipu_all_to_all="all_to_all",
            ipu_cross_replica_sum="cross_replica_sum",
        ),
    ),
    "plugin.poplar.ops.gen_poputil_ops": _module(
        "Sums of gradients.",
        _names("loops.plugin", "ipu_replication_normalise ipu_stateful_gradient_accumulate"),
    ),
    # The package `ipu_tensorflow_addons`, which stands here as `addons`.
    "addons": _module("Layers and optimizers that SDK 2.4 moved to a package of their own."),
    "addons.keras": _module("Layers and optimizers of Keras."),
    "addons.keras.layers": _module("Layers of Keras.", _KERAS_LAYERS),
    **_below_layers("addons.keras.layers"),
    "addons.keras.optimizers": _module("Optimizers of Keras.", _KERAS_OPTIMIZERS, _BASE_OPTIMIZER),
    "addons.keras.optimizers.ipu_optimizer_base": _module(
        "The base class of optimizers.", _BASE_OPTIMIZER
    ),
    **{
        f"addons.keras.optimizers.{name}_optimizer": _module(
            "Optimizers, as in the module above.",
            _names("keras.formulas", f"{title}IpuOptimizer"),
        )
        for name, title in {"adam": "Adam", "lamb": "LAMB", "sgd": "SGD"}.items()
    },
    "addons.layers": _module("Recurrent layers of TensorFlow 1.", _RECURRENT_LAYERS),
    "addons.layers.rnn_ops": _module("Recurrent layers of TensorFlow 1.", _RECURRENT_LAYERS),
    "addons.v1": _module("Layers of TensorFlow 1."),
    "addons.v1.layers": _module("Recurrent layers of TensorFlow 1.", _RECURRENT_LAYERS),
    "addons.v1.layers.rnn_ops": _module("Recurrent layers of TensorFlow 1.", _RECURRENT_LAYERS),
    "addons.v1.keras": _module("Layers of Keras, in TensorFlow 1."),
    "addons.v1.keras.layers": _module("Layers of Keras, in TensorFlow 1.", _KERAS_LAYERS),
    **_below_layers("addons.v1.keras.layers"),
}
"""Path below `popdist_tf.ipu` to module."""


def below(path: str) -> list[str]:
    """The last parts of the modules that stand directly below one; empty for the root's path."""
    start = f"{path}." if path else ""
    tails = (name[len(start) :] for name in MODULES if name.startswith(start))
    return sorted(tail for tail in tails if "." not in tail)


def plant(root: dict[str, Any]) -> None:
    """Makes the modules importable below the root package; safe to call again.

    Args:
        root: The namespace of the package `popdist_tf.ipu`.
    """
    if Modules not in sys.path_hooks:
        sys.path_hooks.append(Modules)
    entry = _ENTRY.format(ROOT)
    if entry not in root["__path__"]:
        root["__path__"].append(entry)
    _fill(root, "", Published(str(root["__doc__"]), ROOT_NAMES))


class Modules:
    """Finds the published modules; what Python's import system and `pkgutil` ask.

    Args:
        entry: An entry of a package's ``__path__``.

    Raises:
        ImportError: The entry is another finder's.
    """

    def __init__(self, entry: str) -> None:
        before, after = _ENTRY.split("{}")
        package = entry.removeprefix(before).removesuffix(after)
        if entry != _ENTRY.format(package) or not f"{package}.".startswith(f"{ROOT}."):
            raise ImportError(entry)
        self._path = package[len(ROOT) + 1 :]

    def find_spec(self, name: str, _target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of a published module, or None for another name."""
        path = name[len(ROOT) + 1 :]
        if path not in MODULES:
            return None
        # The table is where a reader finds what the module holds.
        spec = ModuleSpec(name, _Loader(), origin=__file__, is_package=bool(below(path)))  # type: ignore[arg-type] # duck-typed
        spec.has_location = True
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(_ENTRY.format(name))
        return spec

    def iter_modules(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        """Name and whether it is a package, of all modules directly below the package."""
        for tail in below(self._path):
            yield prefix + tail, bool(below(f"{self._path}.{tail}".lstrip(".")))


class _Loader:
    """Makes a module from its entry in the table."""

    def create_module(self, _spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        path = module.__name__[len(ROOT) + 1 :]
        published = MODULES[path]
        for name in published.homes:
            vars(module).pop(name, None)  # it is reloaded
        vars(module)["__doc__"] = f"``ipu.{path}``: {published.about}"
        _fill(vars(module), path, published)
        if published.needs_all:
            for name in published.homes:
                getattr(module, name)

    def get_source(self, name: str) -> str:
        """What a type checker reads of the module."""
        return stubs()[name]

    def get_code(self, name: str) -> CodeType:
        return compile(self.get_source(name), __file__, "exec")


def _fill(namespace: dict[str, Any], path: str, published: Published) -> None:
    """Makes a module answer for its names and sub-modules when it is asked for them."""
    own, modules = namespace["__name__"], below(path)
    namespace["__all__"] = sorted([*published.homes, *modules])
    namespace["__dir__"] = lambda: sorted({*namespace, *namespace["__all__"]})
    namespace["__getattr__"] = _answer(namespace, own, modules, published.homes)


def _answer(
    namespace: dict[str, Any], own: str, modules: list[str], homes: dict[str, tuple[str, str]]
) -> Callable[[str], Any]:
    def __getattr__(name: str) -> Any:  # noqa: N807 - becomes the module's
        if name in homes:
            home, there = homes[name]
            return namespace.setdefault(name, getattr(import_module(f"popdist_tf.{home}"), there))
        if name in modules:
            return import_module(f"{own}.{name}")
        from popdist.sdk.surface import missing

        return missing(own, name)

    return __getattr__


def stubs() -> dict[str, str]:
    """What type checkers read of the published modules.

    Returns:
        Full name of a module to the text of its stub.
    """
    written = {}
    for path in ("", *MODULES):
        homes = MODULES[path].homes if path else ROOT_NAMES
        lines = [
            f"from popdist_tf.{home} import {there} as {name}"
            for name, (home, there) in sorted(homes.items())
        ]
        own = f"{ROOT}.{path}".rstrip(".")
        lines += [f"from {own} import {module} as {module}" for module in below(path)]
        lines += [f"__all__ = {sorted([*homes, *below(path)])!r}", ""]
        written[own] = "\n".join(lines)
    return written
