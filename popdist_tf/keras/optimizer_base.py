"""The base class of optimizers whose states have dtypes of their own, for formulas of programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist_tf.errors import OptimizerError
from popdist_tf.versions import keras_is_3, optimizer_kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class IpuOptimizerBase(optimizer_kinds()[-1]):  # type: ignore[misc] # of Keras 2.10, where it is
    """An optimizer of the kind that Keras had until 2.10; a subclass has the formula.

    Args:
        name: Of the optimizer.
        optimizer_compute_precisions: Kept as ``opt_dtypes``, for the subclass.
        outline_apply_gradients: Accepted as published, without effect on a host.
        outline_apply_gradients_kwargs: Accepted as published, without effect on a host.
        **kwargs: What Keras takes, such as ``clipnorm``.

    Raises:
        OptimizerError: Keras is version 3.
    """

    def __init__(
        self,
        name: str,
        optimizer_compute_precisions: Sequence[Any] = (tf.float32,),
        outline_apply_gradients: bool = False,
        outline_apply_gradients_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if keras_is_3():
            raise OptimizerError(
                "PD435",
                "IpuOptimizerBase is an optimizer of the kind that Keras had until 2.10",
                value=f"{type(self).__name__} with Keras 3",
                accepted="TensorFlow 2.15 (constraints/default.txt)",
                hint="derive from tf.keras.optimizers.Optimizer, and define update_step",
            )
        super().__init__(name, **kwargs)
        self.opt_dtypes = optimizer_compute_precisions
        self.outline_apply_gradients = outline_apply_gradients
        self.outline_apply_gradients_kwargs = outline_apply_gradients_kwargs or {}

    def get_slot_dtype(self, var: Any, slot_name: str) -> Any:
        """The dtype of a state of a variable, which subclasses may change.

        Args:
            var: The variable.
            slot_name: The state's name.

        Returns:
            The variable's own dtype.
        """
        del slot_name
        return var.dtype

    def add_slot(
        self,
        var: Any,
        slot_name: str,
        initializer: Any = "zeros",
        shape: Any = None,
        dtype: Any = None,
    ) -> Any:
        """Creates a state of a variable.

        Args:
            var: The variable.
            slot_name: The state's name.
            initializer: Its first values.
            shape: Its shape; None for the variable's.
            dtype: Its dtype; None for `get_slot_dtype`.

        Returns:
            The state.
        """
        own = tf.as_dtype(dtype or self.get_slot_dtype(var, slot_name) or var.dtype)
        if own == var.dtype:
            return super().add_slot(var, slot_name, initializer, shape)

        def typed(create: Callable[..., Any], **kwargs: Any) -> Any:
            first = kwargs["initial_value"]

            def initial_value() -> Any:
                return tf.cast(first() if callable(first) else first, own)

            return create(**{**kwargs, "dtype": own, "initial_value": initial_value})

        with tf.variable_creator_scope(typed):
            return super().add_slot(var, slot_name, initializer, shape)

    def add_slot_with_dtype(
        self, var: Any, slot_name: str, dtype: Any, initializer: Any = "zeros"
    ) -> Any:
        """Creates a state of a variable, in a dtype.

        Args:
            var: The variable.
            slot_name: The state's name.
            dtype: Its dtype.
            initializer: Its first values.

        Returns:
            The state.
        """
        return self.add_slot(var, slot_name, initializer, dtype=dtype)
