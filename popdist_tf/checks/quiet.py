"""Steps in which rows do not meet, nothing is exchanged, and all is put back: for measurements.

Dropout, noise and normalization over a batch are meant to be each replica's own. Inside
`quiet_layers` such layers are called as in evaluation. Models keep their flag of training, by which
they may choose their outputs.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import stateful_random_ops

from popdist.checks import passes
from popdist_tf.versions import keras_is_3, optimizer_variables, tensorflow_variable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

_NAMES = ("Dropout", "Noise", "RNN", "Cell", "Attention", "BatchNormalization")


def _kinds() -> tuple[type, ...]:
    """Keras' layers that draw random numbers, or normalize over a batch, in training only."""
    return tuple(
        kind
        for name, kind in vars(tf.keras.layers).items()
        if isinstance(kind, type) and (name.startswith("Random") or name.endswith(_NAMES))
    )


@contextmanager
def quiet_layers() -> Iterator[None]:
    """Calls layers of dropout, noise and batch normalization as in evaluation."""
    kinds = _kinds()
    base: Any = tf.keras.layers.Layer
    owner: Any = next(kind for kind in base.__mro__ if "__call__" in vars(kind))
    known = owner.__call__

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Batch normalization of other packages is known by its statistics.
        is_quiet = isinstance(self, kinds) or hasattr(self, "moving_mean")
        if is_quiet and "training" in inspect.signature(self.call).parameters:
            args = tuple(value for value in args if not isinstance(value, bool))
            kwargs["training"] = False
        return known(self, *args, **kwargs)

    owner.__call__ = called
    try:
        yield
    finally:
        owner.__call__ = known


def without_exchange() -> AbstractContextManager[None]:
    """Makes collective operations of Horovod raise `ExchangeError` inside."""
    facts = ("size", "rank", "included")
    return passes.without_exchange(
        "horovod.tensorflow.mpi_ops",
        "MPI_LIB",
        lambda name: name.startswith("horovod_") and not name.endswith(facts),
    )


@contextmanager
def state_kept(model: Any, optimizers: Iterable[Any]) -> Iterator[None]:
    """Puts variables and random numbers back: what a step of a model can change.

    Args:
        model: Its weights, metrics and all that it holds.
        optimizers: Their slots, and the counts of their steps.
    """
    components = [
        component
        for variable in _variables(model, optimizers)
        for component in _components(variable)
    ]
    values = [component.read_value() for component in components]  # no copies
    # The program's seed, from which TensorFlow derives those of operations.
    eager: Any = context.context()
    seeds = getattr(eager, "_rng", None)
    of_seeds = None if seeds is None else seeds.getstate()
    try:
        with passes.random_states_kept():
            yield
    finally:
        for component, value in zip(components, values, strict=True):
            component.assign(value)
        if seeds is not None:
            seeds.setstate(of_seeds)


def _variables(model: Any, optimizers: Iterable[Any]) -> Iterator[Any]:
    yield from model.variables
    for metric in model.metrics:
        yield from metric.variables
    for optimizer in optimizers:
        yield from optimizer_variables(optimizer)
    if not keras_is_3():  # whose models have all of it among their variables
        kinds = (tf.Variable, tf.random.Generator)
        for held in model._flatten(predicate=lambda one: isinstance(one, kinds)):
            yield held if isinstance(held, tf.Variable) else held.state
    if stateful_random_ops.global_generator is not None:
        yield stateful_random_ops.global_generator.state


def _components(variable: Any) -> tuple[Any, ...]:
    """The variables of each local replica in one of a strategy."""
    held = tensorflow_variable(variable)
    return tuple(getattr(held, "values", None) or (held,))
