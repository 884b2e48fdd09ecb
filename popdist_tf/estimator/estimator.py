"""`IPUEstimator`: TensorFlow's Estimator for model functions that were written for IPUs.

The checks of its arguments are here too.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist_tf.collectives.agreement import agree
from popdist_tf.errors import EstimatorTypeError, EstimatorUnsupportedError, EstimatorValueError
from popdist_tf.estimator.checkpoints import (
    SaveTogether,
    StartFromFirstRank,
    evaluates_after_saving,
    evaluations_of_chief,
    reduces_when_read,
    share_checkpoint,
    shared_model_dir,
)
from popdist_tf.estimator.run_config import RunConfig
from popdist_tf.estimator.spec import to_estimator_spec
from popdist_tf.estimator.updates import (
    CountEvaluated,
    RankContext,
    StopAfterUpdates,
    StopTogether,
    counted,
    repeated,
    untouched_global_step,
)
from popdist_tf.estimator.workers import CompareWorkers
from popdist_tf.estimator_api import estimator_api
from popdist_tf.loops.queues import check_prefetch_depth
from popdist_tf.loops.repeat import resource_variables
from popdist_tf.program_code import program_code
from popdist_tf.progress import reporting_hooks
from popdist_tf.state_updates import StateUpdates
from popdist_tf.together.reductions import collectives_of, is_first_replica
from popdist_tf.together.uneven_data import AnnounceInSession, is_endless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# Checks of the arguments that an `IPUEstimator` is created and trained with.


def check_listeners(listeners: Any, eval_distribution: Any) -> None:
    """Refuses listeners with which the chief alone would run an evaluation that needs all workers.

    Raises:
        EstimatorUnsupportedError: The evaluation would wait for workers that train.
    """
    evaluates = any(map(evaluates_after_saving, listeners or ()))
    if evaluates and getattr(eval_distribution, "num_replicas_in_sync", 1) > 1:
        raise EstimatorUnsupportedError(
            "PD423",
            "the chief evaluates alone during train_and_evaluate, and would wait forever for the "
            "other workers, which train",
            value="eval_distribute",
            accepted="RunConfig(train_distribute=...) alone with train_and_evaluate",
            hint="remove eval_distribute, or call train and evaluate alternately",
        )


def check_params(params: Any, sizes: list[int | None]) -> None:
    """Checks the user's ``params``; ``sizes`` are the batch sizes that were given as arguments.

    Raises:
        EstimatorTypeError: ``params`` is not a dict.
        EstimatorValueError: A reserved key, or a batch size that is given twice.
    """
    if params is not None and not isinstance(params, dict):
        raise EstimatorTypeError("PD421", "`params` must be a dict", value=params)
    if params and "input_fn" in params:
        raise EstimatorValueError("PD421", "the key 'input_fn' of `params` is reserved")
    if params and "batch_size" in params and any(size is not None for size in sizes):
        raise EstimatorValueError(
            "PD421",
            "batch_size cannot be passed in params when a batch size argument is passed",
            value=params["batch_size"],
            accepted="one of the two",
        )


def check_combination(config: Any) -> None:
    """Checks the settings of a `RunConfig` against each other.

    Raises:
        EstimatorUnsupportedError: No strategy supports the combination.
    """
    ipu = config.ipu_run_config
    if config.train_distribute is not None and ipu.iterations_per_loop > 1:
        raise EstimatorUnsupportedError(
            "PD423",
            f"iterations_per_loop > 1 (got {ipu.iterations_per_loop}) not supported with "
            "distribution: a strategy needs a call into TensorFlow for each update",
            accepted="iterations_per_loop=1 with train_distribute",
        )
    check_replicas(config)


def check_replicas(config: Any) -> None:
    """Checks that a strategy runs the replicas of a process.

    Raises:
        EstimatorUnsupportedError: Several replicas without a strategy.
    """
    ipu = config.ipu_run_config
    if ipu.num_replicas > 1 and config.train_distribute is None:
        raise EstimatorUnsupportedError(
            "PD423",
            "several replicas in one process need a strategy that runs them",
            value=f"num_replicas={ipu.num_replicas}",
            hint="RunConfig(train_distribute=PopDistStrategy()), started with poprun "
            f"--num-replicas {ipu.num_replicas}",
        )


def local_batch_size(name: str, global_size: int, workers: int, replicas: int) -> int:
    """Samples of one replica; ``name`` is the argument that set the global batch size.

    Raises:
        EstimatorValueError: The batch cannot be divided equally.
    """
    parts = workers * replicas
    if global_size < parts or global_size % parts:
        raise EstimatorValueError(
            "PD421",
            f"{name} cannot be divided over the replicas",
            value=global_size,
            accepted=f"a multiple of {parts} ({workers} workers with {replicas} replicas each)",
        )
    return global_size // parts


def accepts(function: Callable[..., Any], name: str) -> bool:
    """Whether a parameter of a function has that name, or the function takes any keyword."""
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == name or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


_MODES = estimator_api().ModeKeys


class IPUEstimator(estimator_api().Estimator):  # type: ignore[misc]
    """Trains, evaluates and predicts with a model function.

    Args:
        model_fn: Builds the model for a mode; returns an `IPUEstimatorSpec` or a
            `tf.estimator.EstimatorSpec`.
        model_dir: Folder of checkpoints and summaries; None for a temporary one, the same on all
            ranks of a Horovod job.
        config: A `RunConfig`; None for the defaults.
        params: Handed to ``model_fn`` and ``input_fn`` where they take ``params``.
        warm_start_from: As for `tf.estimator.Estimator`.
        train_batch_size: Samples of an update over all replicas; ``params["batch_size"]`` is each
            replica's share.
        eval_batch_size: The same for evaluation.
        predict_batch_size: The same for prediction.

    Raises:
        EstimatorValueError: ``config`` is not a `RunConfig`, or batch sizes are given twice.
        EstimatorTypeError: ``params`` is not a dict.
        EstimatorUnsupportedError: Several local replicas without a strategy that runs them, or a
            loop of several iterations under a strategy.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | None = None,
        config: Any = None,
        params: dict[str, Any] | None = None,
        warm_start_from: Any = None,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
    ) -> None:
        config = config or RunConfig()
        if not isinstance(config, RunConfig):
            raise EstimatorValueError(
                "PD421",
                "`config` must be an IPU RunConfig",
                value=config,
                accepted="popdist_tf.ipu.ipu_run_config.RunConfig(...)",
            )
        self._batch_sizes = {
            _MODES.TRAIN: ("train_batch_size", train_batch_size),
            _MODES.EVAL: ("eval_batch_size", eval_batch_size),
            _MODES.PREDICT: ("predict_batch_size", predict_batch_size),
        }
        check_params(params, [size for _, size in self._batch_sizes.values()])
        self._check_config(config)
        collectives = collectives_of(config.train_distribute)
        if model_dir is None and config.model_dir is None and collectives is not None:
            model_dir = shared_model_dir(collectives)
        self._announced: AnnounceInSession | None = None
        self._compared: CompareWorkers | None = None
        super().__init__(model_fn, model_dir, config, params, warm_start_from)

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Any = None,
        hooks: Any = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
        num_predictions: int | None = None,
    ) -> Iterator[Any]:
        """Yields predictions.

        Args:
            input_fn: Returns the data set of features.
            predict_keys: Which predictions, where there are several.
            hooks: Hooks of the session.
            checkpoint_path: A certain checkpoint; None for the latest.
            yield_single_examples: Whether batches are taken apart.
            num_predictions: Ends after so many; None for all.

        Yields:
            A prediction for each sample, or for each batch.
        """
        found = super().predict(
            input_fn, predict_keys, hooks, checkpoint_path, yield_single_examples
        )
        yield from islice(found, num_predictions)

    # TensorFlow refuses subclasses that override the methods below, unless they override this
    # check as well.
    def _assert_members_are_not_overridden(self) -> None: ...

    def _check_config(self, config: Any) -> None:
        check_combination(config)

    @property
    def _iterations(self) -> int:
        return int(self._config.ipu_run_config.iterations_per_loop)  # `config` would copy it all

    # Arguments and results of the user's functions.

    def _call_input_fn(self, input_fn: Any, mode: str, input_context: Any = None) -> Any:
        name, size = self._batch_sizes[mode]
        if size is not None and not accepts(input_fn, "params"):
            raise EstimatorValueError(
                "PD422",
                f"{name} is handed to input_fn as params['batch_size'], and input_fn takes no "
                "`params`",
                hint="def input_fn(params): ... params['batch_size'] ...",
            )
        with self._batch_size(mode):
            result = super()._call_input_fn(input_fn, mode, input_context)
        if not isinstance(result, (tf.data.Dataset, tf.compat.v1.data.Dataset)):
            raise EstimatorValueError("PD422", "input_fn must return Dataset", value=result)
        check_prefetch_depth(self._config.ipu_run_config.prefetch_depth)
        collectives = collectives_of(self._train_distribution)
        self._announced = None
        if mode == _MODES.TRAIN and collectives is not None and collectives.horovod is not None:
            self._announced = None if is_endless(result) else AnnounceInSession(collectives)
        return result

    def _get_iterator_from_input_fn(
        self, input_fn: Any, mode: str, distribution: Any = None
    ) -> tuple[Any, list[Any]]:
        if distribution is not None:
            found: tuple[Any, list[Any]] = super()._get_iterator_from_input_fn(
                input_fn, mode, distribution
            )
            return found
        # TensorFlow's own method knows data sets of TensorFlow 1 alone.
        data = self._call_input_fn(input_fn, mode)
        iterator = tf.compat.v1.data.make_initializable_iterator(data)
        return iterator, [_StartOfData(iterator)]

    def _get_features_from_input_fn(self, input_fn: Any, mode: str) -> tuple[Any, list[Any]]:
        element, hooks = self._get_iterator_from_input_fn(input_fn, mode)
        return element.get_next(), hooks

    def _features_of_predictions(self, element: Any) -> tuple[Any, Any]:
        """The features of an element of a prediction's data, without labels."""
        return element[0] if isinstance(element, tuple) else element, None

    def _call_model_fn(self, features: Any, labels: Any, mode: str, config: Any) -> Any:
        if mode == _MODES.PREDICT:
            features, labels = self._features_of_predictions(features)
        if labels is not None and not accepts(self._model_fn, "labels"):
            raise EstimatorValueError(
                "PD422", "model_fn does not take labels, but input_fn returns labels."
            )
        values = {"labels": labels, "mode": mode, "config": config}
        with self._batch_size(mode):
            values["params"] = self.params
        given = {name: v for name, v in values.items() if accepts(self._model_fn, name)}
        if mode == _MODES.TRAIN and self._announced is not None and is_first_replica():
            features = self._announced.before_step(features)
        if mode == _MODES.TRAIN and self._train_distribution is not None and is_first_replica():
            self._compared = CompareWorkers(self._train_distribution, (features, labels))
        with untouched_global_step(), StateUpdates() as updates:
            # TensorFlow's strategies rewrite model functions; a plain Estimator does not.
            is_rewritten = mode == _MODES.TRAIN and self._train_distribution is not None
            model_fn = program_code(self._model_fn, by_default=is_rewritten)
            with resource_variables():
                spec = model_fn(features=features, **given)
            spec = to_estimator_spec(spec, self._iterations)
        if mode == _MODES.TRAIN:
            spec = spec._replace(train_op=tf.group(spec.train_op, *updates.operations))
        return spec

    @contextmanager
    def _batch_size(self, mode: str) -> Iterator[None]:
        name, size = self._batch_sizes[mode]
        if size is None:
            yield
            return
        strategy = {_MODES.TRAIN: self._train_distribution, _MODES.EVAL: self._eval_distribution}
        workers = getattr(strategy.get(mode), "num_replicas_in_sync", 1)
        replicas = self.config.ipu_run_config.num_replicas
        self._params["batch_size"] = local_batch_size(name, size, workers, replicas)
        try:
            yield
        finally:
            del self._params["batch_size"]

    # Training.

    def _convert_train_steps_to_hooks(self, steps: int | None, max_steps: int | None) -> Any:
        self._check_steps(steps)  # and not `max_steps`: the last loop may pass it, as published
        collectives = collectives_of(self._train_distribution)
        if collectives is not None:
            agree(collectives, f"a training with steps={steps} and max_steps={max_steps}")
        if self._iterations > 1 and (steps or max_steps):
            return [StopAfterUpdates(steps, max_steps)]
        return super()._convert_train_steps_to_hooks(steps, max_steps)

    def _convert_eval_steps_to_hooks(self, steps: int | None) -> Any:
        self._check_steps(steps)
        return [*super()._convert_eval_steps_to_hooks(steps), CountEvaluated(self._iterations)]

    def _check_steps(self, steps: int | None) -> None:
        if steps is not None and steps % self._iterations:
            raise EstimatorValueError(
                "PD421",
                f"steps ({steps}) must be a multiple of iterations_per_loop ({self._iterations})",
                value=steps,
                accepted=f"a multiple of {self._iterations}",
            )

    def _train_model_default(self, input_fn: Any, hooks: Any, saving_listeners: Any) -> Any:
        if self._iterations == 1:
            return super()._train_model_default(input_fn, hooks, saving_listeners)
        with tf.Graph().as_default() as graph, graph.device(self._device_fn):
            tf.compat.v1.random.set_random_seed(self.config.tf_random_seed)
            global_step = self._create_and_assert_global_step(graph)
            iterator, input_hooks = self._get_iterator_from_input_fn(input_fn, _MODES.TRAIN)
            specs = []

            def update() -> tuple[Any, Any]:
                element = iterator.get_next()
                features, labels = element if isinstance(element, tuple) else (element, None)
                specs.append(self._call_model_fn(features, labels, _MODES.TRAIN, self.config))
                return specs[-1].loss, specs[-1].train_op

            loss, train_op = repeated(self._iterations, update)
            # A loop's tensors cannot be read outside of the loop, so their summaries cannot either.
            graph.get_collection_ref(tf.compat.v1.GraphKeys.SUMMARIES).clear()
            spec = specs[-1]._replace(loss=loss, train_op=train_op)
            return self._train_with_estimator_spec(
                spec, list(input_hooks), hooks, global_step, saving_listeners
            )

    def _train_model_distributed(self, input_fn: Any, hooks: Any, saving_listeners: Any) -> Any:
        strategy = self._train_distribution
        collectives = collectives_of(strategy)
        if collectives is None or collectives.horovod is None:
            return super()._train_model_distributed(input_fn, hooks, saving_listeners)
        share_checkpoint(collectives, self.model_dir)
        with RankContext(strategy, collectives.rank, self.config.session_config):
            return super()._train_model_distributed(
                input_fn, [StartFromFirstRank(collectives), *hooks], saving_listeners
            )

    def _train_with_estimator_spec(
        self,
        estimator_spec: Any,
        worker_hooks: Any,
        hooks: Any,
        global_step_tensor: Any,
        saving_listeners: Any,
    ) -> Any:
        train_op = counted(estimator_spec.train_op, global_step_tensor, self._iterations)
        if getattr(self._train_distribution, "num_replicas_in_sync", 1) > 1:
            check_listeners(saving_listeners, self._eval_distribution)
            if self._compared is not None:
                train_op = self._compared.after_update(train_op)
            worker_hooks.extend(self._hooks_of_workers(estimator_spec.scaffold))
            own = estimator_spec.training_hooks
            of_chief = estimator_spec.training_chief_hooks
            together = StopTogether(self._train_distribution, [*hooks, *own, *of_chief])
            estimator_spec = estimator_spec._replace(training_hooks=(*own, together))
        worker_hooks.extend(reporting_hooks(self._iterations))
        estimator_spec = estimator_spec._replace(train_op=train_op)
        collectives = collectives_of(self._train_distribution)
        naming = nullcontext() if self._compared is None else self._compared.naming()
        with naming, evaluations_of_chief(collectives, saving_listeners) as own:
            return super()._train_with_estimator_spec(
                estimator_spec, worker_hooks, hooks, global_step_tensor, own
            )

    def _hooks_of_workers(self, scaffold: Any) -> Iterator[Any]:
        strategy, config = self._train_distribution, self.config
        if self._compared is not None:
            yield self._compared
        if self._announced is not None:
            yield self._announced
        if config.save_checkpoints_secs or config.save_checkpoints_steps:
            yield SaveTogether(
                strategy,
                self.model_dir,
                save_steps=config.save_checkpoints_steps,
                save_secs=config.save_checkpoints_secs,
                scaffold=scaffold,
                on_all=any(map(reduces_when_read, tf.compat.v1.global_variables())),
            )


class _StartOfData(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Starts the data with the session.

    Args:
        iterator: Of the data.
    """

    def __init__(self, iterator: Any) -> None:
        self._initializer = iterator.initializer

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Starts the data."""
        del coord
        session.run(self._initializer)
