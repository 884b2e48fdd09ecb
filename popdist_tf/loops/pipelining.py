"""Pipelines: a model in stages, whose gradients are accumulated over several micro-batches.

On the original hardware, the stages of different micro-batches run at the same time on different
devices. All schedules compute the same numbers, so here the stages run one after the other, with
one update after ``gradient_accumulation_count`` micro-batches.
"""

from __future__ import annotations

from contextvars import ContextVar
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow.compat.v2 as tf

from popdist.sdk.surface import missing
from popdist_tf.errors import PipelineError, PipelineTypeError
from popdist_tf.loops.accumulation import (
    GradientAccumulationReductionMethod,
    GradientAccumulator,
    accumulate,
    gradients_for,
)
from popdist_tf.loops.queues import IPUOutfeedMode
from popdist_tf.loops.repeat import repeat
from popdist_tf.program_code import program_code

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class PipelineSchedule(Enum):
    """The order in which the stages of a pipeline run on the original hardware."""

    Grouped = 0
    Interleaved = 1
    Sequential = 2


class RecomputationMode(Enum):
    """How activations are computed again for the backward pass on the original hardware."""

    Auto = 0
    RecomputeThenBackpropagate = 1
    RecomputeAndBackpropagateInterleaved = 2


class PipelineStageOptions:
    """Poplar's options of a stage: kept, without effect on a host.

    Args:
        convolution_options: Options of convolutions.
        matmul_options: Options of products of matrices.
        slice_options: Options of slices.
    """

    def __init__(
        self,
        convolution_options: dict[str, str] | None = None,
        matmul_options: dict[str, str] | None = None,
        slice_options: dict[str, str] | None = None,
    ) -> None:
        self.convolution_options = convolution_options or {}
        self.matmul_options = matmul_options or {}
        self.slice_options = slice_options or {}

    get_proto = missing("popdist_tf.ipu", "ops.pipelining_ops.PipelineStageOptions.get_proto")


_micro_batch: ContextVar[Any] = ContextVar("popdist_micro_batch")


def get_current_iteration_counter(name: str | None = None, **published: Any) -> Any:
    """Which micro-batch of an update a pipeline's stage is computing, from 0.

    Args:
        name: Of the operation.
        **published: More published arguments, without effect on a host.

    Returns:
        An int32 scalar.

    Raises:
        PipelineError: The code is not a stage of a pipeline.
    """
    del published
    try:
        return tf.identity(_micro_batch.get(), name=name)
    except LookupError:
        raise PipelineError(
            "PD424",
            "get_current_iteration_counter was called outside of a pipeline",
            hint="call it in a stage of pipelining_ops.pipeline; a loop carries a counter of its "
            "own among its values",
        ) from None


class OptimizerFunctionOutput:
    """What a pipeline's ``optimizer_function`` returns.

    Args:
        opt: An optimizer of `tf.compat.v1.train` or of Keras, or one of `ipu.optimizers`.
        loss: The scalar of a micro-batch that it minimises.
        compute_gradients_args: Further arguments of ``opt.compute_gradients``.
        compute_gradients_kwargs: Further keywords of ``opt.compute_gradients``.
        apply_gradients_args: Further arguments of ``opt.apply_gradients``.
        apply_gradients_kwargs: Further keywords of ``opt.apply_gradients``.
        variables: What an optimizer of Keras updates; None for all trainable variables.
        tape: For an optimizer of Keras, a `tf.GradientTape` that has recorded the loss; its
            variables are updated. None to differentiate the graph.
        gradient_capture_context: None; gradients inside of stages cannot be captured on a host.
        captured_gradient_outfeed: None, as above.

    Raises:
        PipelineError: ``opt`` cannot apply gradients, an argument is not one for it, or gradients
            are to be captured.
    """

    def __init__(
        self,
        opt: Any,
        loss: Any,
        compute_gradients_args: Any = None,
        compute_gradients_kwargs: dict[str, Any] | None = None,
        apply_gradients_args: Any = None,
        apply_gradients_kwargs: dict[str, Any] | None = None,
        variables: Any = None,
        tape: Any = None,
        gradient_capture_context: Any = None,
        captured_gradient_outfeed: Any = None,
    ) -> None:
        if not hasattr(opt, "apply_gradients"):
            raise PipelineTypeError(
                "PD424",
                "OptimizerFunctionOutput.opt must be a TensorFlow Optimizer or Keras OptimizerV2 "
                "object.",
                value=opt,
                accepted="an optimizer of tf.compat.v1.train or tf.keras.optimizers",
            )
        if gradient_capture_context is not None or captured_gradient_outfeed is not None:
            raise PipelineError(
                "PD424",
                "gradients inside of a pipeline's stages cannot be captured on a host",
                hint="outfeed the tensors of the last stage, or compute gradients in a plain loop",
            )
        if tape is not None and not isinstance(tape, tf.GradientTape):
            raise PipelineTypeError(
                "PD424", "OptimizerFunctionOutput.tape must be a GradientTape.", value=tape
            )
        if _is_of_keras(opt):
            refused = {
                "compute_gradients_args": compute_gradients_args,
                "compute_gradients_kwargs": compute_gradients_kwargs,
            }
            reason = "may not be used with OptimizerV2 instances."
        else:
            refused, reason = (
                {"variables": variables, "tape": tape},
                "may only be used with OptimizerV2.",
            )
        for argument, given in refused.items():
            if given:
                raise PipelineError("PD424", f"OptimizerFunctionOutput.{argument} {reason}")
        if tape is not None and variables:
            raise PipelineError(
                "PD424",
                "OptimizerFunctionOutput.tape may not be used when "
                "OptimizerFunctionOutput.variables is nonempty.",
                hint="the tape's own variables are updated",
            )
        self.opt = opt
        self.loss = loss
        self.compute_gradients_args = tuple(compute_gradients_args or ())
        self.compute_gradients_kwargs = dict(compute_gradients_kwargs or {})
        self.apply_gradients_args = tuple(apply_gradients_args or ())
        self.apply_gradients_kwargs = dict(apply_gradients_kwargs or {})
        self.tape = tape
        self.variables = variables
        self.gradient_capture_context = self.captured_gradient_outfeed = None

    @property
    def variables(self) -> Any:
        """What an optimizer of Keras updates; None for all trainable variables."""
        return self._variables

    @variables.setter
    def variables(self, variables: Any) -> None:
        if variables and self.tape is not None:
            raise PipelineError(
                "PD424",
                "OptimizerFunctionOutput.variables must be empty when "
                "OptimizerFunctionOutput.tape is used.",
            )
        self._variables = variables

    def gradients(self) -> list[tuple[Any, Any]]:
        """The gradients of the loss, and their variables."""
        compute = getattr(self.opt, "compute_gradients", None)
        if self.tape is None and compute is not None and not _is_of_keras(self.opt):
            args, kwargs = self.compute_gradients_args, self.compute_gradients_kwargs
            return list(compute(self.loss, *args, **kwargs))
        if self.tape is not None:
            variables = list(self.tape.watched_variables())
            gradients = self.tape.gradient(self.loss, variables)
        else:
            variables = list(self.variables or tf.compat.v1.trainable_variables())
            gradients = tf.gradients(self.loss, variables)
        return list(zip(gradients, variables, strict=True))

    def apply(self, grads_and_vars: list[tuple[Any, Any]]) -> Any:
        """The operation that updates the variables."""
        args, kwargs = self.apply_gradients_args, self.apply_gradients_kwargs
        return self.opt.apply_gradients(gradients_for(self.opt, grads_and_vars), *args, **kwargs)


def _is_of_keras(optimizer: Any) -> bool:
    return not isinstance(optimizer, tf.compat.v1.train.Optimizer)


def recomputation_checkpoint(tensors: Any, name: str | None = None) -> Any:
    """Marks tensors from which activations are computed again; without effect on a host.

    Args:
        tensors: A tensor, or a structure of them.
        name: Of the operations.

    Returns:
        The tensors.
    """
    return tf.nest.map_structure(lambda one: tf.identity(one, name=name), tensors)


def pipeline(
    computational_stages: Sequence[Callable[..., Any]],
    gradient_accumulation_count: int | None = None,
    gradient_accumulation_dtype: Any = None,
    repeat_count: int = 1,
    batch_serialization_iterations: int = 1,
    inputs: Any = None,
    infeed_queue: Any = None,
    outfeed_queue: Any = None,
    optimizer_function: Callable[..., OptimizerFunctionOutput] | None = None,
    device_mapping: Sequence[int] | None = None,
    pipeline_schedule: PipelineSchedule | None = None,
    outfeed_loss: bool = False,
    accumulate_outfeed: bool = False,
    accumulate_outfeed_dtype: Any = None,
    outfeed_mask: Sequence[bool] | None = None,
    reduction_method: Any = GradientAccumulationReductionMethod.SUM,
    name: str | None = None,
    **published: Any,
) -> Any:
    """Runs the stages of a model for many micro-batches, and updates its weights in between.

    Args:
        computational_stages: Functions, called one after the other. The first takes ``inputs`` and
            an element of the queue (a tuple's parts as further arguments, a dict as keywords); each
            of the others what the one before it has returned.
            A list of functions is one stage: each takes the same arguments, and their results are
            concatenated.
        gradient_accumulation_count: Micro-batches of an update, as an integer or a tensor. Without
            an ``optimizer_function``, micro-batches of a repetition.
        gradient_accumulation_dtype: In which dtype gradients are accumulated: a dtype, a function
            of the variable that returns one, or None for the variable's own.
        repeat_count: Updates.
        batch_serialization_iterations: Parts that each micro-batch is divided into; each takes an
            element of the queue.
        inputs: Tensors that the first stage takes with each micro-batch, such as learning rates.
        infeed_queue: Where elements come from.
        outfeed_queue: Takes what the last stage returns for each micro-batch: a list; without an
            ``optimizer_function`` also a dict or a single tensor.
        optimizer_function: Takes what the last stage returns; returns an
            `OptimizerFunctionOutput`. None for inference.
        device_mapping: A device for each stage; checked, without effect on a host.
        pipeline_schedule: Without effect on a host, as all schedules compute the same.
        outfeed_loss: Whether the loss goes to the outfeed, in place of the last stage's results.
        accumulate_outfeed: Whether the values for the outfeed are summed over the micro-batches of
            an update, and go out once for each.
        accumulate_outfeed_dtype: In which dtype; None for their own.
        outfeed_mask: For each result of the last stage, whether it is kept from the outfeed.
        reduction_method: What becomes of the gradients of the micro-batches of an update; SUM,
            MEAN or RUNNING_MEAN.
        name: Of the operations.
        **published: More published arguments (placement, recomputation, offloading), without
            effect on a host.

    Returns:
        The operation that runs the pipeline.

    Raises:
        PipelineError: Arguments contradict each other. It is a `ValueError`.
    """
    if published.pop("continuous_weight_updates", False):
        raise NotImplementedError("Continuous weight updates are currently not supported.")
    check_published(published)
    require_list_of_stages(computational_stages)
    stages = [
        _parallel(stage) if isinstance(stage, (list, tuple)) else stage
        for stage in computational_stages
    ]
    _check(stages, gradient_accumulation_count, repeat_count, device_mapping)
    _check_placement(
        batch_serialization_iterations, pipeline_schedule, device_mapping,
        is_trained=optimizer_function is not None,
    )  # fmt: skip
    _check_options(published, len(stages))
    stages = [program_code(stage) for stage in stages]
    optimizer_function = optimizer_function and program_code(optimizer_function)
    _check_outfeed(
        outfeed_queue, optimizer_function, outfeed_mask, outfeed_loss, accumulate_outfeed
    )
    constant = [tf.convert_to_tensor(one) for one in _listed(inputs)]
    count: Any = gradient_accumulation_count  # an integer, or a tensor as published
    if tf.is_tensor(count) or isinstance(count, tf.Variable):
        count = tf.cast(count, tf.int32)
    count = count * batch_serialization_iterations

    def micro_batch(index: Any, *element: Any, **named: Any) -> list[Any]:
        token = _micro_batch.set(index % count)
        try:
            results: Any = stages[0](*constant, *element, **named)
            for stage in stages[1:]:
                results = call_stage(stage, results)
        finally:
            _micro_batch.reset(token)
        operations = [one for one in _listed(results) if isinstance(one, tf.Operation)]
        out: Any = results
        if optimizer_function is not None:
            asked = asked_update(optimizer_function, results)
            accumulator = GradientAccumulator(count, reduction_method, gradient_accumulation_dtype)
            operations.append(accumulate(accumulator, asked.gradients(), index, asked.apply))
            out = asked.loss if outfeed_loss else results
        is_trained = optimizer_function is not None
        if not outfeed_loss:
            out = _for_outfeed(out, outfeed_mask, is_listed=is_trained or accumulate_outfeed)
        if outfeed_queue is None:
            _refuse_lost(out)
        elif accumulate_outfeed:
            dtype = accumulate_outfeed_dtype
            operations.append(_accumulated_enqueue(outfeed_queue, out, index, count, dtype))
        else:
            operations.append(outfeed_queue.enqueue(out))
        return [index + 1, *operations]

    with tf.name_scope(name or "pipeline"):
        ended = repeat(count * repeat_count, micro_batch, [tf.constant(0)], infeed_queue)
        return tf.group(ended)


def _accumulated_enqueue(queue: Any, values: Any, index: Any, count: int, dtype: Any) -> Any:
    flat = [tf.convert_to_tensor(value) for value in tf.nest.flatten(values)]
    accumulator = GradientAccumulator(count, GradientAccumulationReductionMethod.SUM, dtype)
    # A value is accumulated as its own gradient would be.
    pairs = [(value, _Like(value, number)) for number, value in enumerate(flat)]

    def enqueue(totals: list[tuple[Any, Any]]) -> Any:
        return queue.enqueue(tf.nest.pack_sequence_as(values, [total for total, _ in totals]))

    return accumulate(accumulator, pairs, index, enqueue)


class _Like:
    """Stands for a variable with a tensor's shape and dtype."""

    def __init__(self, value: Any, number: int) -> None:
        self.shape = value.shape
        self.dtype = value.dtype
        self.name = f"pipeline_outfeed_{number}"


_WITHOUT_EFFECT = {
    "backward_propagation_stages_poplar_options",
    "forward_propagation_stages_poplar_options",
    "gradient_accumulation_for_captured_grads",
    "offload_activations",
    "offload_gradient_accumulation_buffers",
    "offload_weight_update_variables",
    "offload_weights",
    "recomputation_mode",
    "replicated_optimizer_state_sharding",
    "replicated_weight_sharding",
    "weight_update_poplar_options",
}


def check_published(published: dict[str, Any]) -> None:
    """Refuses keywords that `pipeline` never had."""
    if unknown := sorted(set(published) - _WITHOUT_EFFECT):
        raise TypeError(f"pipeline() got an unexpected keyword argument {unknown[0]!r}")


def _check(stages: list[Any], count: Any, repeats: int, mapping: Any) -> None:
    if not stages or not all(map(callable, stages)):
        raise PipelineError(
            "PD424",
            "computational_stages argument needs to be a list or a tuple.",
            value=stages,
            accepted="one function for each stage",
        )
    if len(stages) == 1:
        raise PipelineError(
            "PD424",
            "Pipeline requires at least two computational stages.",
            hint="train a model of one stage in loops.repeat, with ipu.optimizers."
            "GradientAccumulationOptimizerV2",
        )
    if count is None:
        raise PipelineError("PD424", "gradient_accumulation_count must be specified.")
    is_known = isinstance(count, (int, np.integer))
    is_tensor = tf.is_tensor(count) or isinstance(count, tf.Variable)
    if not (is_known or is_tensor) or (is_known and count < 1) or repeats < 1:
        raise PipelineError(
            "PD424",
            "gradient_accumulation_count and repeat_count must be at least 1",
            value=f"gradient_accumulation_count={count}, repeat_count={repeats}",
        )
    if mapping is not None and not isinstance(mapping, (list, tuple)):
        raise PipelineTypeError(
            "PD424", "device_mapping argument needs to be a list or a tuple.", value=mapping
        )
    if mapping is not None and len(mapping) != len(stages):
        raise PipelineError(
            "PD424",
            f"Each stage must be mapped to an IPU: {len(mapping)} mappings != {len(stages)} stages",
        )


def _check_placement(serialized: int, schedule: Any, mapping: Any, *, is_trained: bool) -> None:
    """Refuses places of stages that the original's compiler does not have."""
    devices = tf.nest.flatten(mapping)
    repeats = mapping is not None and len(set(devices)) < len(devices)
    if schedule is PipelineSchedule.Interleaved and is_trained and repeats:
        raise NotImplementedError(
            "The pipelining schedule 'Interleaved' does not currently support multiple pipeline "
            "stages on the same device for training graphs. Use another pipeline_schedule."
        )
    if serialized > 1 and schedule not in (None, PipelineSchedule.Sequential):
        raise NotImplementedError(
            "Batch serialization is only supported with the `Sequential` schedule."
        )
    if serialized > 1 and mapping is not None and len(set(devices)) != 1:
        raise NotImplementedError(
            "When using batch serialization, all the pipeline stages need to be mapped to a single "
            "IPU."
        )


def _check_options(published: dict[str, Any], count: int) -> None:
    """Checks Poplar's options, which have no effect on a host."""
    is_sharded = published.get("replicated_optimizer_state_sharding")
    if is_sharded is True and published.get("offload_weight_update_variables") is False:
        raise PipelineError(
            "PD424",
            "replicated_optimizer_state_sharding: the optimizer state must be offloaded, and "
            "offload_weight_update_variables is False",
        )
    for way in ("forward", "backward"):
        name = f"{way}_propagation_stages_poplar_options"
        given = published.get(name)
        if given is None:
            continue
        if not isinstance(given, (list, tuple)):
            raise PipelineTypeError(
                "PD424", f"{name} must be a list or a tuple of PipelineStageOptions objects."
            )
        if len(given) != count:
            raise PipelineError(
                "PD424",
                f"{name} must be a list or a tuple of PipelineStageOptions objects of length "
                f"{count} (same number as the number of computational stages) but is {len(given)}.",
            )
        for one in given:
            if not isinstance(one, PipelineStageOptions):
                raise PipelineTypeError(
                    "PD424",
                    f"Expected all elements of {name} to be of type PipelineStageOptions, but got "
                    f"{one} instead.",
                )
    update = published.get("weight_update_poplar_options")
    if update is not None and not isinstance(update, PipelineStageOptions):
        raise PipelineTypeError(
            "PD424",
            "weight_update_poplar_options to be of type PipelineStageOptions, but got "
            f"{update} instead.",
        )


def _check_outfeed(
    queue: Any, optimizer_function: Any, mask: Any, outfeed_loss: bool, accumulates: bool
) -> None:
    for is_given, name in (
        (bool(mask), "outfeed_mask is set"),
        (outfeed_loss, "outfeed_loss is True"),
    ):
        if is_given and optimizer_function is None:
            raise _contradiction(f"An optimizer_function must be provided when {name}.")
    if outfeed_loss and mask:
        raise _contradiction("Only one of `outfeed_loss` and `outfeed_mask` can be set.")
    for is_given, name in ((outfeed_loss, "outfeed_loss"), (accumulates, "accumulate_outfeed")):
        if is_given and queue is None:
            raise _contradiction(f"An outfeed_queue must be provided when {name} is True.")
    if accumulates and getattr(queue, "mode", None) is not IPUOutfeedMode.ALL:
        raise _contradiction("To accumulate the outfeed, it must be in IPUOutfeedMode ALL.")


def _parallel(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """One stage of several functions, which the original runs on different devices at once."""

    def stage(*args: Any, **kwargs: Any) -> list[Any]:
        return [one for function in functions for one in _listed(function(*args, **kwargs))]

    return stage


def _contradiction(what: str) -> PipelineError:
    return PipelineError("PD424", what, hint="leave one of them away")


def _refuse_lost(out: Any) -> None:
    tensors = [one for one in tf.nest.flatten(out) if tf.is_tensor(one)]
    if tensors:
        raise PipelineError(
            "PD424",
            f"The last computational stage has tensor outputs: {', '.join(map(str, tensors))}, but "
            "no outfeed_queue has been provided.",
            hint="give the pipeline an IPUOutfeedQueue",
        )


def _for_outfeed(results: Any, mask: Sequence[bool] | None, *, is_listed: bool) -> Any:
    """What the outfeed gets of the last stage's results, in the published structure.

    It is a list, except for a dict or a single tensor of a pipeline without training.
    """
    if not is_listed and (isinstance(results, dict) or tf.is_tensor(results)):
        return results
    values = [one for one in _listed(results) if not isinstance(one, tf.Operation)]
    if not mask:
        return values
    if len(mask) != len(values):
        raise PipelineError(
            "PD424",
            f"The last computational stage has {len(values)} outputs, but the `outfeed_mask` has "
            f"elements {len(mask)} - these need to match in size.",
        )
    return [value for value, is_kept in zip(values, mask, strict=True) if not is_kept]


def asked_update(optimizer_function: Callable[..., Any], results: Any) -> OptimizerFunctionOutput:
    """What an ``optimizer_function`` returns for the results of the last stage.

    Raises:
        PipelineTypeError: It is not an `OptimizerFunctionOutput`.
    """
    asked = call_stage(optimizer_function, results)
    if not isinstance(asked, OptimizerFunctionOutput):
        raise PipelineTypeError(
            "PD424",
            "optimizer_function must return an OptimizerFunctionOutput.",
            value=asked,
            hint="return pipelining_ops.OptimizerFunctionOutput(optimizer, loss)",
        )
    return asked


def require_list_of_stages(stages: Any) -> None:
    """Refuses stages that are not in a list.

    Raises:
        PipelineTypeError: They are not.
    """
    if not isinstance(stages, (list, tuple)):
        raise PipelineTypeError(
            "PD424", "computational_stages argument needs to be a list or a tuple.", value=stages
        )


def call_stage(function: Callable[..., Any], results: Any) -> Any:
    """Calls a function with the results of the previous stage, or with an element of data."""
    if isinstance(results, dict):
        return function(**results)
    return function(*(one for one in _listed(results) if not isinstance(one, tf.Operation)))


def _listed(values: Any) -> list[Any]:
    if values is None:
        return []
    return list(values) if isinstance(values, (list, tuple)) else [values]
