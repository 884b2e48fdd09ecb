"""Keras models in pipeline stages, and the accumulation of their gradients in ``fit``.

On the original hardware, stages run on devices of their own. All schedules compute the same
numbers: those of gradients that are accumulated over several micro-batches before an update. So a
host trains the model as it is, accumulates, and checks what the program says about its stages.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist_tf.errors import PipelineError, PipelineStateError
from popdist_tf.hooks import add_callbacks, before_evaluations, before_training, extend_models
from popdist_tf.keras.stages import METHODS, require_whole, stages_of
from popdist_tf.loops.accumulation import (
    GradientAccumulationReductionMethod,
    GradientAccumulator,
    accumulate,
    gradients_for,
)
from popdist_tf.replica_state import ReplicaState, new_counter
from popdist_tf.strategies.devices import warn_of_missing_replicas
from popdist_tf.versions import build_optimizer, keras_is_3, strategy_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_OPTIONS = "_popdist_accumulation"

_SET_ELSEWHERE = {
    **dict.fromkeys(
        ("gradient_accumulation_count", "num_mini_batches"),
        "Set the `gradient_accumulation_steps_per_replica` argument to `{}` instead.",
    ),
    **dict.fromkeys(
        (
            *("computational_stages", "infeed_queue", "inputs", "opt", "optimizer_function"),
            *("outfeed_queue", "repeat_count"),
        ),
        "This argument is automatically set by Keras.",
    ),
    **dict.fromkeys(
        ("outfeed_loss", "outfeed_mask", "batch_serialization_iterations"),
        "This argument is not compatible with Keras.",
    ),
}
"""Arguments of a pipeline that a model's options do not have, with the sentence of each."""


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

    def __init__(self, count: Any, method: Any, *, needs_stages: bool) -> None:
        is_number = isinstance(count, int) and not isinstance(count, bool) and count > 0
        if count is not None and not is_number:
            raise PipelineError(
                "PD425",
                "Expected `gradient_accumulation_steps_per_replica` to be a positive integer, but "
                f"got {count} instead.",
                value=count,
                accepted="1, 2, ...",
            )
        self.count = count
        self.method = GradientAccumulationReductionMethod.parse(method)
        self.dtype: Any = None
        self.devices: Sequence[int] | None = None
        self.needs_stages = needs_stages

    def apply_to(self, optimizer: Any) -> None:
        """Makes an optimizer accumulate; it is changed in place, and saved as its own class."""
        kind = type(optimizer)
        replicas: dict[int, tuple[GradientAccumulator, ReplicaState]] = {}

        def apply_gradients(itself: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = list(grads_and_vars)
            with tf.init_scope():
                build_optimizer(itself, [variable for _, variable in pairs])
            replica = tf.distribute.get_replica_context()
            number = int(replica._replica_id_in_sync_group or 0)  # the number, not a tensor
            if number not in replicas:
                counter = new_counter("mini_batches")
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
    if given := next((key for key in others if key in _SET_ELSEWHERE), None):
        where = _SET_ELSEWHERE[given]
        raise PipelineError(
            "PD425", f"Found `{given}` key in `pipelining_kwargs`. {where.format(name)}"
        )
    if others.pop("experimental_normalize_gradients", False):
        method = GradientAccumulationReductionMethod.MEAN  # its name until SDK 2.5
    if count is None:  # it is as an earlier call has set it
        count = getattr(_options(model), "count", None)
    options = _Accumulation(count, method, needs_stages=name == "set_pipelining_options")
    options.dtype = others.get(dtype)
    if devices is not None and not all(isinstance(device, int) for device in devices):
        raise PipelineError(
            "PD425", "Expected `device_mapping` to be a list of integers.", value=devices
        )
    options.devices = devices
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


def _require_whole(model: Any, way: str = "") -> None:
    """Checks the stages of a model with options of a pipeline, before it runs.

    As published, a model without stages runs as a plain model, whatever its options are. Only `fit`
    (no ``way``) refuses to leave out an accumulation that the options ask for.
    """
    options = _options(model)
    if options is None or not options.needs_stages:
        return
    stages = stages_of(model)
    if not stages:
        if way or options.count is None:
            return
        raise PipelineError(
            "PD425",
            "set_pipelining_options was called for a model without stages",
            value=f"{type(model).__name__} {model.name!r}",
            accepted="a model whose layers are called in PipelineStage scopes, or that has an "
            "assignment of stages",
            hint="model.set_pipeline_stage_assignment([0, 0, 1, ...]), or "
            "set_gradient_accumulation_options for a model without stages",
        )
    require_whole(model)
    if options.devices is not None and len(options.devices) != len(stages):
        raise PipelineError(
            "PD425",
            "device_mapping must name a device for each stage",
            value=f"{len(options.devices)} devices for {len(stages)} stages",
        )


def _prepare(model: Any) -> None:
    """Makes a model accumulate as its options say, before it is trained."""
    options = _options(model)
    of_ours = hasattr(getattr(strategy_of(model), "extended", None), "replicas_per_step")
    if of_ours and not (options and options.needs_stages):
        warn_of_missing_replicas()
    if options is None or (options.count is None and not options.needs_stages):
        return
    if options.needs_stages:
        _require_whole(model)
        if options.count is None:
            if not stages_of(model):
                return
            raise PipelineError(
                "PD425",
                "The model which you are attempting to train is pipelined, however "
                "`gradient_accumulation_steps_per_replica` has not been set through "
                "`set_pipelining_options()`.",
                accepted="the micro-batches of an update: 1, 2, ...",
            )
    steps = int(model._steps_per_execution.numpy())
    if steps % options.count:
        kind = "pipelined model" if options.needs_stages else "model"
        raise PipelineStateError(
            "PD425",
            f"The {kind} has been configured to use gradient accumulation for training, however "
            f"the current `steps_per_execution` value (set to {steps}) is not divisible by "
            f"`gradient_accumulation_steps_per_replica` ({options.count}).",
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
    return [] if getattr(_options(model), "count", None) is None else [_WholeUpdates()], []


_METHODS: tuple[Any, ...] = (
    *METHODS,
    set_asynchronous_callbacks,
    set_gradient_accumulation_options,
    set_infeed_queue_options,
    set_outfeed_queue_options,
    set_pipelining_options,
    set_replication_options,
)


def extend_keras() -> None:
    """Gives models of Keras the published methods; safe to call again."""
    extend_models({one.__name__: one for one in _METHODS})
    add_callbacks("pipelining", _callbacks)
    before_training("pipelining", _prepare)
    before_evaluations("pipelining", _require_whole)
