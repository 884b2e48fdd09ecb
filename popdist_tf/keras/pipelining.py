"""Keras models in pipeline stages, and the accumulation of their gradients in ``fit``.

On the original hardware, stages run on devices of their own. All schedules compute the same
numbers: those of gradients that are accumulated over several micro-batches before an update. So a
host trains the model as it is, accumulates, and checks what the program says about its stages.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from popdist_tf.errors import PipelineError
from popdist_tf.loops.accumulation import (
    GradientAccumulationReductionMethod,
    GradientAccumulator,
    accumulate,
    gradients_for,
)
from popdist_tf.strategies.devices import warn_of_missing_replicas
from popdist_tf.versions import (
    add_callbacks,
    before_training,
    build_optimizer,
    extend_models,
    keras_is_3,
    strategy_of,
    tag_calls,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_OPTIONS = "_popdist_accumulation"
_STAGES = "_popdist_stages"
_TAG = "_popdist_stage"
_stage: ContextVar[int | None] = ContextVar("popdist_pipeline_stage", default=None)


@contextmanager
def PipelineStage(stage: int) -> Iterator[None]:  # noqa: N802 - published name
    """Assigns the layers that are called in this scope to a stage.

    Args:
        stage: The stage's number, from 0 on.

    Raises:
        PipelineError: The number is negative, or the scope stands in another one.
    """
    if not isinstance(stage, int) or stage < 0:
        raise PipelineError(
            "PD425", "a pipeline stage has a number from 0 on", value=stage, accepted="0, 1, ..."
        )
    if _stage.get() is not None:
        raise PipelineError(
            "PD425",
            "a PipelineStage stands in another one, and a layer has one stage",
            value=f"stage {stage} in stage {_stage.get()}",
            hint="leave the first scope before the next one",
        )
    tag_calls(_TAG, _stage.get)
    token = _stage.set(stage)
    try:
        yield
    finally:
        _stage.reset(token)


class PipelineStageAssignment:
    """The stage of a layer, or of one of its calls where a layer is called several times.

    Args:
        layer: The layer.
        node_index: Which of the layer's calls it is.
        pipeline_stage: The stage; None for a layer without one.
    """

    def __init__(self, layer: Any, node_index: int = 0, pipeline_stage: int | None = None) -> None:
        self.layer = layer
        self.node_index = node_index
        self.pipeline_stage = pipeline_stage

    @property
    def inbound_layers(self) -> list[Any]:
        """The layers whose results the call takes."""
        inbound = self.layer.inbound_nodes[self.node_index].inbound_layers
        return list(inbound) if isinstance(inbound, (list, tuple)) else [inbound]

    def __repr__(self) -> str:
        return f"layer {self.layer.name!r}, call {self.node_index}: stage {self.pipeline_stage}"


class SequentialLayerPipelineStageAssignment(PipelineStageAssignment):
    """The stage of a layer of a sequential model.

    Args:
        layer: The layer.
        pipeline_stage: The stage; None for a layer without one.
    """

    def __init__(self, layer: Any, pipeline_stage: int | None = None) -> None:
        super().__init__(layer, 0, pipeline_stage)


class ReplicatedMetricReductionMethod(Enum):
    """How the original combines the metrics of the replicas of one instance."""

    NONE = 1
    LIST = 2
    SUM = 3
    MEAN = 4

    @classmethod
    def parse(cls, value: Any) -> ReplicatedMetricReductionMethod:
        """The member for a member, or for its name in any case.

        Args:
            value: A member or a name.

        Returns:
            The member.

        Raises:
            PipelineError: There is no such member. It is a `ValueError`.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, str) or value.upper() not in cls.__members__:
            raise PipelineError(
                "PD425",
                f"Cannot parse {value} as a ReplicatedMetricReductionMethod",
                value=value,
                accepted=", ".join(cls.__members__),
            )
        return cls[value.upper()]


class _Accumulation:
    """How a model's gradients are accumulated, as its options say."""

    def __init__(self, name: str, count: Any, method: Any, *, needs_stages: bool) -> None:
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise PipelineError(
                "PD425",
                f"{name} needs the number of micro-batches of an update",
                value=f"gradient_accumulation_steps_per_replica={count!r}",
                accepted="1, 2, ...",
            )
        self.count = count
        self.method = GradientAccumulationReductionMethod.parse(method)
        self.dtype: Any = None
        self.needs_stages = needs_stages

    def apply_to(self, optimizer: Any) -> None:
        """Makes an optimizer accumulate; it is changed in place, and saved as its own class."""
        kind = type(optimizer)
        replicas: dict[int, tuple[GradientAccumulator, ResourceVariable]] = {}

        def apply_gradients(itself: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = list(grads_and_vars)
            with tf.init_scope():
                build_optimizer(itself, [variable for _, variable in pairs])
            replica = tf.distribute.get_replica_context()
            number = int(replica._replica_id_in_sync_group or 0)  # the number, not a tensor
            if number not in replicas:
                with tf.init_scope():
                    # Not `tf.Variable`, which a strategy would take charge of.
                    counter = ResourceVariable(0, dtype=tf.int64, trainable=False)
                accumulator = GradientAccumulator(self.count, self.method, self.dtype)
                replicas[number] = accumulator, counter
            accumulator, counter = replicas[number]
            index = counter.assign_add(1) - 1

            def update(totals: list[tuple[Any, Any]]) -> Any:
                kind.apply_gradients(itself, gradients_for(itself, totals), *args, **kwargs)
                return tf.no_op()  # a function's side effects run in order by themselves

            return accumulate(accumulator, pairs, index, update)

        names = {"apply_gradients": apply_gradients, "__module__": kind.__module__, _OPTIONS: self}
        optimizer.__class__ = type(kind.__name__, (kind,), names)


class _WholeUpdates(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Checks that an epoch ends with an update; Keras knows its steps, as an execution has many."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Checks the number of steps."""
        del logs
        steps, count = self.params.get("steps"), _options(self.model).count
        if steps is not None and steps % count:
            raise PipelineError(
                "PD425",
                "an epoch would end in the middle of an update",
                value=f"{steps} micro-batches",
                accepted=f"a multiple of gradient_accumulation_steps_per_replica={count}",
                hint="give fit such a number of steps_per_epoch, or as many batches",
            )


def _options(model: Any) -> Any:
    return vars(model).get(_OPTIONS)


# What models learn under the strategies. Each function becomes a method of `tf.keras.Model`.


def set_gradient_accumulation_options(
    self: Any,
    gradient_accumulation_steps_per_replica: int | None = None,
    gradient_accumulation_reduction_method: Any = GradientAccumulationReductionMethod.SUM,
    use_v2_gradient_accumulation_optimizer: bool = False,
    **gradient_accumulation_optimizer_kwargs: Any,
) -> None:
    """Accumulates the gradients of several micro-batches in ``fit``, before each update.

    Args:
        self: The model.
        gradient_accumulation_steps_per_replica: Micro-batches of an update.
        gradient_accumulation_reduction_method: What becomes of the gradients: SUM, MEAN or
            RUNNING_MEAN.
        use_v2_gradient_accumulation_optimizer: Accepted as published.
        **gradient_accumulation_optimizer_kwargs: ``dtype`` of the totals; others are accepted as
            published, without effect on a host.

    Raises:
        PipelineError: The number or method is not valid.
    """
    del use_v2_gradient_accumulation_optimizer
    _accumulate(
        self,
        "set_gradient_accumulation_options",
        gradient_accumulation_steps_per_replica,
        gradient_accumulation_reduction_method,
        gradient_accumulation_optimizer_kwargs,
        dtype="dtype",
    )


def set_pipelining_options(
    self: Any,
    gradient_accumulation_steps_per_replica: int | None = None,
    device_mapping: Sequence[int] | None = None,
    accumulate_outfeed: bool | None = None,
    gradient_accumulation_reduction_method: Any = GradientAccumulationReductionMethod.SUM,
    **pipelining_kwargs: Any,
) -> None:
    """Sets how a model of several stages is pipelined.

    Args:
        self: The model.
        gradient_accumulation_steps_per_replica: Micro-batches of an update.
        device_mapping: A device for each stage; checked, without effect on a host.
        accumulate_outfeed: Accepted as published: losses and metrics are those of all
            micro-batches.
        gradient_accumulation_reduction_method: What becomes of the gradients: SUM, MEAN or
            RUNNING_MEAN.
        **pipelining_kwargs: ``gradient_accumulation_dtype``; others (the schedule, recomputation)
            are accepted as published, without effect on a host.

    Raises:
        PipelineError: The number or method is not valid.
    """
    del accumulate_outfeed
    _accumulate(
        self,
        "set_pipelining_options",
        gradient_accumulation_steps_per_replica,
        gradient_accumulation_reduction_method,
        pipelining_kwargs,
        dtype="gradient_accumulation_dtype",
        devices=device_mapping,
    )


def _accumulate(
    model: Any,
    name: str,
    count: Any,
    method: Any,
    others: dict[str, Any],
    *,
    dtype: str,
    devices: Sequence[int] | None = None,
) -> None:
    if keras_is_3():
        raise PipelineError(
            "PD426",
            "models of Keras 3 accumulate gradients by their optimizers",
            value=name,
            accepted="TensorFlow 2.15 (constraints/default.txt)",
            hint="create the optimizer with gradient_accumulation_steps",
        )
    if others.pop("experimental_normalize_gradients", False):
        method = GradientAccumulationReductionMethod.MEAN  # its name until SDK 2.5
    options = _Accumulation(name, count, method, needs_stages=name == "set_pipelining_options")
    options.dtype = others.get(dtype)
    stages = set(_stages_of(model)) - {None}
    if devices is not None and stages and len(devices) != len(stages):
        raise PipelineError(
            "PD425",
            "device_mapping must name a device for each stage",
            value=f"{len(devices)} devices for {len(stages)} stages",
        )
    vars(model)[_OPTIONS] = options


def set_infeed_queue_options(self: Any, **kwargs: Any) -> None:
    """Accepts options of the queue that brings elements to the device; without effect on a host.

    Args:
        self: The model.
        **kwargs: Arguments of `IPUInfeedQueue`.
    """
    del self, kwargs


def set_outfeed_queue_options(self: Any, **kwargs: Any) -> None:
    """Accepts options of the queue that brings results to the host; without effect on a host.

    Args:
        self: The model.
        **kwargs: Arguments of `IPUOutfeedQueue`.
    """
    del self, kwargs


def set_asynchronous_callbacks(self: Any, asynchronous: bool = False) -> None:
    """Accepts when callbacks are called; on a host, always at the end of their batch.

    Args:
        self: The model.
        asynchronous: Accepted as published, without effect on a host.
    """
    del self, asynchronous


def set_replication_options(
    self: Any,
    replicated_metric_reduction_method: Any = ReplicatedMetricReductionMethod.NONE,
) -> None:
    """Accepts how metrics of replicas are combined; under the strategies, over all their rows.

    Args:
        self: The model.
        replicated_metric_reduction_method: Checked, without effect on a host.

    Raises:
        PipelineError: There is no such method.
    """
    del self
    ReplicatedMetricReductionMethod.parse(replicated_metric_reduction_method)


def get_pipeline_stage_assignment(self: Any) -> list[Any]:
    """The stages of a model.

    Args:
        self: The model.

    Returns:
        Of a `tf.keras.Sequential`, the stage of each layer; of another model, a
        `PipelineStageAssignment` for each call of a layer.
    """
    if isinstance(self, tf.keras.Sequential):
        return _stages_of(self)
    return _assignments(self)


def set_pipeline_stage_assignment(self: Any, pipeline_stage_assignment: Sequence[Any]) -> None:
    """Assigns the layers of a model to stages.

    Args:
        self: The model.
        pipeline_stage_assignment: As `get_pipeline_stage_assignment` returns it.

    Raises:
        PipelineError: It does not fit the model, or its stages have gaps.
    """
    given = list(pipeline_stage_assignment)
    stages = [getattr(one, "pipeline_stage", one) for one in given]
    expected = len(_stages_of(self))
    if len(stages) != expected:
        raise PipelineError(
            "PD425",
            "an assignment of stages has one entry for each layer",
            value=f"{len(stages)} entries for {expected} layers",
            hint="change what get_pipeline_stage_assignment() returns",
        )
    if not isinstance(self, tf.keras.Sequential):
        order = {_key(one): index for index, one in enumerate(_assignments(self))}
        given.sort(key=lambda one: order.get(_key(one), -1))
        stages = [one.pipeline_stage for one in given]
    _check_stages(self, stages)
    vars(self)[_STAGES] = stages


def reset_pipeline_stage_assignment(self: Any) -> None:
    """Takes all layers out of their stages.

    Args:
        self: The model.
    """
    vars(self)[_STAGES] = [None] * len(_stages_of(self))


def print_pipeline_stage_assignment_summary(
    self: Any, print_fn: Callable[[str], Any] | None = None
) -> None:
    """Prints the stage of each layer.

    Args:
        self: The model.
        print_fn: Called with each line; None for `print`.
    """
    show = print_fn or print
    for layer, stage in zip(_layers_of(self), _stages_of(self), strict=True):
        show(f"{layer.name}: {'no stage' if stage is None else f'stage {stage}'}")


def _key(assignment: PipelineStageAssignment) -> tuple[int, int]:
    return id(assignment.layer), assignment.node_index


def _assignments(model: Any) -> list[PipelineStageAssignment]:
    held = vars(model).get(_STAGES)
    found = [
        PipelineStageAssignment(layer, index, getattr(node, _TAG, None))
        for layer, index, node in _calls_of(model)
    ]
    for one, stage in zip(found, held or [], strict=False):
        one.pipeline_stage = stage
    return found


def _calls_of(model: Any) -> list[tuple[Any, int, Any]]:
    """The calls that a functional model is made of, without its inputs."""
    known = getattr(model, "_network_nodes", None)
    if known is None:
        return []
    return [
        (layer, index, node)
        for layer in model.layers
        for index, node in enumerate(layer.inbound_nodes)
        if f"{layer.name}_ib-{index}" in known and not node.is_input
    ]


def _layers_of(model: Any) -> list[Any]:
    if isinstance(model, tf.keras.Sequential):
        return list(model.layers)
    return [layer for layer, _, _ in _calls_of(model)]


def _stages_of(model: Any) -> list[int | None]:
    if not isinstance(model, tf.keras.Sequential):
        return [one.pipeline_stage for one in _assignments(model)]
    held = vars(model).get(_STAGES)
    return list(held) if held is not None else [None] * len(model.layers)


def _check_stages(model: Any, stages: Sequence[int | None]) -> None:
    found = sorted({stage for stage in stages if stage is not None})
    if None in stages and found:
        missing = [
            layer.name
            for layer, stage in zip(_layers_of(model), stages, strict=True)
            if stage is None
        ]
        raise PipelineError(
            "PD425",
            "some layers have a stage and others have none",
            value=f"without: {', '.join(missing[:5])}",
            accepted="a stage for every layer",
        )
    if found != list(range(len(found))):
        raise PipelineError(
            "PD425",
            "the stages of a pipeline are numbered without gaps",
            value=found,
            accepted="0, 1, ...",
        )
    pairs = _edges(model, stages)
    if bad := next((pair for pair in pairs if pair[0][1] > pair[1][1]), None):
        (before, first), (after, second) = bad
        raise PipelineError(
            "PD425",
            "a stage takes a result of a later stage",
            value=f"{after} (stage {second}) takes the result of {before} (stage {first})",
            accepted="stages in the order of the data",
        )


def _edges(
    model: Any, stages: Sequence[int | None]
) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    """Pairs of calls of which the second takes the first one's result, with their stages."""
    if isinstance(model, tf.keras.Sequential):
        named = [
            (layer.name, stage or 0) for layer, stage in zip(model.layers, stages, strict=True)
        ]
        return list(pairwise(named))
    calls = _calls_of(model)
    stage_of = {id(node): stage or 0 for (_, _, node), stage in zip(calls, stages, strict=True)}
    return [
        ((parent.layer.name, stage_of[id(parent)]), (layer.name, stage_of[id(node)]))
        for layer, _, node in calls
        for parent in node.parent_nodes
        if id(parent) in stage_of
    ]


def _prepare(model: Any) -> None:
    """Makes a model accumulate as its options say, before it is trained."""
    options = _options(model)
    of_ours = hasattr(getattr(strategy_of(model), "extended", None), "replicas_per_step")
    if of_ours and not (options and options.needs_stages):
        warn_of_missing_replicas()
    if options is None:
        return
    stages = _stages_of(model)
    if options.needs_stages:
        if not set(stages) - {None}:
            raise PipelineError(
                "PD425",
                "set_pipelining_options was called for a model without stages",
                value=f"{type(model).__name__} {model.name!r}",
                accepted="a model whose layers are called in PipelineStage scopes, or that has an "
                "assignment of stages",
                hint="model.set_pipeline_stage_assignment([0, 0, 1, ...]), or "
                "set_gradient_accumulation_options for a model without stages",
            )
        _check_stages(model, stages)
    steps = int(model._steps_per_execution.numpy())
    if steps % options.count:
        raise PipelineError(
            "PD425",
            "steps_per_execution must be a multiple of the micro-batches of an update",
            value=f"steps_per_execution={steps}, "
            f"gradient_accumulation_steps_per_replica={options.count}",
            hint=f"model.compile(..., steps_per_execution={options.count})",
        )
    if getattr(model.optimizer, _OPTIONS, None) is not options:
        if hasattr(model.optimizer, _OPTIONS):
            # Options of an earlier call; the class before it is the optimizer's own.
            model.optimizer.__class__ = type(model.optimizer).__mro__[1]
        options.apply_to(model.optimizer)
        model.train_function = None  # Keras builds it again


def _callbacks(model: Any, fit: Any) -> tuple[list[Any], list[Any]]:
    del fit
    return [] if _options(model) is None else [_WholeUpdates()], []


_METHODS: tuple[Any, ...] = (
    get_pipeline_stage_assignment,
    print_pipeline_stage_assignment_summary,
    reset_pipeline_stage_assignment,
    set_asynchronous_callbacks,
    set_gradient_accumulation_options,
    set_infeed_queue_options,
    set_outfeed_queue_options,
    set_pipeline_stage_assignment,
    set_pipelining_options,
    set_replication_options,
)


def extend_keras() -> None:
    """Gives models of Keras the published methods; safe to call again."""
    extend_models({one.__name__: one for one in _METHODS})
    add_callbacks("pipelining", _callbacks)
    before_training("pipelining", _prepare)
