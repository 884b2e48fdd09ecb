"""The measurement of `popdist.checks.parts` in ``fit`` of Keras' models.

A model's ``train_step`` keeps the rows of its steps 8 and 64, and of its first step for epochs of
fewer steps. Then it runs again, eagerly, on all of these rows and on each half of them, and its
optimizers note gradients in place of applying them. So compiled losses are measured, and those that
a program's own ``train_step`` computes. Nothing is exchanged, and everything that the steps change
is put back.

Under the strategies gradients are summed, and Keras divides losses by the number of replicas. So
the whole runs on one replica of one, and each half on one replica of two. Their sum has to be the
gradient of the whole. Where an optimizer averages, it is the mean of the halves.

Some steps are not judged, and the log says why: those that draw random numbers of their own,
exchange something, take what is not rows, or raise.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow.compat.v2 as tf

from popdist.checks import is_enabled
from popdist.checks.parts import (
    CAUSE,
    DOUBLE,
    FIXES,
    HALVES,
    SINGLE,
    UPDATES,
    Finding,
    Products,
    judge,
)
from popdist.checks.passes import NotJudgedError
from popdist_tf.checks import PARTS, warn
from popdist_tf.checks.first_steps import in_one_operation
from popdist_tf.checks.quiet import quiet_layers, state_kept, without_exchange
from popdist_tf.checks.replicas import Replicas
from popdist_tf.hooks import add_callbacks, before_steps, before_training
from popdist_tf.replica_state import ReplicaState
from popdist_tf.together.reductions import Reduction, is_first_replica, optimizers_of
from popdist_tf.versions import (
    UPDATE_METHOD,
    gradients_and_variables,
    update_arguments,
    variable_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

logger = logging.getLogger("popdist.tf")

Gradients = dict[Any, tuple[Any, Any]]

_ROWS = "_popdist_rows_to_measure"
_TIMED = 6  # steps
_HALF = ("float16", "bfloat16")
_FIXES = FIXES.format(
    global_mean="popdist_tf.keras.global_mean(total, count)",
    gather="tf.distribute.get_replica_context().all_gather",
)
_DIVIDE = (
    "divide a mean by tf.distribute.get_strategy().num_replicas_in_sync in the step, as Keras' own "
    "losses do; with popdist_tf.keras.DistributedOptimizer, divide sums by the number of rows, or "
    "use op=popdist_tf.keras.Sum"
)


def probe_parts() -> None:
    """Makes ``fit`` of models measure the parts of their batches; safe to call again."""
    if is_enabled(PARTS):
        before_training("parts", _keep_rows)
        add_callbacks("parts", _callbacks)


class _Rows:
    """The rows of a model's step, kept by the step where they are wanted."""

    def __init__(self, model: Any) -> None:
        self.step = before_steps(model, self.note)  # without this
        self.updates = 0
        self.last: Any = None  # that were taken
        self._wanted: ReplicaState | None = None
        self._is_wanted = False
        self._kept: Sequence[Any] | None = None
        self._structure: Any = None

    def want(self, *, wanted: bool) -> None:
        """Makes the next steps keep their rows, or no longer."""
        if wanted != self._is_wanted:
            self._is_wanted = wanted
            self._variable().assign(wanted)

    def take(self) -> Any:
        """The rows that were kept last, in the structure of the step; None for none."""
        kept, self._kept = self._kept, None
        if kept is None:
            return None
        self.last = tf.nest.pack_sequence_as(self._structure, kept)
        return self.last

    def note(self, data: Any) -> None:
        """Keeps the rows of a step that is being built or run, where they are wanted."""
        if not is_first_replica():
            return
        flat = tf.nest.flatten(data)
        places = [number for number, one in enumerate(flat) if isinstance(one, tf.Tensor)]
        tensors, self._structure = [flat[number] for number in places], data

        def keep(*values: Any) -> Any:
            kept = list(flat)
            for number, value in zip(places, values, strict=True):
                kept[number] = np.array(value)  # the step's memory is used again
            self._kept = kept
            return True

        if tf.executing_eagerly():
            if self._is_wanted:
                keep(*(tensor.numpy() for tensor in tensors))
            return
        with tf.device("CPU:0"):
            in_one_operation(
                tf.cond(
                    self._variable(),
                    lambda: tf.numpy_function(keep, tensors, tf.bool),
                    lambda: tf.constant(value=True),
                )
            )

    def _variable(self) -> Any:
        if self._wanted is None:
            with tf.device("CPU:0"):
                self._wanted = ReplicaState(lambda: tf.constant(self._is_wanted), "is_wanted")
        return self._wanted


def _keep_rows(model: Any) -> None:
    if not hasattr(model, _ROWS) and Reduction(model).is_needed:
        setattr(model, _ROWS, _Rows(model))


def _callbacks(model: Any, fit: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    del fit
    needed = bool(optimizers_of(model)) and Reduction(model).is_needed
    return ([PartsProbe()], []) if needed else ([], [])


class PartsProbe(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Warns once of a model whose replicas cannot compute its loss in parts.

    Rows of the first step are measured at the end of its epoch: Keras compares the time that
    callbacks need in the first six steps with that of the steps.
    """

    _supports_tf_logs = True  # else Keras copies the loss to the host in every step

    def __init__(self) -> None:
        super().__init__()
        self._begin = 0
        self._steps = 1  # of an execution

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Makes the step keep its rows, if it is one of those that are measured."""
        del logs
        self._begin = batch
        # `fit` makes its function before.
        rows = getattr(self.model, _ROWS, None)
        if rows is not None:
            end = rows.updates + self._steps
            rows.want(wanted=any(rows.updates < one <= end for one in UPDATES))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Measures the rows that a later step has kept."""
        del logs
        rows = getattr(self.model, _ROWS, None)
        if rows is not None:
            self._steps = batch - self._begin + 1
            rows.updates += self._steps
            if rows.updates > _TIMED:
                self._measure(rows)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Measures the rows of the first step, if no later one has been measured."""
        del epoch, logs
        rows = getattr(self.model, _ROWS, None)
        if rows is not None:
            self._measure(rows)

    def _measure(self, rows: _Rows) -> None:
        kept = rows.take()
        if kept is None:
            return
        reduction = Reduction(self.model)
        try:
            finding = _measured(self.model, rows.step, kept, reduction)
        except Exception as error:  # noqa: BLE001 - anything that a step may raise for other rows
            logger.info("parts of a batch were not compared: %s: %s", type(error).__name__, error)
            return
        if finding is None:
            return
        rows.updates = max(UPDATES)  # named once
        text = f"{CAUSE} ({_seen(finding, reduction)}). "
        text += f"To fix it: {_DIVIDE if finding.factor is not None else _FIXES}."
        if reduction.rank == 0:
            warn(PARTS, text, "Where this is meant")
        else:
            logger.info("[PD431] %s", text)


def _seen(finding: Finding, reduction: Reduction) -> str:
    if finding.factor is None or reduction.averages:
        return finding.seen
    return f"the whole is {finding.factor:.4g} times the sum of the halves"


def counts_rows_alike(model: Any) -> bool:
    """Whether gradients of a model depend on how rows are divided into batches of other sizes.

    Sums do not, nor does a step that divides by a global batch size of the program.

    Args:
        model: A model of Keras that reduces over the instances.

    Returns:
        True where it has not been measured.
    """
    rows = getattr(model, _ROWS, None)
    if rows is None or rows.last is None:
        return True
    try:
        finding = _measured(model, rows.step, rows.last, Reduction(model), shares=(1, 3))
    except Exception as error:  # noqa: BLE001 - as in `PartsProbe`
        logger.info("sizes of batches were not compared: %s: %s", type(error).__name__, error)
        return True
    return finding is not None and finding.factor is None


def _measured(
    model: Any,
    step: Callable[[Any], Any],
    kept: Any,
    reduction: Reduction,
    shares: tuple[int, int] = (1, 1),
) -> Finding | None:
    """Compares two parts of some rows with the whole.

    Args:
        model: The model.
        step: Its ``train_step``.
        kept: The rows.
        reduction: How gradients are combined.
        shares: The sizes of the parts, in proportion.

    Raises:
        NotJudgedError: Gradients depend on random numbers or are not exact, or rows are too few.
    """
    if any(layer.compute_dtype in _HALF for layer in model._flatten_layers()):
        raise NotJudgedError("the model computes in half precision")
    flat = tf.nest.flatten(kept)
    first, second = (_number_of_rows(flat) // sum(shares) * share for share in shares)
    if not first:
        raise NotJudgedError("a batch has too few rows")
    replicas = Replicas(reduction.strategy)
    # Gradients that a step has summed itself are those of both halves.
    of_sums = 1.0 if reduction.averages or reduction.strategy is None else 1 / HALVES
    optimizers = optimizers_of(model)

    def run(start: int, size: int, weight: float) -> Gradients:
        chosen = [
            tf.constant(value[start : start + size] if value.ndim else value)
            if isinstance(value, np.ndarray)
            else value
            for value in flat
        ]
        with _recorded(optimizers, weight) as found:
            step(tf.nest.pack_sequence_as(kept, chosen))
        if not found:
            raise NotJudgedError("no optimizer of the model makes an update")
        return found

    def whole() -> Gradients:
        found: Gradients = replicas.whole(lambda: run(0, first + second, 1.0))
        return found

    with ExitStack() as put_back:
        put_back.enter_context(state_kept(model, optimizers))
        put_back.enter_context(without_exchange())
        put_back.enter_context(quiet_layers())
        found = whole()
        parts = replicas.halves(lambda: run(0, first, of_sums), lambda: run(first, second, of_sums))
        scale = 1 / HALVES if reduction.averages else 1.0
        finding = _judged(found, _sum(parts, scale), any_factor=reduction.any_factor)
        if finding is not None and _judged(found, whole()) is not None:
            raise NotJudgedError("the step draws random numbers")
    return finding


def _number_of_rows(values: Iterable[Any]) -> int:
    """The number of rows.

    Raises:
        NotJudgedError: Tensors differ in their numbers of rows.
    """
    if any(isinstance(one, tf.__internal__.CompositeTensor) for one in values):
        raise NotJudgedError("the step takes sparse or ragged tensors")
    lengths = {len(one) for one in values if isinstance(one, np.ndarray) and one.ndim}
    if len(lengths) != 1:
        raise NotJudgedError(f"tensors have {sorted(lengths)} rows")
    return int(lengths.pop())


@contextmanager
def _recorded(optimizers: Iterable[Any], weight: float) -> Iterator[Gradients]:
    """Makes optimizers note gradients in place of applying them.

    Args:
        optimizers: Of the model.
        weight: Of gradients that the step has summed over replicas already.
    """
    found: Gradients = {}
    method = UPDATE_METHOD

    def recorder(number: int) -> Callable[..., None]:
        def record(*args: Any, **kwargs: Any) -> None:
            given, args, kwargs = update_arguments(args, kwargs)
            gradients, variables, reduced = gradients_and_variables(given, args, kwargs)
            for gradient, variable in zip(gradients, variables, strict=True):
                if gradient is not None:
                    dense = tf.convert_to_tensor(gradient) * (weight if reduced else 1.0)
                    key = number, id(variable)
                    total = dense + found[key][1] if key in found else dense
                    found[key] = variable_name(variable), total

        return record

    held = list(optimizers)
    for number, optimizer in enumerate(held):
        vars(optimizer)[method] = recorder(number)
    try:
        yield found
    finally:
        for optimizer in held:
            del vars(optimizer)[method]


def _sum(parts: Iterable[Gradients], scale: float) -> Gradients:
    total: Gradients = {}
    for part in parts:
        for key, (name, value) in part.items():
            scaled = value * scale
            total[key] = name, scaled + total[key][1] if key in total else scaled
    return total


def _judged(whole: Gradients, parts: Gradients, *, any_factor: bool = False) -> Finding | None:
    types = {value.dtype for found in (whole, parts) for _, value in found.values()}
    tolerance = SINGLE if tf.float32 in types else DOUBLE
    return judge(_products(whole, parts), tolerance, any_factor=any_factor)


def _products(whole: Gradients, parts: Gradients) -> Iterator[Products]:
    for key in {**whole, **parts}:
        name, one = whole.get(key, ("", None))
        other_name, other = parts.get(key, ("", None))
        yield Products(
            name or other_name, _product(one, one), _product(other, other), _product(one, other)
        )


def _product(one: Any, other: Any) -> float:
    if one is None or other is None:
        return 0.0
    first, second = (np.asarray(value).astype(np.float64).ravel() for value in (one, other))
    return float(first @ second)
