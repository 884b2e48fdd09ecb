"""Warnings of gradients that are not those of the mean over the rows of all instances.

Gradients are summed under the strategies, where Keras divides its losses by the number of replicas,
and averaged by the wrapper of `popdist_tf.keras`. Both are what one process computes from the
global batch, except in these cases: a ``train_step`` of the program divides by its own rows alone;
batches of the instances have other sizes; a loss is a sum, and the wrapper averages it; a loss is
the mean over what a mask leaves, and the wrapper does not know how much others leave.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist_tf.collectives.agreement import compared
from popdist_tf.strategies.masked_losses import masked_means
from popdist_tf.versions import keras_is_3, strategy_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from popdist_tf.collectives.host import HostCollectives

_COUNT = "_popdist_divisions"
_IGNORED = r"Where this is meant: warnings.filterwarnings('ignore', message=r'\[PD431\]')."
_AVERAGES = frozenset({"compute_average_loss", "scale_regularization_loss"})
_LIBRARIES = frozenset({"keras", "popdist_tf", "tensorflow", "tensorflow_estimator"})
_DEFAULT_BATCH = 32  # of Keras


def warn(text: str) -> None:
    """Says in which way an update is not that of one process; Python shows an equal warning once.

    Args:
        text: What is averaged, and what to do.
    """
    warnings.warn(f"[PD431] {text} {_IGNORED}", stacklevel=2)


def warn_of_sizes(says: str) -> None:
    """Says that batches have other sizes on some instances.

    Args:
        says: Which sizes.
    """
    warn(
        "the instances have batches of different sizes, and the mean over instances counts "
        f"rows of small batches more than one process does ({says}). Give all "
        "instances as many rows, or drop the last batch (drop_remainder=True)."
    )


def counts_rows_alike(model: Any) -> bool:
    """Whether the loss of a model is a mean over the rows of a replica, as far as it is known.

    Sums, and a step that divides by a global batch size of the program, do not depend on how rows
    are divided over the replicas.

    Args:
        model: A model of Keras.
    """
    losses = tf.nest.flatten(getattr(model, "loss", None))
    is_sum = bool(losses) and all(getattr(one, "reduction", "mean") == "sum" for one in losses)
    return not (is_sum or _names_of_step(model) & _AVERAGES)


def _names_of_step(model: Any) -> set[str]:
    """All names in the program's methods of a model, of which its step may call any."""
    waiting = [
        method.__code__
        for kind in type(model).__mro__
        if _is_of_program(kind.__module__)
        for method in map(inspect.unwrap, vars(kind).values())
        if hasattr(method, "__code__")
    ]
    found: set[str] = set()
    while waiting:
        code = waiting.pop()
        found.update(code.co_names)
        waiting += [one for one in code.co_consts if inspect.iscode(one)]  # functions inside
    return found


def asked_by_program() -> bool:
    """Whether code of the program, and not of a library, calls the function that calls this one."""
    return _is_of_program(sys._getframe(2).f_globals.get("__name__", ""))


def _is_of_program(module: str) -> bool:
    return module.partition(".")[0] not in _LIBRARIES


class MeanOverAll(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Warns in a model's first ``fit`` of what is not a mean over the rows of all instances.

    Args:
        collectives: The job's collectives.
        fit: The arguments of ``fit``.
        averages: Whether gradients are averaged, as by the wrapper, or summed.
        is_first: Whether the model's step is built in this ``fit``.
    """

    _supports_tf_logs = True  # else Keras copies the loss to the host in every step

    def __init__(
        self,
        collectives: HostCollectives,
        fit: Mapping[str, Any],
        *,
        averages: bool,
        is_first: bool,
    ) -> None:
        super().__init__()
        self._collectives = collectives
        self._sizes = _sizes(fit)
        self._averages = averages
        self._is_due = is_first
        self._before = 0, 0
        self.has_compared = False  # sizes that differ
        note_divisions()

    def on_train_begin(self, logs: Any = None) -> None:
        """Compares the sizes of batches."""
        del logs
        self._before = _divisions(), masked_means()
        found = compared(self._collectives, "sizes of batches", {"rows": self._sizes})
        if found and self._collectives.rank == 0:
            warn_of_sizes(found[0].says)
        self.has_compared = bool(found)
        if self._averages and self._collectives.rank == 0:
            self._warn_of_sums()

    def _warn_of_sums(self) -> None:
        losses = tf.nest.flatten(getattr(self.model, "loss", None))
        kinds = {getattr(one, "reduction", "mean") for one in losses}
        if kinds & {"sum", "none", None}:
            warn(
                "a loss is the sum over the rows of an instance, and DistributedOptimizer averages "
                f"gradients: an update is 1/{self._collectives.size} of that of one process. Use "
                "op=popdist_tf.keras.Sum."
            )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Checks what the first step has built."""
        del batch, logs
        if not self._is_due:
            return
        self._is_due = False
        divisions, masked = self._before
        if self._collectives.rank == 0 and self._averages and masked_means() > masked:
            warn(
                "a loss is the mean over what a mask leaves of an instance's rows. The mean over "
                "instances counts values of an instance with few of them more than one process "
                "does. PopDistStrategy counts them over all instances."
            )
        if self._collectives.rank == 0 and not self._averages and _divisions() == divisions:
            self._warn_of_own_step()

    def _warn_of_own_step(self) -> None:
        strategy = strategy_of(self.model)
        method = inspect.unwrap(type(self.model).train_step)
        names = _names_of_step(self.model)
        is_own = _is_of_program(getattr(method, "__module__", ""))
        sums = getattr(getattr(strategy, "extended", None), "reduces_on_device", True)
        # A program that divides by itself asks for the number of replicas somewhere.
        is_divided = names & _AVERAGES or getattr(strategy, "has_been_asked", True)
        is_named = getattr(strategy, "has_warned_of_mean", False)  # by `local_means`
        if is_own and sums and not is_divided and not is_named:
            warn(
                f"{type(self.model).__name__}.train_step divides no loss by the number of "
                "replicas, and gradients are summed over them: an update is "
                f"{strategy.num_replicas_in_sync} times that of one process. Use Keras' losses "
                "(self.compiled_loss, self.compute_loss), or divide the mean over the rows by "
                "strategy.num_replicas_in_sync."
            )


def _sizes(fit: Mapping[str, Any]) -> str:
    """How many rows the batches of a ``fit`` have, as far as it is known."""
    data = fit.get("x")
    if isinstance(data, tf.data.Dataset):
        parts = tf.nest.flatten(data.element_spec, expand_composites=True)
        shapes = [one.shape for one in parts if getattr(one, "shape", None)]
        return f"batches of {shapes[0][0]} rows" if shapes and shapes[0].rank else "unknown"
    shapes = [one.shape for one in tf.nest.flatten(data) if getattr(one, "shape", None)]
    if not shapes:
        return "unknown"
    rows = int(shapes[0][0] * (1 - (fit.get("validation_split") or 0)))
    batch = fit.get("batch_size") or _DEFAULT_BATCH
    return f"batches of {min(batch, rows)} rows, and at last {rows % batch or min(batch, rows)}"


def _losses() -> Any:
    name = "keras.src.losses.loss" if keras_is_3() else "keras.src.utils.losses_utils"
    return import_module(name)


def note_divisions() -> None:
    """Makes Keras count its divisions of losses by the number of replicas; safe to call again."""
    module = _losses()
    known = module.scale_loss_for_distribution
    if hasattr(known, _COUNT):
        return
    count = [0]  # functions around this one share it

    @functools.wraps(known)
    def wrapped(value: Any) -> Any:
        count[0] += 1
        return known(value)

    setattr(wrapped, _COUNT, count)
    module.scale_loss_for_distribution = wrapped


def _divisions() -> int:
    return int(getattr(_losses().scale_loss_for_distribution, _COUNT)[0])
