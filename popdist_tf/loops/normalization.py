"""Group, layer and instance normalisation with variables of their own, in the style of TF 1."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v2 as tf


def group_norm(
    inputs: Any,
    groups: int = 2,
    channels_axis: int = -1,
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1.53e-5,
    param_initializers: dict[str, Any] | None = None,
    reuse: bool | None = None,
    variables_collections: Any = None,
    training: bool = True,
    trainable: bool = True,
    scope: str | None = None,
    strided_channel_grouping: bool = True,
) -> Any:
    """Normalises groups of channels over all positions.

    Args:
        inputs: Shape ``(batch, ..., channels)`` or with the channels elsewhere.
        groups: Groups that the channels are divided into.
        channels_axis: Where the channels are.
        center: Whether a learnt offset (``beta``) is added.
        scale: Whether a learnt factor (``gamma``) is multiplied.
        epsilon: Added to the variance. SDK 2.2 and before had 1e-6 as the default.
        param_initializers: Initializers of ``beta`` and ``gamma``, by name.
        reuse: Whether variables of an earlier call are used.
        variables_collections: Collections of the variables, of both or by name.
        training: Accepted as published; normalisation is the same in training and inference.
        trainable: Whether the variables are trained.
        scope: Name of the variables' scope.
        strided_channel_grouping: Whether group g holds channels g, g + groups, ... instead of
            neighbours, which is the original's default.

    Returns:
        The normalised tensor, in the shape of ``inputs``.

    Raises:
        ValueError: The channels cannot be divided, or are of unknown number.
    """
    del training
    channels = _channels(tf.convert_to_tensor(inputs), channels_axis)
    if groups > channels:
        raise ValueError(f"Invalid groups {groups} for {channels} channels.")
    if channels % groups:
        raise ValueError(f"{channels} channels is not commensurate with {groups} groups.")
    makes = _Parameters(param_initializers, variables_collections, trainable)
    with tf.compat.v1.variable_scope(scope, "GroupNorm", [inputs], reuse=reuse):
        return makes.scaled(
            inputs, groups, channels_axis, epsilon, center=center, scale=scale,
            is_strided=strided_channel_grouping,
        )  # fmt: skip


def layer_norm(
    inputs: Any,
    channels_axis: int = -1,
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1.53e-5,
    param_initializers: dict[str, Any] | None = None,
    reuse: bool | None = None,
    variables_collections: Any = None,
    training: bool = True,
    trainable: bool = True,
    scope: str | None = None,
) -> Any:
    """Normalises all channels together. The arguments are those of `group_norm`.

    Returns:
        The normalised tensor.

    Raises:
        ValueError: The channels are of unknown number.
    """
    del training
    makes = _Parameters(param_initializers, variables_collections, trainable)
    with tf.compat.v1.variable_scope(scope, "LayerNorm", [inputs], reuse=reuse):
        return makes.scaled(inputs, 1, channels_axis, epsilon, center=center, scale=scale)


def instance_norm(
    inputs: Any,
    channels_axis: int = -1,
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1.53e-5,
    param_initializers: dict[str, Any] | None = None,
    reuse: bool | None = None,
    variables_collections: Any = None,
    training: bool = True,
    trainable: bool = True,
    scope: str | None = None,
) -> Any:
    """Normalises every channel by itself. The arguments are those of `group_norm`.

    Returns:
        The normalised tensor.

    Raises:
        ValueError: The channels are of unknown number.
    """
    del training
    makes = _Parameters(param_initializers, variables_collections, trainable)
    channels = _channels(tf.convert_to_tensor(inputs), channels_axis)
    with tf.compat.v1.variable_scope(scope, "InstanceNorm", [inputs], reuse=reuse):
        return makes.scaled(inputs, channels, channels_axis, epsilon, center=center, scale=scale)


def _channels(inputs: Any, axis: int) -> int:
    rank = inputs.shape.rank
    if rank is None:
        raise ValueError(f"Inputs {inputs.name} has undefined rank.")
    if not -rank <= axis < rank:
        raise ValueError("Axis is out of bounds.")
    channels = inputs.shape[axis]
    if channels is None:
        raise ValueError(f"Inputs {inputs.name} has undefined channel dimension: {axis % rank}.")
    return int(channels)


def _normal(
    inputs: Any, groups: int, channels_axis: int, epsilon: float, *, is_strided: bool
) -> Any:
    """The normalised tensor, before it is scaled."""
    rank = inputs.shape.rank
    axis = channels_axis % rank
    last = tf.transpose(inputs, [*(i for i in range(rank) if i != axis), axis])
    size = inputs.shape[axis] // groups
    parts = [size, groups] if is_strided else [groups, size]
    grouped = tf.reshape(last, tf.concat([tf.shape(last)[:-1], parts], axis=0))
    reduced = [*range(1, rank - 1), rank - 1 if is_strided else rank]
    mean, variance = tf.nn.moments(grouped, reduced, keepdims=True)
    normal = tf.reshape((grouped - mean) * tf.math.rsqrt(variance + epsilon), tf.shape(last))
    return tf.transpose(normal, [*range(axis), rank - 1, *range(axis, rank - 1)])


class _Parameters:
    """Makes the variables of a normalisation, in the scope that the program is in."""

    def __init__(self, initializers: dict[str, Any] | None, collections: Any, trainable: bool):
        self._initializers = initializers or {}
        self._collections = collections
        self._trainable = trainable

    def scaled(
        self, inputs: Any, groups: int, channels_axis: int, epsilon: float,
        *, center: bool, scale: bool, is_strided: bool = False,
    ) -> Any:  # fmt: skip
        """The normalised tensor, multiplied by ``gamma`` and moved by ``beta``."""
        inputs = tf.convert_to_tensor(inputs)
        channels = _channels(inputs, channels_axis)
        normal = _normal(inputs, groups, channels_axis, epsilon, is_strided=is_strided)
        shape = [1] * normal.shape.rank
        shape[channels_axis] = channels
        # `beta` comes first, as in the original: variables have their order in checkpoints.
        beta = self._variable("beta", channels, normal.dtype, 0.0) if center else None
        if scale:
            normal *= tf.reshape(self._variable("gamma", channels, normal.dtype, 1.0), shape)
        return normal if beta is None else normal + tf.reshape(beta, shape)

    def _variable(self, name: str, channels: int, dtype: Any, first: float) -> Any:
        by_name = isinstance(self._collections, dict)
        return tf.compat.v1.get_variable(
            name,
            [channels],
            dtype,
            self._initializers.get(name, tf.compat.v1.constant_initializer(first)),
            trainable=self._trainable,
            collections=self._collections.get(name) if by_name else self._collections,
        )
