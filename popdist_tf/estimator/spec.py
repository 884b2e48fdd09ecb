"""The published spec that a model function returns, and its translation to TensorFlow's spec."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow.compat.v2 as tf

from popdist_tf.errors import EstimatorTypeError, EstimatorValueError
from popdist_tf.estimator_api import estimator_api
from popdist_tf.program_code import program_code


class _Fields(NamedTuple):
    mode: str
    predictions: Any
    loss: Any
    train_op: Any
    eval_metric_ops: Any
    eval_metrics: Any
    host_call: Any
    training_hooks: Any
    evaluation_hooks: Any
    prediction_hooks: Any


class IPUEstimatorSpec(_Fields):
    """What a model function returns for one mode.

    Args:
        mode: A `tf.estimator.ModeKeys`.
        predictions: Tensors of a prediction.
        loss: A scalar; needed to train and to evaluate.
        train_op: What trains; with ``host_call``, what has to run before it.
        eval_metric_ops: Metrics by name, as `tf.compat.v1.metrics` makes them.
        eval_metrics: A function and its tensors; the function returns ``eval_metric_ops``.
        host_call: A function and its tensors, run on the host in each training step. It returns
            the operation that trains: usually ``optimizer.apply_gradients``, with the gradients as
            its tensors.
        training_hooks: Hooks of the training session.
        evaluation_hooks: Hooks of the evaluation session.
        prediction_hooks: Hooks of the prediction session.

    Raises:
        EstimatorTypeError: ``host_call`` or ``eval_metrics`` is not a function with its tensors.
        EstimatorValueError: One of them has another length than two.
    """

    def __new__(  # noqa: PYI034 - `Self` came with Python 3.11
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: Any = None,
        eval_metrics: Any = None,
        host_call: Any = None,
        training_hooks: Any = None,
        evaluation_hooks: Any = None,
        prediction_hooks: Any = None,
    ) -> IPUEstimatorSpec:
        """Checks the pairs of functions and tensors."""
        _check_pair("host_call", host_call, (list,))
        _check_pair("eval_metrics", eval_metrics, (list, dict))
        return super().__new__(
            cls,
            mode,
            predictions,
            loss,
            train_op,
            eval_metric_ops,
            eval_metrics,
            host_call,
            training_hooks,
            evaluation_hooks,
            prediction_hooks,
        )


def to_estimator_spec(spec: Any, iterations_per_loop: int) -> Any:
    """Turns an `IPUEstimatorSpec` or TensorFlow's own spec into TensorFlow's spec.

    Raises:
        EstimatorValueError: Something that the mode needs is missing, it is not a spec, or there is
            a ``host_call`` in a loop of several iterations.
        EstimatorTypeError: ``host_call`` returned neither a tensor nor an operation.
    """
    base = estimator_api().EstimatorSpec
    if isinstance(spec, base):
        return spec
    if not isinstance(spec, IPUEstimatorSpec):
        raise EstimatorValueError(
            "PD422",
            "`model_fn` must return an `EstimatorSpec` or `IPUEstimatorSpec`",
            value=spec,
        )
    modes = estimator_api().ModeKeys
    if spec.mode == modes.TRAIN:
        return base(
            spec.mode,
            loss=_required(spec, "loss"),
            train_op=_train_op(spec, iterations_per_loop),
            training_hooks=spec.training_hooks,
        )
    if spec.mode == modes.EVAL:
        return base(
            spec.mode,
            loss=_required(spec, "loss"),
            eval_metric_ops=_metrics(spec),
            evaluation_hooks=spec.evaluation_hooks,
        )
    return base(
        spec.mode,
        predictions=_required(spec, "predictions"),
        prediction_hooks=spec.prediction_hooks,
    )


def _train_op(spec: IPUEstimatorSpec, iterations_per_loop: int) -> Any:
    train_op = _required(spec, "train_op")
    if spec.host_call is None:
        return train_op
    if iterations_per_loop > 1:
        raise EstimatorValueError(
            "PD423",
            "host_call is not allowed for iterations_per_loop > 1: it runs once for each call into "
            "TensorFlow",
            value=f"iterations_per_loop={iterations_per_loop}",
            accepted="iterations_per_loop=1 with a host_call",
        )
    function, tensors = spec.host_call
    with tf.device("CPU:0"), tf.control_dependencies([train_op]):
        rewritten = program_code(function, by_default=tf.distribute.has_strategy())
        result = rewritten(*tensors)
    if not isinstance(result, (tf.Tensor, tf.Operation)) and not hasattr(result, "op"):
        raise EstimatorTypeError(
            "PD422",
            "`host_call` return value must be Operation or Tensor",
            value=result,
            hint="return what optimizer.apply_gradients(...) returns",
        )
    return result


def _metrics(spec: IPUEstimatorSpec) -> Any:
    if (spec.eval_metric_ops is None) == (spec.eval_metrics is None):
        raise EstimatorValueError(
            "PD422",
            "EstimatorSpec cannot contain both eval_metric_ops and eval_metrics"
            if spec.eval_metrics is not None
            else "EstimatorSpec must contain either eval_metric_ops or eval_metrics",
        )
    if spec.eval_metrics is None:
        return spec.eval_metric_ops
    function, tensors = program_code(spec.eval_metrics[0]), spec.eval_metrics[1]
    with tf.device("CPU:0"):
        return function(**tensors) if isinstance(tensors, dict) else function(*tensors)


def _required(spec: IPUEstimatorSpec, name: str) -> Any:
    value = getattr(spec, name)
    if value is None:
        raise EstimatorValueError(
            "PD422", f"`{name}` is needed in the `IPUEstimatorSpec` of mode {spec.mode}"
        )
    return value


def _check_pair(name: str, pair: Any, containers: tuple[type, ...]) -> None:
    if pair is None:
        return
    if not isinstance(pair, tuple):
        raise EstimatorTypeError(
            "PD422", f"`{name}` must be a tuple", value=pair, accepted="(function, tensors)"
        )
    if len(pair) != 2:  # noqa: PLR2004 - a function and its tensors
        raise EstimatorValueError(
            "PD422", f"`{name}` must have two elements", value=pair, accepted="(function, tensors)"
        )
    function, tensors = pair
    if not callable(function):
        raise EstimatorTypeError(
            "PD422", f"the first element of `{name}` must be callable", value=function
        )
    if not isinstance(tensors, containers):
        raise EstimatorTypeError(
            "PD422",
            f"second element in `{name}` must be a "
            + " or ".join(kind.__name__ for kind in containers),
            value=tensors,
        )
