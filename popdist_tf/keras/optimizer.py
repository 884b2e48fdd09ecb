"""An optimizer that reduces gradients over the instances before every update.

Horovod's own wrapper overrides methods that Keras 3 no longer calls, so each rank would train
alone without an error. This wrapper overrides the method that every update calls.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist_tf.checks import STATE
from popdist_tf.checks.end import compare_at_end
from popdist_tf.checks.first_steps import FirstSteps, Weights
from popdist_tf.checks.layers import compare_layers
from popdist_tf.checks.strategy_steps import DIFFERENT
from popdist_tf.collectives import instances
from popdist_tf.collectives.agreement import agree
from popdist_tf.collectives.instances import job_collectives
from popdist_tf.errors import StrategyError
from popdist_tf.progress import report_fits
from popdist_tf.strategies.masked_losses import share_masks
from popdist_tf.together.epochs import compare_epochs
from popdist_tf.together.reductions import REDUCTION
from popdist_tf.together.uneven_data import AnnouncedSteps
from popdist_tf.versions import UPDATE_METHOD, describe, optimizer_kinds, variable_name

if TYPE_CHECKING:
    from collections.abc import Sequence

_LABELS = itertools.count()

_ADVICE = (
    "Add popdist_tf.keras.callbacks.BroadcastGlobalVariablesCallback(0) to fit (and give the "
    "model an input shape where steps_per_execution is more than 1), or call "
    "popdist_tf.keras.broadcast_variables before a loop of your own."
)


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    sparse_as_dense: bool = False,
    op: Any = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
) -> Any:
    """Makes an optimizer reduce its gradients over all instances before every update.

    The instances have to start from equal weights, see
    `callbacks.BroadcastGlobalVariablesCallback`; before the second update this is checked.

    Args:
        optimizer: An optimizer of Keras. It is changed in place, keeps its state, and is saved and
            loaded as its original class; wrap it again after loading.
        name: Accepted as Horovod has it.
        sparse_as_dense: Whether gradients of embeddings are sent as dense tensors.
        op: `Average` (the default) or `Sum`.
        backward_passes_per_step: 1. Keras 3 accumulates by itself (``gradient_accumulation_steps``
            of its optimizers).
        average_aggregated_gradients: Accepted as Horovod has it; without effect on a single pass.

    Returns:
        The same optimizer.

    Raises:
        StrategyError: The optimizer reduces already, or an option is not available.
    """
    del name, average_aggregated_gradients
    kind = type(optimizer)
    method = UPDATE_METHOD
    op = instances.Average if op is None else op
    _check(optimizer, method, op, backward_passes_per_step)
    reduction = _Reduction(op == instances.Average, sparse_as_dense)
    compare_epochs()
    share_masks()
    report_fits()

    def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        known = self._trainable_variables if trainable_variables is None else trainable_variables
        compare_at_end(self, known)
        return kind.apply(self, reduction.reduced(list(grads), list(known)), trainable_variables)

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        compare_at_end(self, variables)
        gradients = reduction.reduced([gradient for gradient, _ in pairs], variables)
        return kind.apply_gradients(
            self, list(zip(gradients, variables, strict=True)), *args, **kwargs
        )

    overridden = apply if method == "apply" else apply_gradients
    # With the original's name and module, Keras saves the optimizer as the original.
    namespace = {method: overridden, REDUCTION: reduction, "__module__": kind.__module__}
    optimizer.__class__ = type(kind.__name__, (kind,), namespace)
    return optimizer


def _check(optimizer: Any, method: str, op: Any, passes: int) -> None:
    if not isinstance(optimizer, optimizer_kinds()) or not hasattr(optimizer, method):
        raise StrategyError(
            "PD440",
            "the argument is not an optimizer of Keras",
            value=type(optimizer),
            accepted="an instance of tf.keras.optimizers.Optimizer, or of its legacy kind",
        )
    if hasattr(optimizer, REDUCTION) or "horovod" in type(optimizer).__module__:
        raise StrategyError(
            "PD440",
            "this optimizer reduces its gradients already",
            value=type(optimizer).__name__,
            hint="wrap an optimizer once",
        )
    if op not in (instances.Average, instances.Sum):
        raise StrategyError(
            "PD440", "this reduction is not supported", value=op, accepted="Average or Sum"
        )
    if passes != 1:
        raise StrategyError(
            "PD440",
            "gradients cannot be accumulated over several passes here",
            value=f"backward_passes_per_step={passes}",
            accepted="1",
            hint="with Keras 3, create the optimizer with gradient_accumulation_steps",
        )


class _Reduction:
    """Reduces the gradients of one optimizer, to their sum or (``averages``) to their average."""

    def __init__(self, averages: bool, sparse_as_dense: bool) -> None:
        self.collectives = job_collectives()
        self.averages = averages
        self._sparse_as_dense = sparse_as_dense
        self._first: FirstSteps | None = None  # since the first update
        alone = self.collectives.horovod is None
        self.steps = None if alone else AnnouncedSteps(self.collectives)

    def reduced(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        """The gradients over all instances; a gradient of None remains None."""
        _refuse_strategies()
        _refuse_branches()
        if self.steps is None:
            return gradients
        if self._first is None:
            # Once: a later call may be a retrace on one instance alone.
            shapes = [
                describe([variable]) + (" without gradient" if gradient is None else "")
                for gradient, variable in zip(gradients, variables, strict=True)
            ]
            agree(self.collectives, f"an update of {len(shapes)} weights: {', '.join(shapes)}")
            compare_layers(self.collectives)
            # Optimizers of one step compare beside each other. Each has a name of its own, which
            # is the same on all instances, as they have agreed on this update.
            label = f"popdist_gradients_{next(_LABELS)}"
            # Gradients of equal rows are equal, where weights are: from the second update on.
            self._first = FirstSteps(self.collectives, label, first=2)
        present = [gradient for gradient in gradients if gradient is not None]
        # The backward pass computes the last layer's gradient first.
        compared = [self._before_reduction(self._first, one, variables) for one in present[-1:]]
        with tf.control_dependencies(compared):
            return [None if gradient is None else self._reduce(gradient) for gradient in gradients]

    def _before_reduction(self, steps: FirstSteps, gradient: Any, variables: list[Any]) -> Any:
        """Compares updates and announces steps, where either is due, before gradients are sent.

        A step that finds no more data begins as well, and what does not depend on the data runs in
        it: so the gradient comes first.
        """
        # A model without an input shape gets the first worker's weights after the first update.
        values = [(variable_name(one), one) for one in variables]
        weights = [Weights(frozenset({2}), STATE, DIFFERENT.format(_ADVICE), values)]
        first = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        with tf.control_dependencies([first]):
            return steps.compare(gradient, weights, self.steps)

    def _reduce(self, gradient: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices) and not self._sparse_as_dense:
            values = self.collectives.allgather(gradient.values)
            indices = self.collectives.allgather(gradient.indices)
            return tf.IndexedSlices(self._scaled(values), indices, gradient.dense_shape)
        return self._scaled(self.collectives.allreduce(tf.convert_to_tensor(gradient)))

    def _scaled(self, total: Any) -> Any:
        return total / self.collectives.size if self.averages else total


def _refuse_strategies() -> None:
    if tf.distribute.has_strategy():
        raise StrategyError(
            "PD440",
            "DistributedOptimizer cannot be used under a strategy, which reduces already",
            value=type(tf.distribute.get_strategy()).__name__,
            hint="leave the wrapper away under PopDistStrategy",
        )


def _refuse_branches() -> None:
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if type(graph).__name__ == "CondBranchFuncGraph":
        raise StrategyError(
            "PD440",
            "an update under a condition may be made on one instance alone, which would wait for "
            "the others forever",
            hint="wrap the outer optimizer: DistributedOptimizer(LossScaleOptimizer(...))",
        )
