"""Optimizers of ``ipu.optimizers``, around optimizers of TensorFlow 1.

Each optimizer wraps another one and changes the gradients before the update.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist import backend
from popdist_tf.errors import PipelineError
from popdist_tf.loops.accumulation import (
    GradientAccumulationReductionMethod,
    GradientAccumulator,
    accumulate,
    gradients_for,
)
from popdist_tf.loops.loss_scaling import LossScale
from popdist_tf.loops.replicas import cross_replica_mean
from popdist_tf.program_code import program_code
from popdist_tf.replica_state import ReplicaState, new_counter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class IpuOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """An optimizer that wraps another one, and computes and applies gradients through it.

    Args:
        opt: An optimizer of `tf.compat.v1.train`, or another of this module.
        name: Of the operations; None for the class's own.

    Raises:
        PipelineError: ``opt`` is not such an optimizer.
    """

    def __init__(self, opt: Any, name: str | None = None) -> None:
        if not isinstance(opt, tf.compat.v1.train.Optimizer):
            raise PipelineError(
                "PD424",
                f"{type(self).__name__} wraps an optimizer of TensorFlow 1",
                value=opt,
                accepted="an optimizer of tf.compat.v1.train",
            )
        super().__init__(False, name or type(self).__name__)  # noqa: FBT003 - published order
        self._opt = opt

    def compute_gradients(self, loss: Any, var_list: Any = None, **kwargs: Any) -> Any:
        """The gradients of a loss, and their variables."""
        return self._opt.compute_gradients(loss, var_list=var_list, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: Any = None, name: Any = None
    ) -> Any:
        """The operation that updates the variables."""
        return self._opt.apply_gradients(grads_and_vars, global_step, name)

    def get_slot(self, var: Any, name: str) -> Any:
        """A slot of the wrapped optimizer."""
        return self._opt.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """The names of the wrapped optimizer's slots."""
        return list(self._opt.get_slot_names())

    def variables(self) -> list[Any]:
        """The variables of the wrapped optimizer."""
        return list(self._opt.variables())


class CrossReplicaOptimizer(IpuOptimizer):
    """Averages gradients over replicas before the update; see `cross_replica_mean` for which.

    Under `PopDistStrategy` the optimizers sum gradients by themselves. Create the strategy with
    ``add_ipu_cross_replica_reductions=False`` beside this optimizer, as published programs do.
    """

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: Any = None, name: Any = None
    ) -> Any:
        """The operation that averages the gradients and updates the variables."""
        strategy = tf.distribute.get_strategy()
        guard = getattr(strategy.extended, "guard", None)
        if guard is not None:
            guard.note_reduction()
            _warn_of_second_sum(strategy)
        elif not tf.distribute.has_strategy() and (backend.launch().size or 1) > 1:
            warnings.warn(
                f"[PD436] {type(self).__name__} averages over the replicas of a strategy, and "
                "there is none: it averages nothing over the instances of this job. Train in the "
                "scope of a PopDistStrategy.",
                stacklevel=2,
            )
        return super().apply_gradients(apply_cross_replica_op(grads_and_vars), global_step, name)


def apply_cross_replica_op(grads_and_vars: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The averages of gradients over replicas, with their variables.

    Args:
        grads_and_vars: Gradients, or None, each with its variable.
    """
    return [apply_cross_replica_op_single(*pair) for pair in grads_and_vars]


def apply_cross_replica_op_single(grad: Any, var: Any) -> tuple[Any, Any]:
    """The average of a gradient over replicas, and its variable.

    Args:
        grad: The gradient; None stays None.
        var: The variable.
    """
    return None if grad is None else cross_replica_mean(grad), var


def _warn_of_second_sum(strategy: Any) -> None:
    sums = getattr(strategy.extended, "reduces_on_device", False)
    replicas = strategy.num_replicas_in_sync
    # An Estimator divides losses by the number of replicas, so that the sum is the average.
    if sums and replicas > 1 and not strategy._scale_loss_for_estimator:  # noqa: SLF001 - no public way
        warnings.warn(
            "[PD427] CrossReplicaOptimizer averages gradients over the replicas, and the strategy "
            f"sums the averages again: an update is {replicas} times that of the average. Create "
            "the strategy with add_ipu_cross_replica_reductions=False.",
            stacklevel=3,
        )


class ShardedOptimizer(IpuOptimizer):
    """Places updates beside their variables on the original hardware; without effect on a host.

    Args:
        optimizer: As for `IpuOptimizer`.
    """

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)


class GradientAccumulationOptimizerV2(IpuOptimizer):
    """Accumulates the gradients of several mini-batches, and then updates once.

    Args:
        opt: The optimizer that updates.
        num_mini_batches: Mini-batches of an update.
        offload_weight_update_variables: Accepted as published, without effect on a host.
        replicated_optimizer_state_sharding: Accepted as published, without effect on a host.
        dtype: In which gradients are accumulated: a dtype, a function of the variable that returns
            one, or None for the variable's own.
        reduction_method: What becomes of the gradients: SUM, MEAN or RUNNING_MEAN.
        name: Of the operations; None for the class's own.

    Raises:
        PipelineError: An argument is not valid.
    """

    def __init__(
        self,
        opt: Any,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool = False,
        dtype: Any = None,
        reduction_method: Any = GradientAccumulationReductionMethod.SUM,
        name: str | None = None,
    ) -> None:
        del offload_weight_update_variables, replicated_optimizer_state_sharding
        super().__init__(opt, name)
        if not isinstance(num_mini_batches, int) or num_mini_batches < 1:
            raise PipelineError(
                "PD424", "num_mini_batches must be at least 1", value=num_mini_batches
            )
        self._count = num_mini_batches
        self._settings = (num_mini_batches, reduction_method, dtype)
        GradientAccumulator(*self._settings)  # checks them
        self._replicas: dict[Any, tuple[GradientAccumulator, ReplicaState]] = {}

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: Any = None, name: Any = None
    ) -> Any:
        """The operation that accumulates, and updates with the last mini-batch of an update."""
        replica = tf.distribute.get_replica_context()
        if replica is None:
            raise PipelineError(
                "PD424",
                f"{type(self).__name__} accumulates the gradients of a replica",
                hint="apply gradients inside of strategy.run",
            )
        number = replica._replica_id_in_sync_group  # noqa: SLF001 - the number, not a tensor
        if number not in self._replicas:
            counter = new_counter(f"{self.get_name()}/mini_batches")
            self._replicas[number] = (GradientAccumulator(*self._settings), counter)
        accumulator, counter = self._replicas[number]
        return accumulate(
            accumulator,
            list(grads_and_vars),
            counter.assign_add(1) - 1,
            lambda totals: self._opt.apply_gradients(
                gradients_for(self._opt, totals), global_step, name
            ),
        )


class GradientAccumulationOptimizer(GradientAccumulationOptimizerV2):
    """Accumulates the gradients of several mini-batches, and then updates with their sum.

    Args:
        opt: The optimizer that updates.
        num_mini_batches: Mini-batches of an update.
        verify_usage: Accepted as published: every optimizer may be wrapped here.
        name: Of the operations; None for the class's own.
    """

    def __init__(
        self,
        opt: Any,
        num_mini_batches: int,
        verify_usage: bool = True,
        name: str | None = None,
    ) -> None:
        del verify_usage
        super().__init__(opt, num_mini_batches, name=name)


class CrossReplicaGradientAccumulationOptimizerV2(GradientAccumulationOptimizerV2):
    """Accumulates gradients, and averages the total over replicas before the update.

    Args:
        opt: The optimizer that updates.
        num_mini_batches: Mini-batches of an update.
        **settings: As for `GradientAccumulationOptimizerV2`.
    """

    def __init__(self, opt: Any, num_mini_batches: int, **settings: Any) -> None:
        super().__init__(CrossReplicaOptimizer(opt), num_mini_batches, **settings)


class CrossReplicaGradientAccumulationOptimizer(GradientAccumulationOptimizer):
    """Accumulates gradients, and averages their sum over replicas before the update.

    Args:
        opt: The optimizer that updates.
        num_mini_batches: Mini-batches of an update.
        verify_usage: Accepted as published.
        name: Of the operations; None for the class's own.
    """

    def __init__(
        self, opt: Any, num_mini_batches: int, verify_usage: bool = True, name: str | None = None
    ) -> None:
        super().__init__(CrossReplicaOptimizer(opt), num_mini_batches, verify_usage, name)


class MapGradientOptimizer(IpuOptimizer):
    """Changes gradients by a function, when they are computed.

    Args:
        wrapped_optimizer: The optimizer that computes and applies.
        gradient_mapping_function: Called with a gradient and its variable; returns the gradient
            that takes its place.
        name: Of the operations.
    """

    def __init__(
        self,
        wrapped_optimizer: Any,
        gradient_mapping_function: Callable[[Any, Any], Any],
        name: str = "MapGradientOptimizer",
    ) -> None:
        super().__init__(wrapped_optimizer, name)
        self._function = gradient_mapping_function

    def _mapped(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        function = program_code(self._function)
        return [
            (None if gradient is None else function(gradient, variable), variable)
            for gradient, variable in grads_and_vars
        ]

    def compute_gradients(self, loss: Any, var_list: Any = None, **kwargs: Any) -> Any:
        """The changed gradients of a loss, and their variables."""
        return self._mapped(super().compute_gradients(loss, var_list, **kwargs))


class MapGradientOptimizerInvertedChaining(MapGradientOptimizer):
    """Changes gradients by a function, before they are applied.

    Of several that are wrapped around each other, the outermost one's function comes first.
    """

    def compute_gradients(self, loss: Any, var_list: Any = None, **kwargs: Any) -> Any:
        """The gradients of a loss, and their variables."""
        return self._opt.compute_gradients(loss, var_list=var_list, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: Any = None, name: Any = None
    ) -> Any:
        """The operation that changes the gradients and updates the variables."""
        return super().apply_gradients(self._mapped(grads_and_vars), global_step, name)


class AutomaticLossScalingOptimizer(IpuOptimizer):
    """Scales the loss by a factor that follows the size of the gradients; see `LossScale`.

    Gradients are divided by the factor when they are computed. A step with a gradient that is
    infinite or not a number updates by gradients of zero, on all replicas.

    Args:
        opt: The optimizer that updates.
        *settings: As for `LossScale`, in its order.
        name: Of the operations.
        **others: As for `LossScale`, by name.

    Raises:
        OptimizerError: A setting is out of its range.
    """

    def __init__(
        self,
        opt: Any,
        *settings: Any,
        name: str = "AutomaticLossScalingOptimizer",
        **others: Any,
    ) -> None:
        super().__init__(opt, name)
        self._scale = LossScale(*settings, **others)

    @property
    def loss_scaling_factor(self) -> Any:
        """The factor now, a float32 scalar."""
        return self._scale.factor

    def compute_gradients(self, loss: Any, var_list: Any = None, **kwargs: Any) -> Any:
        """The gradients of a loss, and their variables."""
        pairs = super().compute_gradients(self._scale.scaled(loss), var_list, **kwargs)
        gradients = self._scale.unscaled([gradient for gradient, _ in pairs])
        return list(zip(gradients, (variable for _, variable in pairs), strict=True))
