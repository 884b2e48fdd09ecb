"""Steps in which rows do not meet, nothing is exchanged, and all is put back: for measurements.

Dropout, noise and normalization over a batch are meant to be each replica's own. Inside
`quiet_layers` such layers are called as in evaluation. Models keep their flag of training, by which
they may choose their outputs.
"""

from __future__ import annotations

import inspect
import random
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow.compat.v2 as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import stateful_random_ops

from popdist_tf.versions import keras_is_3, optimizer_variables, tensorflow_variable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NAMES = ("Dropout", "Noise", "RNN", "Cell", "Attention", "BatchNormalization")


class ExchangeError(RuntimeError):
    """A step has called a collective operation, which other processes do not call now."""


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


class _NoExchange:
    """Horovod's library without its collective operations."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        """An attribute of the library, unless it starts an exchange."""
        if name.startswith("horovod_") and not name.endswith(("size", "rank", "included")):
            raise ExchangeError(name)
        return getattr(self._library, name)


@contextmanager
def without_exchange() -> Iterator[None]:
    """Makes collective operations of Horovod raise `ExchangeError` inside."""
    operations: Any = sys.modules.get("horovod.tensorflow.mpi_ops")
    if operations is None:
        yield
        return
    library = operations.MPI_LIB
    operations.MPI_LIB = _NoExchange(library)
    try:
        yield
    finally:
        operations.MPI_LIB = library


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
    state, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the program's
    # The program's seed, from which TensorFlow derives those of operations.
    eager: Any = context.context()
    seeds = getattr(eager, "_rng", None)
    of_seeds = None if seeds is None else seeds.getstate()
    try:
        yield
    finally:
        for component, value in zip(components, values, strict=True):
            component.assign(value)
        random.setstate(state)
        np.random.set_state(of_numpy)  # noqa: NPY002 - as above
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
