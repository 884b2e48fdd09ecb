"""The published layers: Keras' own where they compute the same, and group normalisation."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

Dropout = tf.keras.layers.Dropout
Embedding = tf.keras.layers.Embedding
LSTM = PopnnLSTM = tf.keras.layers.LSTM
GRU = PopnnGRU = tf.keras.layers.GRU


class GroupNormalization(tf.keras.layers.Layer):  # type: ignore[misc]
    """Normalises groups of channels over all positions.

    Args:
        groups: Groups that the channels are divided into.
        channels_axis: Where the channels are.
        center: Whether a learnt offset (``beta``) is added.
        scale: Whether a learnt factor (``gamma``) is multiplied.
        epsilon: Added to the variance.
        beta_initializer: Where the offset starts.
        gamma_initializer: Where the factor starts.
        strided_channel_grouping: Whether group g holds channels g, g + groups, ... instead of
            neighbours, which is the original's default.
        trainable: Whether offset and factor are trained.
        **kwargs: As for every layer.
    """

    def __init__(
        self,
        groups: int = 2,
        channels_axis: int = -1,
        center: bool = True,
        scale: bool = True,
        epsilon: float = 1e-3,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        strided_channel_grouping: bool = True,
        trainable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable=trainable, **kwargs)
        self._settings = {
            "groups": groups,
            "channels_axis": channels_axis,
            "center": center,
            "scale": scale,
            "epsilon": epsilon,
            "beta_initializer": beta_initializer,
            "gamma_initializer": gamma_initializer,
            "strided_channel_grouping": strided_channel_grouping,
        }
        self._groups: int | None = groups
        self.gamma: Any = None
        self.beta: Any = None

    def build(self, input_shape: Any) -> None:
        """Creates the variables.

        Args:
            input_shape: Shape of the inputs.

        Raises:
            ValueError: The channels cannot be divided into the groups.
        """
        channels = input_shape[self._settings["channels_axis"]]
        groups = channels if self._groups is None else self._groups
        if channels is None or channels % groups:
            raise ValueError(f"{channels} channels cannot be divided into {groups} groups")
        for wanted, name in (("scale", "gamma"), ("center", "beta")):
            if self._settings[wanted]:
                start = self._settings[f"{name}_initializer"]
                weight = self.add_weight(name=name, shape=(channels,), initializer=start)
                setattr(self, name, weight)
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        """Normalises.

        Args:
            inputs: Shape ``(batch, ..., channels)`` or with the channels elsewhere.

        Returns:
            The normalised tensor, in the shape of ``inputs``.
        """
        rank = inputs.shape.rank if hasattr(inputs.shape, "rank") else len(inputs.shape)
        axis = self._settings["channels_axis"] % rank
        order = [*(i for i in range(rank) if i != axis), axis]
        last = tf.transpose(inputs, order)
        channels = inputs.shape[axis]
        groups = channels if self._groups is None else self._groups
        strided = self._settings["strided_channel_grouping"]
        parts = [channels // groups, groups] if strided else [groups, channels // groups]
        grouped = tf.reshape(last, tf.concat([tf.shape(last)[:-1], parts], axis=0))
        reduced = [*range(1, rank - 1), rank - 1 if strided else rank]
        mean, variance = tf.nn.moments(grouped, reduced, keepdims=True)
        normal = (grouped - mean) * tf.math.rsqrt(variance + self._settings["epsilon"])
        result = tf.reshape(normal, tf.shape(last))
        if self.gamma is not None:
            result = result * tf.convert_to_tensor(self.gamma)
        if self.beta is not None:
            result = result + tf.convert_to_tensor(self.beta)
        return tf.transpose(result, [order.index(i) for i in range(rank)])

    def get_config(self) -> dict[str, Any]:
        """The arguments that create the layer again."""
        return {**super().get_config(), **self._settings}


class LayerNormalization(GroupNormalization):
    """Normalises all channels together, as `GroupNormalization` with one group.

    Args:
        **settings: As for `GroupNormalization`, without ``groups``.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "groups": 1})


class InstanceNormalization(GroupNormalization):
    """Normalises every channel by itself.

    Args:
        **settings: As for `GroupNormalization`, without ``groups``.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "groups": 1})
        self._groups = None


GroupNorm, LayerNorm, InstanceNorm = GroupNormalization, LayerNormalization, InstanceNormalization
