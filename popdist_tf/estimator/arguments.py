"""What an `IPUEstimator` is created and trained with, checked."""

from __future__ import annotations

from typing import Any

from popdist_tf.errors import EstimatorTypeError, EstimatorUnsupportedError, EstimatorValueError


def check_listeners(listeners: Any, eval_distribution: Any) -> None:
    """Refuses to train where only the chief would evaluate in between, in a way that needs all.

    Args:
        listeners: What is told of checkpoints.
        eval_distribution: The strategy of evaluations, or None.

    Raises:
        EstimatorUnsupportedError: The evaluation would wait for workers that train.
    """
    # `train_and_evaluate` evaluates in a listener of the chief's, with its own class for it.
    evaluates = any("ForEvaluate" in type(one).__name__ for one in listeners or ())
    if evaluates and getattr(eval_distribution, "num_replicas_in_sync", 1) > 1:
        raise EstimatorUnsupportedError(
            "PD423",
            "the chief evaluates alone during train_and_evaluate, and would wait forever for the "
            "other workers, which train",
            value="eval_distribute",
            accepted="RunConfig(train_distribute=...) alone with train_and_evaluate",
            hint="leave eval_distribute away; or call train and evaluate in turns",
        )


def check_params(params: Any, sizes: list[int | None]) -> None:
    """Checks the user's parameters.

    Args:
        params: The parameters, or None.
        sizes: The batch sizes that were given as arguments, or None for each.

    Raises:
        EstimatorTypeError: ``params`` is no dict.
        EstimatorValueError: A reserved key, or a batch size that is given twice.
    """
    if params is not None and not isinstance(params, dict):
        raise EstimatorTypeError("PD421", "`params` must be a dict", value=params)
    if params and "input_fn" in params:
        raise EstimatorValueError("PD421", "the key 'input_fn' of `params` is reserved")
    if params and "batch_size" in params and any(size is not None for size in sizes):
        raise EstimatorValueError(
            "PD421",
            "the batch size is given twice: in params['batch_size'] and as an argument",
            value=params["batch_size"],
            accepted="one of the two",
        )


def check_combination(config: Any) -> None:
    """Checks the settings of a run against each other.

    Args:
        config: A `RunConfig`.

    Raises:
        EstimatorUnsupportedError: They ask for what no strategy can do here.
    """
    ipu = config.ipu_run_config
    if config.train_distribute is not None and ipu.iterations_per_loop > 1:
        raise EstimatorUnsupportedError(
            "PD423",
            "a distribution strategy needs a call into TensorFlow for each update",
            value=f"iterations_per_loop={ipu.iterations_per_loop}",
            accepted="iterations_per_loop=1 with train_distribute",
        )
    if ipu.num_replicas > 1 and config.train_distribute is None:
        raise EstimatorUnsupportedError(
            "PD423",
            "several replicas in one process need a strategy that runs them",
            value=f"num_replicas={ipu.num_replicas}",
            hint="RunConfig(train_distribute=PopDistStrategy()), started with poprun "
            f"--num-replicas {ipu.num_replicas}",
        )
