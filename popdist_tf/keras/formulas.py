"""The optimizers of ``ipu.keras.optimizers`` whose states have dtypes of their own.

Every update is computed in float32 or wider.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import tensorflow.compat.v2 as tf

from popdist_tf.errors import OptimizerError
from popdist_tf.keras.optimizer_base import IpuOptimizerBase
from popdist_tf.versions import (
    keras_is_3,
    optimizer_kinds,
    tensorflow_variable,
    variable_name,
)


class _Step(NamedTuple):
    """The gradient, value and slots of one update of one variable, and its new slots."""

    gradient: Any
    name: str
    value: Any
    slots: dict[str, Any]
    rate: Any
    number: Any
    changed: dict[str, Any]

    def held(self, slot: str) -> Any:
        """A state before the update, in the dtype of the computation."""
        return tf.cast(tf.convert_to_tensor(self.slots[slot]), self.gradient.dtype)

    def moved(self, slot: str, decay: Any, towards: Any) -> Any:
        """Moves an average, and returns it."""
        self.changed[slot] = decay * self.held(slot) + (1 - decay) * towards
        return self.changed[slot]


_Kind: Any = optimizer_kinds()[0] if keras_is_3() else IpuOptimizerBase


_OF_HARDWARE = (
    "optimizer_compute_precisions",
    "outline_apply_gradients",
    "outline_apply_gradients_kwargs",
)


_HYPERS = ("beta_1", "beta_2", "momentum", "weight_decay_rate")
"""Settings that programs may change while they train, with Keras 2: ``optimizer.beta_1 = 0.5``."""

_DTYPES = {"momentum": "momentum_accum_dtype"}
"""Arguments for the dtypes of states; others are called ``STATE_dtype``."""


def _wide(dtype: Any) -> Any:
    """The dtype in which the update of a variable of a dtype is computed."""
    return tf.float64 if tf.as_dtype(dtype) == tf.float64 else tf.float32


class _Formula(_Kind):  # type: ignore[misc] # a class of Keras 2 or 3
    """An optimizer whose ``_change`` says what is subtracted from a variable.

    Args:
        learning_rate: A number or a schedule.
        name: Of the optimizer.
        slots: The states of a variable by name, with their dtypes; None for the variable's own.
        settings: The other arguments that create the optimizer again.
        kwargs: ``optimizer_compute_precisions`` and ``outline_apply_gradients``, without effect on
            a host, and what Keras takes.
    """

    def __init__(
        self,
        learning_rate: Any,
        name: str,
        slots: dict[str, Any],
        settings: dict[str, Any],
        kwargs: dict[str, Any],
    ) -> None:
        for setting, value in settings.items():
            if setting in ("beta_1", "beta_2", "momentum") and not 0 <= value <= 1:
                raise OptimizerError(
                    "PD435", f"{setting} must be between 0 and 1", value=value, accepted="0 to 1"
                )
        if keras_is_3():
            for setting in _OF_HARDWARE:
                kwargs.pop(setting, None)
            super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        else:
            super().__init__(name, **kwargs)
            self._set_hyper("learning_rate", kwargs.get("lr", learning_rate))
            self._set_hyper("decay", self._initial_decay)
            for hyper in settings.keys() & set(_HYPERS):
                self._set_hyper(hyper, settings[hyper])
        self._settings = settings
        self._slot_dtypes = slots
        self._states: list[dict[str, Any]] = []  # with Keras 3

    def build(self, var_list: Any) -> None:
        """Creates the states.

        Args:
            var_list: The variables that are to be trained.
        """
        if not keras_is_3():
            self._create_all_weights(list(var_list))
            return
        super().build(var_list)
        if self._states:
            return
        for variable in var_list:
            # Keras 3 refuses names with a slash.
            name = variable_name(variable).split(":")[0].replace("/", "_")
            beside = tensorflow_variable(variable)
            with tf.distribute.get_strategy().extended.colocate_vars_with(beside):
                self._states.append(
                    {
                        slot: self.add_variable(
                            shape=variable.shape,
                            dtype=tf.as_dtype(dtype or variable.dtype).name,
                            initializer="zeros",
                            name=f"{slot}_{name}",
                        )
                        for slot, dtype in self._slot_dtypes.items()
                    }
                )

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable, with Keras 3.

        Args:
            gradient: Its gradient.
            variable: The variable.
            learning_rate: The current one.
        """
        self._update(
            gradient, variable, self._states[self._get_variable_index(variable)], learning_rate
        )

    def get_slot_dtype(self, var: Any, slot_name: str) -> Any:
        """The dtype of a state, with Keras 2.

        Args:
            var: The variable.
            slot_name: The state's name.

        Returns:
            The dtype that was asked for, or the variable's own.
        """
        return self._slot_dtypes.get(slot_name) or var.dtype

    def _create_slots(self, var_list: Any) -> None:
        for variable in var_list:
            for slot in self._slot_dtypes:
                self.add_slot(variable, slot)

    def _prepare_local(self, var_device: Any, var_dtype: Any, apply_state: Any) -> None:
        """Asks a schedule once for each update, as Keras does: a schedule may count its calls."""
        rate = tf.identity(self._decayed_lr(_wide(var_dtype)))
        apply_state[(var_device, var_dtype)]["lr_t"] = rate

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        states = {slot: self.get_slot(var, slot) for slot in self._slot_dtypes}
        key = (var.device, var.dtype.base_dtype)
        rates = (apply_state or {}).get(key) or self._fallback_apply_state(*key)
        return self._update(grad, var, states, rates["lr_t"])

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        whole = tf.IndexedSlices(grad, indices, tf.shape(var, out_type=indices.dtype))
        return self._resource_apply_dense(tf.convert_to_tensor(whole), var, apply_state)

    def _update(self, gradient: Any, variable: Any, states: dict[str, Any], rate: Any) -> Any:
        """Updates a variable; a graph of TensorFlow 1 runs what is returned, and nothing else."""
        wide = _wide(variable.dtype)
        one = _Step(
            tf.cast(tf.convert_to_tensor(gradient), wide),
            variable_name(variable),
            tf.cast(tf.convert_to_tensor(variable), wide),
            states,
            tf.cast(rate, wide),
            tf.cast(tf.convert_to_tensor(self.iterations) + 1, wide),
            {},
        )
        settings = self._settings
        if not keras_is_3():
            hypers = settings.keys() & set(_HYPERS)
            settings = settings | {hyper: self._get_hyper(hyper, wide) for hyper in hypers}
        change = tf.cast(self._change(one, settings), variable.dtype)
        with tf.control_dependencies([change, *one.changed.values()]):
            return tf.group(
                variable.assign_sub(change),
                *(
                    states[slot].assign(tf.cast(value, states[slot].dtype))
                    for slot, value in one.changed.items()
                ),
            )

    def _change(self, one: _Step, settings: dict[str, Any]) -> Any:
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """The arguments that create the optimizer again."""
        config = super().get_config()
        hypers = {}
        if not keras_is_3():
            names = ("learning_rate", "decay", *(self._settings.keys() & set(_HYPERS)))
            hypers = {name: self._serialize_hyperparameter(name) for name in names}
        dtypes = {
            _DTYPES.get(slot, f"{slot}_dtype"): None if dtype is None else tf.as_dtype(dtype).name
            for slot, dtype in self._slot_dtypes.items()
        }
        return {**config, **self._settings, **hypers, **dtypes}


class SGDIpuOptimizer(_Formula):
    """Gradient descent with momentum, whose state may have a dtype of its own.

    Args:
        learning_rate: A number or a schedule.
        momentum: How much of the last update is added to the next.
        nesterov: Whether Nesterov's momentum is used.
        name: Of the optimizer.
        momentum_accum_dtype: Dtype of the momentum's state; None for the variable's own.
        **kwargs: As for optimizers of Keras.

    Raises:
        OptimizerError: ``momentum`` is not between 0 and 1.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        name: str = "SGD",
        momentum_accum_dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        slots = {"momentum": momentum_accum_dtype} if momentum else {}
        settings = {"momentum": momentum, "nesterov": nesterov}
        super().__init__(learning_rate, name, slots, settings, kwargs)

    def _change(self, one: _Step, settings: dict[str, Any]) -> Any:
        if not one.slots:
            return one.rate * one.gradient
        momentum = settings["momentum"]
        # The learning rate is a part of the state, as in Keras.
        total = momentum * one.held("momentum") - one.rate * one.gradient
        one.changed["momentum"] = total
        return one.rate * one.gradient - momentum * total if settings["nesterov"] else -total


class AdamIpuOptimizer(_Formula):
    """Adam, whose states may have dtypes of their own.

    Args:
        learning_rate: A number or a schedule.
        beta_1: Decay of the average of gradients.
        beta_2: Decay of the average of their squares.
        epsilon: Added to the root of the corrected average of squares, as in Algorithm 1 of the
            paper; Keras adds it before the correction.
        amsgrad: Whether the largest average of squares so far is used.
        name: Of the optimizer.
        m_dtype: Dtype of the average of gradients; None for the variable's own.
        v_dtype: Dtype of the average of squares; None for the variable's own.
        vhat_dtype: Dtype of the largest average of squares; None for the variable's own.
        debiasing: Whether the first averages, which start from zero, are corrected.
        **kwargs: As for optimizers of Keras.

    Raises:
        OptimizerError: A decay is not between 0 and 1.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        name: str = "Adam",
        m_dtype: Any = None,
        v_dtype: Any = None,
        vhat_dtype: Any = None,
        debiasing: bool = True,
        **kwargs: Any,
    ) -> None:
        slots = {"m": m_dtype, "v": v_dtype, **({"vhat": vhat_dtype} if amsgrad else {})}
        settings = {
            "beta_1": beta_1,
            "beta_2": beta_2,
            "epsilon": epsilon,
            "amsgrad": amsgrad,
            "debiasing": debiasing,
        }
        super().__init__(learning_rate, name, slots, settings, kwargs)

    def _change(self, one: _Step, settings: dict[str, Any]) -> Any:
        mean = one.moved("m", settings["beta_1"], one.gradient)
        squares = one.moved("v", settings["beta_2"], tf.square(one.gradient))
        if settings["debiasing"]:
            mean = mean / (1 - settings["beta_1"] ** one.number)
            squares = squares / (1 - settings["beta_2"] ** one.number)
        if settings["amsgrad"]:
            squares = one.changed["vhat"] = tf.maximum(one.held("vhat"), squares)
        return one.rate * mean / (tf.sqrt(squares) + settings["epsilon"])


class LAMBIpuOptimizer(_Formula):
    """LAMB: Adam with a rate for each variable, by its norm and that of its update.

    Args:
        learning_rate: A number or a schedule.
        beta_1: Decay of the average of gradients.
        beta_2: Decay of the average of their squares.
        epsilon: Added to the root of the average of squares.
        weight_decay_rate: Part of a variable that is added to its update.
        exclude_from_weight_decay: Regular expressions; variables whose names they find do not
            decay.
        exclude_from_layer_adaptation: Regular expressions; variables whose names they find have
            the learning rate itself. None for those that do not decay.
        name: Of the optimizer.
        debiasing: Whether the first averages, which start from zero, are corrected.
        m_dtype: Dtype of the average of gradients; None for the variable's own.
        v_dtype: Dtype of the average of squares; None for the variable's own.
        weight_norm_clip: The largest norm of a variable that counts; None for any.
        **kwargs: As for optimizers of Keras.

    Raises:
        OptimizerError: A decay is not between 0 and 1.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay_rate: float = 0.0,
        exclude_from_weight_decay: list[str] | None = None,
        exclude_from_layer_adaptation: list[str] | None = None,
        name: str = "LAMB",
        debiasing: bool = True,
        m_dtype: Any = None,
        v_dtype: Any = None,
        weight_norm_clip: float | None = None,
        **kwargs: Any,
    ) -> None:
        settings = {
            "beta_1": beta_1,
            "beta_2": beta_2,
            "epsilon": epsilon,
            "weight_decay_rate": weight_decay_rate,
            "exclude_from_weight_decay": exclude_from_weight_decay,
            "exclude_from_layer_adaptation": exclude_from_layer_adaptation,
            "debiasing": debiasing,
            "weight_norm_clip": weight_norm_clip,
        }
        super().__init__(learning_rate, name, {"m": m_dtype, "v": v_dtype}, settings, kwargs)

    def _change(self, one: _Step, settings: dict[str, Any]) -> Any:
        mean = one.moved("m", settings["beta_1"], one.gradient)
        squares = one.moved("v", settings["beta_2"], tf.square(one.gradient))
        if settings["debiasing"]:
            mean = mean / (1 - settings["beta_1"] ** one.number)
            squares = squares / (1 - settings["beta_2"] ** one.number)
        update = mean / (tf.sqrt(squares) + settings["epsilon"])
        constant = settings["exclude_from_weight_decay"]
        if not _is_named(one.name, constant):
            update += settings["weight_decay_rate"] * one.value
        unadapted = settings["exclude_from_layer_adaptation"]
        if _is_named(one.name, constant if unadapted is None else unadapted):
            return one.rate * update
        norm, size = tf.norm(one.value), tf.norm(update)
        if settings["weight_norm_clip"] is not None:
            norm = tf.minimum(norm, settings["weight_norm_clip"])
        both = (norm > 0) & (size > 0)
        return one.rate * tf.where(both, norm / tf.where(size > 0, size, 1.0), 1.0) * update


def _is_named(name: str, patterns: list[str] | None) -> bool:
    return any(re.search(pattern, name) for pattern in patterns or ())
