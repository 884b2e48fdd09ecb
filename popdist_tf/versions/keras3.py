"""Keras 3, which TensorFlow has from 2.16 on."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist_tf.patches import surround

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

UPDATE_METHOD = "apply"
NODES = "keras.src.ops.node"
LOSSES = "keras.src.losses.loss"

_BUILD = "_maybe_symbolic_build"
_FIRST = "_popdist_before_first_batch"
_FITS = "_popdist_begins_to_fit"


def optimizer_kinds() -> tuple[Any, ...]:
    """The base classes of Keras' optimizers."""
    return (tf.keras.optimizers.Optimizer,)


def build_optimizer(optimizer: Any, variables: Sequence[Any]) -> None:
    """Creates the slots of an optimizer, where they do not exist."""
    if hasattr(optimizer, "build"):  # one of TensorFlow 1 creates them when it is applied
        optimizer.build(list(variables))


def tensorflow_variable(variable: Any) -> Any:
    """The variable of TensorFlow inside one of Keras."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def correct_epoch_steps(corrected: Callable[[int], int]) -> None:
    """Makes Keras correct the steps that it infers for an epoch; those of the user are kept."""

    def count(known: Any, iterator: Any, *args: Any, **kwargs: Any) -> None:
        known(iterator, *args, **kwargs)
        if iterator._num_batches is not None:
            with iterator._distribute_strategy.scope():
                iterator._num_batches = corrected(iterator._num_batches)

    kind: Any = import_module("keras.src.backend.tensorflow.trainer").TFEpochIterator
    for method in ("__init__", "reset"):
        surround(kind, method, "replicas", count)


def support_loss_scaling() -> None:
    """Makes Keras scale losses under strategies that say they support it; it asks no strategy."""


def clip_sums_where(reduces: Callable[[], bool]) -> None:
    """Makes Keras clip sums of gradients over replicas where ``reduces`` asks for it."""
    # It would clip each replica's own, whose sum is another update than that of one process with
    # all rows; and its loss scaling would ask the first replica alone whether they are finite.
    kind: Any = import_module("keras.src.backend.tensorflow.optimizer").TFOptimizer
    clip = kind._clip_gradients

    def clip_later(clipped: Any, self: Any, grads: list[Any]) -> Any:
        return grads if reduces() else clipped(self, grads)

    def sum_and_clip(
        updated: Any, self: Any, grads: Any, trainable_variables: Any, learning_rate: Any
    ) -> None:
        if not reduces():
            updated(self, grads, trainable_variables, learning_rate)
            return
        held = [tensorflow_variable(variable) for variable in trainable_variables]
        sums = self._all_reduce_sum_gradients(list(zip(grads, held, strict=True)))
        both = list(zip(clip(self, [total for total, _ in sums]), held, strict=True))
        tf.__internal__.distribute.interim.maybe_merge_call(
            self._distributed_tf_update_step, self._distribution_strategy, both, learning_rate
        )

    def check_all(finite: Any, self: Any, grads: Any) -> Any:
        own = finite(self, grads)
        context = tf.distribute.get_replica_context()
        if context is None or not reduces():
            return own
        other = tf.cast(tf.logical_not(own), tf.float32)
        return tf.equal(context.all_reduce(tf.distribute.ReduceOp.SUM, other), 0)

    surround(kind, "_clip_gradients", "sums", clip_later)
    surround(kind, "_backend_update_step", "sums", sum_and_clip)
    surround(tf.keras.mixed_precision.LossScaleOptimizer, "check_finite", "sums", check_all)


def before_first_batch(check: Callable[[Any, str], None]) -> None:
    """Has Keras call a function before it takes a batch to build a model from."""
    model: Any = tf.keras.Model
    owner: Any = next((one for one in model.__mro__ if _BUILD in vars(one)), None)
    if owner is None:
        return
    # The iterator of `fit` is the first that is built from after `fit` begins.
    surround(owner, "fit", "begins", _noted_fit)
    surround(owner, _BUILD, "begins", _checked_build)
    setattr(owner, _FIRST, staticmethod(check))


def _noted_fit(known: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    vars(model)[_FITS] = True
    try:
        return known(model, *args, **kwargs)
    finally:
        vars(model).pop(_FITS, None)


def _checked_build(known: Any, model: Any, iterator: Any = None, data_batch: Any = None) -> Any:
    if iterator is not None:
        fits = vars(model).pop(_FITS, False)
        steps = f"an epoch of {iterator.num_batches} steps"
        getattr(model, _FIRST)(model, steps if fits else "evaluate of a model")
    return known(model, iterator, data_batch)


def gradients_and_variables(
    given: Iterable[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], list[Any], bool]:
    """Gradients, variables, and whether they are summed already, of an update's arguments."""
    second = args[0] if args else kwargs.get("trainable_variables")
    reduced = kwargs.get("skip_gradients_aggregation", False) or not kwargs.get(
        "experimental_aggregate_gradients", True
    )
    return list(given), list(second or ()), reduced


def support_backups(callbacks: Sequence[Any], strategy: Any) -> None:
    """Lets ``BackupAndRestore`` work under a strategy of ours; it asks no strategy."""
    del callbacks, strategy


def input_shapes(model: Any) -> Any:
    """The shapes that a model with a ``call`` of its own was built for; they are not known."""
    del model


def calls_of_function(function: Callable[[Any], Any], shapes: Any) -> dict[int, list[Any]]:
    """The calls of layers in a function, by their distance from its results; they are not known."""
    del function, shapes
    return {}


def strategy_of(model: Any) -> Any:
    """The strategy in whose scope a model was created, or None."""
    return getattr(model, "_distribute_strategy", None)
