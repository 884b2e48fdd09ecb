"""`IPUPipelineEstimator`: the Estimator of models that are divided into stages.

Each step takes one micro-batch through all stages. Gradients are accumulated, and every
``gradient_accumulation_count`` steps they update the weights.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from popdist_tf.errors import EstimatorKeyError, EstimatorTypeError, EstimatorValueError
from popdist_tf.estimator.estimator import IPUEstimator, accepts, check_replicas
from popdist_tf.estimator.spec import IPUEstimatorSpec
from popdist_tf.estimator_api import estimator_api
from popdist_tf.loops.accumulation import (
    GradientAccumulationReductionMethod,
    GradientAccumulator,
    accumulate,
)
from popdist_tf.loops.pipelining import (
    asked_update,
    call_stage,
    check_published,
    require_list_of_stages,
)
from popdist_tf.program_code import program_code
from popdist_tf.replica_state import new_counter

if TYPE_CHECKING:
    from collections.abc import Callable

_MODES = estimator_api().ModeKeys
_WHEN = {_MODES.TRAIN: "when training", _MODES.EVAL: "when evaluating"}


class _Fields(NamedTuple):
    mode: str
    computational_stages: Any
    gradient_accumulation_count: int | None
    eval_metrics_fn: Any
    optimizer_function: Any
    device_mapping: Any
    loss_accumulator_dtype: Any
    training_hooks: Any
    evaluation_hooks: Any
    prediction_hooks: Any
    reduction_method: Any
    pipeline_op_kwargs: Any


class IPUPipelineEstimatorSpec(_Fields):
    """What the model function of an `IPUPipelineEstimator` returns for one mode.

    Args:
        mode: A `tf.estimator.ModeKeys`.
        computational_stages: Functions, called one after the other: the first with features and
            labels, each of the others with what the one before it has returned.
        gradient_accumulation_count: Micro-batches of an update; needed to train.
        eval_metrics_fn: Takes what the last stage returns; returns a dict of metrics as
            `tf.compat.v1.metrics` makes them, with the loss under ``"loss"``. Needed to evaluate.
        optimizer_function: Takes what the last stage returns; returns an
            `OptimizerFunctionOutput`. Needed to train.
        device_mapping: A device for each stage, without effect on a host.
        loss_accumulator_dtype: Accepted as published, without effect on a host.
        training_hooks: Hooks of the training session.
        evaluation_hooks: Hooks of the evaluation session.
        prediction_hooks: Hooks of the prediction session.
        reduction_method: What becomes of the gradients of an update: SUM, MEAN or RUNNING_MEAN.
        **pipeline_op_kwargs: More published arguments of `pipelining_ops.pipeline`.

    Raises:
        EstimatorValueError: Something that the mode needs is missing.
    """

    def __new__(  # noqa: PYI034 - `Self` came with Python 3.11
        cls,
        mode: str,
        computational_stages: Any,
        gradient_accumulation_count: int | None = None,
        eval_metrics_fn: Callable[..., dict[str, Any]] | None = None,
        optimizer_function: Callable[..., Any] | None = None,
        device_mapping: Any = None,
        loss_accumulator_dtype: Any = None,
        training_hooks: Any = None,
        evaluation_hooks: Any = None,
        prediction_hooks: Any = None,
        reduction_method: Any = GradientAccumulationReductionMethod.SUM,
        **pipeline_op_kwargs: Any,
    ) -> IPUPipelineEstimatorSpec:
        """Checks what the mode needs."""
        require_list_of_stages(computational_stages)
        used = {"gradient_accumulation_dtype", "inputs", "pipeline_schedule", "name"}
        check_published({k: v for k, v in pipeline_op_kwargs.items() if k not in used})
        needed: dict[str, dict[str, Any]] = {
            _MODES.TRAIN: {
                "gradient_accumulation_count": gradient_accumulation_count,
                "optimizer_function": optimizer_function,
            },
            _MODES.EVAL: {"eval_metrics_fn": eval_metrics_fn},
        }
        for name, value in needed.get(mode, {}).items():
            if value is None:
                raise EstimatorValueError(
                    "PD422", f"`IPUPipelineEstimatorSpec` must contain `{name}` {_WHEN[mode]}"
                )
        return super().__new__(
            cls,
            mode,
            list(computational_stages),
            gradient_accumulation_count,
            eval_metrics_fn,
            optimizer_function,
            device_mapping,
            loss_accumulator_dtype,
            training_hooks,
            evaluation_hooks,
            prediction_hooks,
            reduction_method,
            pipeline_op_kwargs,
        )


class IPUPipelineEstimator(IPUEstimator):
    """Trains, evaluates and predicts with a model that is divided into stages.

    Args:
        model_fn: Takes the mode, and ``params`` and ``config`` where it has such arguments; returns
            an `IPUPipelineEstimatorSpec`.
        model_dir: As for `IPUEstimator`.
        config: A `RunConfig`. Its ``iterations_per_loop`` must be a multiple of
            ``gradient_accumulation_count``, as published.
        params: As for `IPUEstimator`.
        warm_start_from: As for `IPUEstimator`.

    Raises:
        EstimatorValueError: ``config`` is not a `RunConfig`.
        EstimatorTypeError: ``params`` is not a dict.
        EstimatorUnsupportedError: Several local replicas without a strategy that runs them.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | None = None,
        config: Any = None,
        params: dict[str, Any] | None = None,
        warm_start_from: Any = None,
    ) -> None:
        def staged(features: Any, labels: Any, mode: str, params: Any, config: Any) -> Any:
            values = {"params": params, "config": config}
            if {"features", "labels"} & set(inspect.signature(model_fn).parameters):
                raise EstimatorValueError(
                    "PD422",
                    "The `model_fn` used with `IPUPipelineEstimator` must not have `features` or "
                    "`labels` arguments. They are instead passed to the first pipeline stage "
                    "function.",
                    hint="def model_fn(mode, params): ...",
                )
            given = {name: value for name, value in values.items() if accepts(model_fn, name)}
            trains = mode == _MODES.TRAIN and config.train_distribute is not None
            spec = program_code(model_fn, by_default=trains)(mode=mode, **given)
            if not isinstance(spec, IPUPipelineEstimatorSpec):
                raise EstimatorTypeError(
                    "PD422",
                    "The `model_fn` used with `IPUPipelineEstimator` must return "
                    "`IPUPipelineEstimatorSpec`.",
                    value=spec,
                )
            _check_stages(spec, config.ipu_run_config)
            return _built(spec, features, labels, config)

        super().__init__(staged, model_dir, config, params, warm_start_from)

    def _check_config(self, config: Any) -> None:
        check_replicas(config)

    def _features_of_predictions(self, element: Any) -> tuple[Any, Any]:
        """All of an element, which is the first stage's."""
        return element, None

    @property
    def _iterations(self) -> int:
        # Under a strategy, each call into TensorFlow runs one micro-batch.
        return 1 if self._config.train_distribute is not None else super()._iterations


def _check_stages(spec: IPUPipelineEstimatorSpec, settings: Any) -> None:
    """Checks the numbers of stages, of devices and of micro-batches against each other."""
    stages, mapping = spec.computational_stages, spec.device_mapping
    needed, given = len(stages if mapping is None else set(mapping)), settings.num_shards
    # One shard is the default, which a host does not need to be asked for more of.
    if not given // 2 < needed <= given and (given > 1 or not stages):
        raise EstimatorValueError(
            "PD421",
            f"This pipeline requires {needed} devices, but `IPURunConfig.num_shards` was set to "
            f"{given} (num_shards/2 < pipeline_devices <= num_shards).",
        )
    if not stages or (mapping is not None and len(mapping) != len(stages)):
        raise EstimatorValueError(
            "PD422",
            "`IPUPipelineEstimatorSpec` needs stages, and a device of the mapping for each",
            value=f"{len(stages)} stages, device_mapping={mapping}",
        )
    count: Any = spec.gradient_accumulation_count
    iterations = settings.iterations_per_loop
    is_number = isinstance(count, int) and count > 0
    if spec.mode == _MODES.TRAIN and not (is_number and iterations % count == 0):
        is_less = is_number and iterations < count
        raise EstimatorValueError(
            "PD421",
            f"`IPURunConfig.iterations_per_loop` (got {iterations}) "
            + ("cannot be less than" if is_less else "must be divisible by")
            + f" `gradient_accumulation_count` (got {count})",
            hint=f"IPURunConfig(iterations_per_loop={count})",
        )


def _built(spec: IPUPipelineEstimatorSpec, features: Any, labels: Any, config: Any) -> Any:
    """The `IPUEstimatorSpec` of one micro-batch."""
    first: Any = features if labels is None else (features, labels)
    is_rewritten = spec.mode == _MODES.TRAIN and config.train_distribute is not None
    stages = [program_code(one, by_default=is_rewritten) for one in spec.computational_stages]
    constant = spec.pipeline_op_kwargs.get("inputs") or ()
    results = call_stage(partial(stages[0], *constant), first)
    for stage in stages[1:]:
        results = call_stage(stage, results)
    if spec.mode == _MODES.PREDICT:
        predictions = results
        if isinstance(results, (list, tuple)):
            if len(results) != 1:
                raise EstimatorValueError(
                    "PD422",
                    "The last computational stage must return exactly one prediction tensor, but "
                    f"got {len(results)}",
                    hint="return a dict of predictions",
                )
            predictions = results[0]
        return IPUEstimatorSpec(
            spec.mode, predictions=predictions, prediction_hooks=spec.prediction_hooks
        )
    if spec.mode == _MODES.EVAL:
        metrics = call_stage(spec.eval_metrics_fn, results)
        if not isinstance(metrics, dict):
            raise EstimatorTypeError(
                "PD422",
                f"The `eval_metrics_fn` must return a dict, but got {type(metrics)}.",
                hint="the loss has the key 'loss'",
            )
        metrics = dict(metrics)
        if "loss" not in metrics:
            raise EstimatorKeyError(
                "PD422",
                "The dict returned from `eval_metrics_fn` must contain 'loss'.",
                value=sorted(metrics),
            )
        loss = metrics.pop("loss")
        return IPUEstimatorSpec(
            spec.mode, loss=loss, eval_metric_ops=metrics, evaluation_hooks=spec.evaluation_hooks
        )
    count: Any = spec.gradient_accumulation_count
    asked = asked_update(program_code(spec.optimizer_function, by_default=is_rewritten), results)
    done = new_counter("pipeline_micro_batches")
    dtype = spec.pipeline_op_kwargs.get("gradient_accumulation_dtype")
    accumulator = GradientAccumulator(count, spec.reduction_method, dtype)
    index = done.assign_add(1) - 1
    train_op = accumulate(accumulator, asked.gradients(), index, asked.apply)
    return IPUEstimatorSpec(
        spec.mode, loss=asked.loss, train_op=train_op, training_hooks=spec.training_hooks
    )
