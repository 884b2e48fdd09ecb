"""The wrappers of ``ipu.keras.optimizers``: a Keras optimizer whose gradients are changed first.

The optimizer is changed in place: it keeps its state, is saved as its original class, and may be
wrapped several times. The outermost wrapper's change comes first.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist_tf.errors import OptimizerError
from popdist_tf.loops.accumulation import (
    GradientAccumulationReductionMethod,
    GradientAccumulator,
    accumulate,
    gradients_for,
)
from popdist_tf.loops.loss_scaling import LossScale
from popdist_tf.loops.replicas import cross_replica_mean
from popdist_tf.program_code import program_code
from popdist_tf.replica_state import new_counter
from popdist_tf.together.reductions import AVERAGES, REDUCTION
from popdist_tf.versions import build_optimizer, is_legacy, keras_is_3, optimizer_kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Pairs = list[tuple[Any, Any]]
    Update = Callable[[Pairs], Any]


def CrossReplicaOptimizer(opt: Any, name: str = "CrossReplicaOptimizer") -> Any:  # noqa: N802
    """Makes an optimizer average gradients over replicas before every update.

    The strategies sum gradients by themselves, and Keras divides its loss by the number of
    replicas. In a loop of your own, create `PopDistStrategy` with
    ``add_ipu_cross_replica_reductions=False`` beside this wrapper, as published.

    Args:
        opt: An optimizer of Keras.
        name: Accepted as published.

    Returns:
        The same optimizer.

    Raises:
        OptimizerError: ``opt`` is not an optimizer of Keras.
    """
    del name

    def averaged(pairs: Pairs, update: Update) -> Any:
        return update([(None if g is None else cross_replica_mean(g), v) for g, v in pairs])

    return _wrapped(opt, "CrossReplicaOptimizer", averaged, marks={AVERAGES: True})


def MapGradientOptimizer(  # noqa: N802 - published name
    wrapped_optimizer: Any,
    gradient_mapping_function: Callable[[Any, Any], Any],
    name: str = "MapGradientOptimizer",
) -> Any:
    """Makes an optimizer change its gradients by a function before every update.

    The function is given gradients that the strategy has summed over replicas, as in the original:
    a weight decay that the function adds counts once.

    Args:
        wrapped_optimizer: An optimizer of Keras.
        gradient_mapping_function: Called with a gradient and its variable; returns the gradient
            that takes its place.
        name: Accepted as published.

    Returns:
        The same optimizer.

    Raises:
        OptimizerError: ``wrapped_optimizer`` is not an optimizer of Keras.
    """
    del name

    def mapped(pairs: Pairs, update: Update) -> Any:
        function = program_code(gradient_mapping_function)
        return update([(None if g is None else function(g, v), v) for g, v in pairs])

    return _wrapped(wrapped_optimizer, "MapGradientOptimizer", mapped, needs_sums=True)


def GradientAccumulationOptimizer(  # noqa: N802 - published name
    opt: Any,
    num_mini_batches: int,
    offload_weight_update_variables: bool | None = None,
    replicated_optimizer_state_sharding: bool = False,
    dtype: Any = None,
    reduction_method: Any = GradientAccumulationReductionMethod.SUM,
    name: str = "GradientAccumulationOptimizer",
) -> Any:
    """Makes an optimizer accumulate the gradients of several mini-batches, and then update once.

    The count of iterations, and schedules of learning rates with it, counts updates.

    Args:
        opt: An optimizer of Keras.
        num_mini_batches: Mini-batches of an update.
        offload_weight_update_variables: Accepted as published, without effect on a host.
        replicated_optimizer_state_sharding: Accepted as published, without effect on a host.
        dtype: In which gradients are accumulated: a dtype, a function of the variable that returns
            one, or None for the variable's own.
        reduction_method: What becomes of the gradients: SUM, MEAN or RUNNING_MEAN.
        name: Accepted as published.

    Returns:
        The same optimizer.

    Raises:
        OptimizerError: ``opt`` is not an optimizer of Keras, or the number is not positive.
        PipelineError: The reduction does not exist.
    """
    del offload_weight_update_variables, replicated_optimizer_state_sharding, name
    if not isinstance(num_mini_batches, int) or num_mini_batches < 1:
        raise OptimizerError("PD435", "num_mini_batches must be at least 1", value=num_mini_batches)
    settings = num_mini_batches, reduction_method, dtype
    GradientAccumulator(*settings)  # checks them
    replicas: dict[Any, tuple[GradientAccumulator, Any]] = {}

    def accumulated(pairs: Pairs, update: Update) -> Any:
        replica = tf.distribute.get_replica_context()
        if replica is None:
            raise OptimizerError(
                "PD435",
                "gradients of a replica are accumulated, and this code is not inside of a replica",
                hint="apply gradients inside of strategy.run",
            )
        number = replica._replica_id_in_sync_group  # the number, not a tensor
        with tf.init_scope():
            build_optimizer(
                opt, [variable for _, variable in pairs]
            )  # no variables inside of the branch
            if number not in replicas:
                counter = new_counter("mini_batches")
                replicas[number] = GradientAccumulator(*settings), counter
        accumulator, counter = replicas[number]

        def apply(totals: Pairs) -> Any:
            update(gradients_for(opt, totals))
            return tf.no_op()  # a function's side effects run in order by themselves

        accumulate(accumulator, pairs, counter.assign_add(1) - 1, apply)
        return opt.iterations

    return _wrapped(opt, "GradientAccumulationOptimizer", accumulated)


def CrossReplicaGradientAccumulationOptimizer(  # noqa: N802 - published name
    opt: Any, num_mini_batches: int, **settings: Any
) -> Any:
    """Makes an optimizer accumulate gradients, and average the total over replicas.

    Args:
        opt: An optimizer of Keras.
        num_mini_batches: Mini-batches of an update.
        **settings: As for `GradientAccumulationOptimizer`.

    Returns:
        The same optimizer.

    Raises:
        OptimizerError: As `GradientAccumulationOptimizer`.
    """
    settings.pop("verify_usage", None)  # every optimizer may be wrapped here
    return GradientAccumulationOptimizer(CrossReplicaOptimizer(opt), num_mini_batches, **settings)


def ALSOptimizer(  # noqa: N802 - published name
    opt: Any, *settings: Any, name: str = "ALSOptimizer", **others: Any
) -> Any:
    """Makes an optimizer scale the loss by a factor that follows the size of the gradients.

    ``fit`` and ``minimize`` scale the loss by themselves. A loop of your own calls
    ``get_scaled_loss`` inside of the tape and ``get_unscaled_gradients`` before
    ``apply_gradients``; ``loss_scaling_factor`` is the factor now. A step with a gradient that is
    infinite or not a number updates by gradients of zero, on all replicas.

    Args:
        opt: An optimizer of Keras 2.
        *settings: As for `popdist_tf.loops.loss_scaling.LossScale`, in its order.
        name: Accepted as published.
        **others: As for `LossScale`, by name.

    Returns:
        The same optimizer.

    Raises:
        OptimizerError: ``opt`` is not an optimizer of Keras 2, or a setting is out of its range.
    """
    del name
    scale = LossScale(*settings, **others)
    if keras_is_3():
        raise OptimizerError(
            "PD435",
            "optimizers of Keras 3 scale the loss in another way",
            accepted="an optimizer of Keras 2",
            hint="tf.keras.mixed_precision.LossScaleOptimizer",
        )

    def unscaled(self: Any, grads: Any) -> Any:
        reduction = getattr(self, REDUCTION, None)
        if reduction is None:
            return scale.unscaled(grads)
        total = reduction.collectives.sum_by_name
        return scale.unscaled(grads, lambda counts: total(counts, "popdist_loss_scaling"))

    def compute_gradients(
        self: Any, loss: Any, var_list: Any, *others: Any, tape: Any = None, **named: Any
    ) -> Any:
        if others and not is_legacy(self):
            tape, others = others[0], others[1:]
        tape = tf.GradientTape() if tape is None else tape
        with tape:
            scaled = scale.scaled(loss() if callable(loss) else loss)
        pairs = computed(self, scaled, var_list, *others, tape=tape, **named)
        gradients = unscaled(self, [gradient for gradient, _ in pairs])
        return list(zip(gradients, (variable for _, variable in pairs), strict=True))

    kind = type(opt)
    name_of_method = "_compute_gradients" if is_legacy(opt) else "compute_gradients"
    computed = getattr(kind, name_of_method)
    marks = {
        name_of_method: compute_gradients,
        "get_scaled_loss": lambda _, loss: scale.scaled(loss),
        "get_unscaled_gradients": unscaled,
        "loss_scaling_factor": property(lambda _: scale.factor),
    }
    return _wrapped(opt, "ALSOptimizer", lambda pairs, update: update(pairs), marks=marks)


def _summed(optimizer: Any, pairs: Pairs) -> Pairs:
    if not is_legacy(optimizer):
        return list(optimizer.aggregate_gradients(pairs))
    totals = optimizer._aggregate_gradients(pairs)
    return [(total, variable) for total, (_, variable) in zip(totals, pairs, strict=True)]


def _wrapped(
    optimizer: Any,
    wrapper: str,
    around: Callable[[Pairs, Update], Any],
    *,
    needs_sums: bool = False,
    marks: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Makes ``around(pairs, update)`` stand in front of an optimizer's updates.

    Gradients are each replica's own, or with ``needs_sums`` those that the strategy has summed.
    ``marks`` become attributes of the optimizer's class.
    """
    if not isinstance(optimizer, optimizer_kinds()):
        raise OptimizerError(
            "PD435",
            f"{wrapper} of ipu.keras.optimizers wraps an optimizer of Keras",
            value=optimizer,
            accepted="an instance of tf.keras.optimizers.Optimizer",
            hint="optimizers of TensorFlow 1 are wrapped by ipu.optimizers",
        )
    kind = type(optimizer)

    def apply_gradients(
        self: Any, grads_and_vars: Any, *args: Any, skip_gradients_aggregation: Any = None, **k: Any
    ) -> Any:
        skips = skip_gradients_aggregation or not k.pop("experimental_aggregate_gradients", True)
        pairs = [pair for pair in grads_and_vars if pair[0] is not None]
        if needs_sums and not skips:
            pairs, skips = _summed(self, pairs), True
        if is_legacy(self):
            k["experimental_aggregate_gradients"] = not skips
        else:
            k["skip_gradients_aggregation"] = skips

        def update(changed: Pairs) -> Any:
            return kind.apply_gradients(self, changed, *args, **k)

        return around(pairs, update)

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        known = self._trainable_variables if trainable_variables is None else trainable_variables

        def update(pairs: Pairs) -> Any:
            return kind.apply(self, [g for g, _ in pairs], [v for _, v in pairs])

        return around(list(zip(grads, known, strict=True)), update)

    def _all_reduce_sum_gradients(self: Any, grads_and_vars: Any) -> Any:
        return around(kind._all_reduce_sum_gradients(self, grads_and_vars), list)

    if not keras_is_3():
        overridden: Any = apply_gradients
    else:
        overridden = _all_reduce_sum_gradients if needs_sums else apply
    # With the original's name and module, Keras saves the optimizer as the original.
    namespace = {overridden.__name__: overridden, "__module__": kind.__module__, **marks}
    optimizer.__class__ = type(kind.__name__, (kind,), namespace)
    return optimizer
