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
    epsilon: float = 1e-6,
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
        epsilon: Added to the variance.
        param_initializers: Initializers of ``beta`` and ``gamma``, by name.
        reuse: Whether variables of an earlier call are used.
        variables_collections: Collections of the variables.
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
    inputs = tf.convert_to_tensor(inputs)
    rank = inputs.shape.rank
    axis = channels_axis % rank
    channels = inputs.shape[axis]
    if channels is None or channels % groups:
        raise ValueError(f"{channels} channels cannot be divided into {groups} groups")
    order = [i for i in range(rank) if i != axis]
    last = tf.transpose(inputs, [*order, axis])  # (batch, ..., channels)
    size = channels // groups
    parts = [size, groups] if strided_channel_grouping else [groups, size]
    grouped = tf.reshape(last, tf.concat([tf.shape(last)[:-1], parts], axis=0))
    reduced = [*range(1, rank - 1), rank - 1 if strided_channel_grouping else rank]
    mean, variance = tf.nn.moments(grouped, reduced, keepdims=True)
    normal = (grouped - mean) * tf.math.rsqrt(variance + epsilon)
    result = tf.reshape(normal, tf.shape(last))
    initializers = param_initializers or {}
    with tf.compat.v1.variable_scope(scope, "GroupNorm", [inputs], reuse=reuse):
        ones, zeros = tf.compat.v1.ones_initializer(), tf.compat.v1.zeros_initializer()
        for wanted, name, default in ((scale, "gamma", ones), (center, "beta", zeros)):
            if wanted:
                variable = tf.compat.v1.get_variable(
                    name,
                    [channels],
                    inputs.dtype,
                    initializers.get(name, default),
                    trainable=trainable,
                    collections=variables_collections,
                )
                result = result * variable if name == "gamma" else result + variable
    return tf.transpose(result, [*range(axis), rank - 1, *range(axis, rank - 1)])


def layer_norm(inputs: Any, channels_axis: int = -1, **settings: Any) -> Any:
    """Normalises all channels together.

    Args:
        inputs: As for `group_norm`.
        channels_axis: Where the channels are.
        **settings: As for `group_norm`.

    Returns:
        The normalised tensor.
    """
    return group_norm(inputs, 1, channels_axis, **settings)


def instance_norm(inputs: Any, channels_axis: int = -1, **settings: Any) -> Any:
    """Normalises every channel by itself.

    Args:
        inputs: As for `group_norm`.
        channels_axis: Where the channels are.
        **settings: As for `group_norm`.

    Returns:
        The normalised tensor.
    """
    inputs = tf.convert_to_tensor(inputs)
    return group_norm(inputs, inputs.shape[channels_axis], channels_axis, **settings)
