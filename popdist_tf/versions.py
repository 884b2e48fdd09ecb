"""What differs between the versions of Keras that TensorFlow comes with: 2.15, and 3."""

from __future__ import annotations

import functools
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from popdist_tf.errors import EstimatorGoneError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_MARK = "_popdist_corrects_steps"
_CHECK = "_popdist_checks_before_training"
_COUNT = re.compile(r"_\d+(?=_|$)")


def keras_is_3() -> bool:
    """Whether ``tf.keras`` is Keras 3.

    Returns:
        False for Keras 2, which TensorFlow had up to 2.15 (and has with ``TF_USE_LEGACY_KERAS``).
    """
    # By what it can do: not all of these modules state a version.
    return hasattr(tf.keras.optimizers.Optimizer, "apply")


def update_method() -> str:
    """The method of optimizers that every update goes through, with gradients not yet clipped.

    Returns:
        Its name.
    """
    return "apply" if keras_is_3() else "apply_gradients"


def tensorflow_variable(variable: Any) -> Any:
    """The variable of TensorFlow inside one of Keras.

    Args:
        variable: A variable of Keras 3, or of TensorFlow.

    Returns:
        The variable of TensorFlow.
    """
    return variable.value if keras_is_3() and not isinstance(variable, tf.Variable) else variable


def variable_name(variable: Any) -> str:
    """What a variable is called, with its layer.

    Args:
        variable: A variable of Keras 3, or of TensorFlow.

    Returns:
        Its name.
    """
    return str(getattr(variable, "path", variable.name))


def describe(variables: Iterable[Any]) -> str:
    """Variables in words, the same on every instance.

    Numbers that Keras counts up in names (``dense_1``) differ as soon as one instance builds a
    model more than the others, and are left out.

    Args:
        variables: Variables of Keras or of TensorFlow.

    Returns:
        The last part of each name, and the shape.
    """
    names = (
        (_COUNT.sub("", variable_name(one).split("/")[-1]), tuple(one.shape)) for one in variables
    )
    return ", ".join(f"{name}{shape}" for name, shape in names)


def correct_epoch_steps(corrected: Callable[[int], int]) -> None:
    """Makes Keras correct the number of steps that it infers for an epoch; safe to call again.

    A number of steps that the user states is left alone.

    Args:
        corrected: From the number of batches in the data to the number of steps.
    """
    if keras_is_3():
        iterator: Any = import_module("keras.src.backend.tensorflow.trainer").TFEpochIterator
        if not hasattr(iterator, _MARK):
            for method in ("__init__", "reset"):
                setattr(iterator, method, _then_correct(getattr(iterator, method), corrected))
            setattr(iterator, _MARK, True)
        return
    handler: Any = import_module("keras.src.engine.data_adapter").DataHandler
    if not hasattr(handler, _MARK):
        handler._infer_steps = _corrected_answer(handler._infer_steps, corrected)
        setattr(handler, _MARK, True)


def before_training(check: Callable[[Any], None]) -> None:
    """Makes Keras call a function with each model that is about to be trained; safe to call again.

    Args:
        check: Called by ``fit`` and ``train_on_batch``; a later function replaces an earlier one.
    """
    model: Any = tf.keras.Model
    owner = next(one for one in model.__mro__ if "make_train_function" in vars(one))
    if not hasattr(owner, _CHECK):
        owner.make_train_function = _checked(owner.make_train_function)
    setattr(owner, _CHECK, staticmethod(check))


def _checked(method: Callable[..., Any]) -> Any:
    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        getattr(self, _CHECK)(self)
        return method(self, *args, **kwargs)

    return wrapped


def strategy_of(model: Any) -> Any:
    """The strategy in whose scope a model was created.

    Args:
        model: A model of Keras.

    Returns:
        The strategy; None for a model that was created outside of all scopes.
    """
    held = getattr(model, "_distribution_strategy", None)  # Keras 2
    return held or getattr(model, "_distribute_strategy", None)


def _then_correct(method: Callable[..., None], corrected: Callable[[int], int]) -> Any:
    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        method(self, *args, **kwargs)
        if self._num_batches is not None:
            with self._distribute_strategy.scope():
                self._num_batches = corrected(self._num_batches)

    return wrapped


def _corrected_answer(method: Callable[..., Any], corrected: Callable[[int], int]) -> Any:
    @functools.wraps(method)
    def wrapped(self: Any, steps: int | None, dataset: Any) -> Any:
        inferred = method(self, steps, dataset)
        return inferred if steps is not None or inferred is None else corrected(inferred)

    return wrapped


# TensorFlow's estimators, where this TensorFlow still has them.


def estimator_api() -> Any:
    """The module ``tf.estimator``.

    Returns:
        The module.

    Raises:
        EstimatorGoneError: This TensorFlow (2.16 and later) has no estimators.
    """
    try:
        return tf.compat.v1.estimator
    except AttributeError:
        raise EstimatorGoneError(
            "PD420",
            f"TensorFlow {tf.__version__} has no estimators: they ended with 2.15",
            accepted="tensorflow 2.15 and tensorflow-estimator 2.15, on Python 3.11 or before",
            hint="install the default set (constraints/default.txt), or train with Keras under "
            "PopDistStrategy, which works with every TensorFlow",
        ) from None
