"""Records what TensorFlow trains, where ``poprun --compare-alone`` compares a job with its program.

Nothing of this module runs in a training that is not compared. Updates of the optimizers of Keras
and of TensorFlow 1 are recorded, in functions, in graphs and outside of them, the batches of
``fit`` and ``strategy.run``, and the elements of data sets.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow.compat.v2 as tf
from tensorflow.python.client.session import BaseSession
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.distribute.distribute_lib import StrategyBase
from tensorflow.python.eager import def_function
from tensorflow.python.ops import nn_ops

from popdist.recording import Recording, recording
from popdist_tf.checks.quiet import quiet_layers
from popdist_tf.patches import surround
from popdist_tf.replay import Replay
from popdist_tf.versions import (
    UPDATE_METHOD,
    optimizer_kinds,
    tensorflow_variable,
    update_arguments,
    variable_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MARK = "_popdist_records"
_PURPOSE = "recording"
_KERAS_BATCH = 32


class Recorder:
    """Records the updates of this process.

    Args:
        recording: Where to.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._is_over = False
        self._quiet = ExitStack()
        self._replica: Any = None  # the one whose updates are recorded

    def start(self) -> None:
        """Wraps what updates weights, takes batches and runs steps, and switches draws off."""
        if not surround(BaseSession, "run", _PURPOSE, self._run):
            return
        for kind in (*optimizer_kinds(), tf.compat.v1.train.Optimizer):
            method = UPDATE_METHOD if hasattr(kind, UPDATE_METHOD) else "apply_gradients"
            owner = next((one for one in kind.__mro__ if method in vars(one)), None)
            if owner is not None:
                surround(owner, method, _PURPOSE, self._update)
        surround(def_function.Function, "__call__", _PURPOSE, self._run)
        surround(StrategyBase, "run", _PURPOSE, self._strategy_run)
        surround(tf.keras.Model, "fit", _PURPOSE, self._fit)
        self._quiet.enter_context(quiet_layers())
        nn_ops._dropout = lambda x, *_, **__: tf.identity(x)  # noqa: SLF001 - of all kinds of dropout
        replay = Replay(self._recording)
        surround(iterator_ops.OwnedIterator, "_next_internal", _PURPOSE, replay.next_of)
        surround(tf.compat.v1.data.Iterator, "get_next", _PURPOSE, replay.next_of)
        if self._recording.scale > 1:
            surround(tf.data.Dataset, "batch", _PURPOSE, self._batch)

    def _run(self, known: Any, *args: Any, **kwargs: Any) -> Any:
        if self._is_over:
            raise SystemExit(0)
        return known(*args, **kwargs)

    def _fit(self, known: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(model, "jit_compile", False):
            model.jit_compile = False  # XLA calls no Python
        if not hasattr(model, _MARK):
            setattr(model, _MARK, True)
            model.train_step = self._noting(model.train_step)
        call = inspect.signature(known).bind(model, *args, **kwargs)
        batch = call.arguments.get("batch_size")
        if batch is not None or call.arguments.get("y") is not None:
            call.arguments["batch_size"] = (batch or _KERAS_BATCH) * self._recording.scale
        return known(*call.args, **call.kwargs)

    def _batch(self, known: Any, data: Any, batch_size: Any, *args: Any, **kwargs: Any) -> Any:
        return known(data, batch_size * self._recording.scale, *args, **kwargs)

    def _strategy_run(self, known: Any, strategy: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        return known(strategy, self._noting(fn), *args, **kwargs)

    def _noting(self, step: Callable[..., Any]) -> Callable[..., Any]:
        if hasattr(step, _MARK):
            return step

        @functools.wraps(step)
        def noted(*args: Any, **kwargs: Any) -> Any:
            self._note(tf.nest.flatten((args, kwargs)))
            return step(*args, **kwargs)

        setattr(noted, _MARK, True)
        return noted

    def _note(self, leaves: Sequence[Any]) -> None:
        tensors = [one for one in leaves if isinstance(one, tf.Tensor)]
        numbers = [one for one in tensors if one.dtype.is_floating or one.dtype.is_integer]

        def take(*arrays: Any) -> None:
            for index, array in enumerate(arrays):
                self._recording.note_input(f"input {index}", array)

        if numbers:
            _call(take, numbers)

    def _update(self, known: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        given, others, kwargs = update_arguments(args, kwargs)
        context = tf.distribute.get_replica_context()
        replica = getattr(context, "_replica_id_in_sync_group", None)
        if self._replica is None:
            self._replica = replica
        pairs = list(given)
        second = others[0] if others else kwargs.get("trainable_variables")
        if pairs and isinstance(pairs[0], tuple):
            variables = [pair[1] for pair in pairs]
        else:
            variables = list(second or getattr(optimizer, "_trainable_variables", ()) or ())
        if replica != self._replica or not variables:
            return known(optimizer, pairs, *others, **kwargs)
        model = self._recording.model(optimizer, type(optimizer).__name__)
        names = [*map(variable_name, variables)]

        def before(*values: Any) -> None:
            if not self._is_over:
                self._recording.before_update(model, zip(names, values, strict=True))

        def after(*values: Any) -> None:
            try:
                if not self._is_over:
                    self._recording.after_update(model, zip(names, values, strict=True))
            except SystemExit:  # the next step ends the program
                self._is_over = True

        with tf.control_dependencies([_call(before, _values(variables))]):
            result = known(optimizer, pairs, *others, **kwargs)
        with tf.control_dependencies([result] if isinstance(result, tf.Operation) else []):
            done = _call(after, _values(variables))
        # In a graph of TensorFlow 1, what nothing depends on does not run.
        return tf.group(result, done) if isinstance(result, tf.Operation) else result


def start() -> None:
    """Records this process, if it is one of a comparison; safe to call again."""
    found = recording()
    if found is not None:
        Recorder(found).start()


def _values(variables: Sequence[Any]) -> list[Any]:
    return [tf.convert_to_tensor(tensorflow_variable(one)) for one in variables]


def _call(function: Callable[..., None], tensors: Sequence[Any]) -> Any:
    """Calls a function with arrays, where and when the code that is built runs."""

    def called(*arrays: Any) -> Any:
        function(*arrays)
        return np.int64(0)

    with tf.device("CPU:0"):
        return tf.numpy_function(called, tensors, tf.int64)
