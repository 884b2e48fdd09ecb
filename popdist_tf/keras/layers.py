"""The published layers: Keras' own with the published arguments, normalisation, and CTC."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v2 as tf

from popdist_tf.errors import LayerError
from popdist_tf.loops import ctc
from popdist_tf.versions import keras_is_3


class Dropout(tf.keras.layers.Dropout):  # type: ignore[misc]
    """Sets a part of the values to zero in training.

    Args:
        rate: The part, from 0 to below 1.
        noise_shape: Dimensions of size 1 share their decision; None or an empty list, as
            published, for one decision a value.
        seed: An integer, or two as published.
        ref: Accepted as published, without effect on a host.
        **kwargs: As for every layer.

    Raises:
        LayerError: The rate is out of its range.
    """

    def __init__(
        self,
        rate: float = 0.5,
        noise_shape: Any = None,
        seed: Any = None,
        ref: bool = True,
        **kwargs: Any,
    ) -> None:
        del ref
        if not 0 <= rate < 1:
            raise LayerError("PD434", f"The rate must be in the range [0, 1), but was {rate}")
        if seed is not None and not isinstance(seed, int):
            first, second = (int(one) for one in seed)
            seed = (first * 1_000_003 + second) % 2**31
        super().__init__(rate, noise_shape=noise_shape or None, seed=seed, **kwargs)


class Embedding(tf.keras.layers.Embedding):  # type: ignore[misc]
    """The rows of a table.

    Args:
        input_dim: Rows of the table.
        output_dim: Size of a row.
        embeddings_initializer: Where the table starts.
        embeddings_regularizer: As for the layer of Keras; refused by the original.
        activity_regularizer: As for the layer of Keras; refused by the original.
        embeddings_constraint: As for the layer of Keras; refused by the original.
        mask_zero: As for the layer of Keras; refused by the original.
        input_length: Accepted as published, without effect on a host.
        serialization_factor: Accepted as published, without effect on a host.
        **kwargs: As for every layer.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        activity_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        input_length: int | None = None,
        serialization_factor: int = 1,
        **kwargs: Any,
    ) -> None:
        del input_length, serialization_factor
        super().__init__(
            input_dim,
            output_dim,
            embeddings_initializer=embeddings_initializer,
            embeddings_regularizer=embeddings_regularizer,
            embeddings_constraint=embeddings_constraint,
            mask_zero=mask_zero,
            activity_regularizer=activity_regularizer,
            **kwargs,
        )

    def call(self, inputs: Any, inputs_are_sorted: bool = False, training: Any = None) -> Any:
        """The rows of some numbers.

        Args:
            inputs: The numbers.
            inputs_are_sorted: Accepted as published, without effect on a host.
            training: Accepted as published; it is the same in training.
        """
        del inputs_are_sorted, training
        return super().call(inputs)


def _recurrent_settings(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of Keras' recurrent layers for the published ones."""
    for name in ("partials_dtype", "options", "options_bwd"):
        kwargs.pop(name, None)
    seed = kwargs.pop("seed", None)
    if seed is not None:
        initializers = tf.keras.initializers
        for name, kind, default in (
            ("kernel_initializer", initializers.GlorotUniform, "glorot_uniform"),
            ("recurrent_initializer", initializers.Orthogonal, "orthogonal"),
        ):
            if kwargs.get(name, default) == default:
                kwargs[name] = kind(seed=seed)
    if keras_is_3() and kwargs.pop("time_major", False):
        raise LayerError(
            "PD434",
            "recurrent layers of Keras 3 have the batch as their first dimension",
            value="time_major=True",
            hint="transpose the inputs, or use ipu.rnn_ops.PopnnLSTM",
        )
    return kwargs


class _InputDropout:
    """A recurrent layer with one decision for all time steps and gates, as published.

    Keras makes one for each step, for each gate, or for all of them, as it computes the layer.
    """

    def __init__(
        self, units: int, dropout: float = 0.0, dropout_seed: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(units, **_recurrent_settings(kwargs))  # type: ignore[call-arg]
        self._dropouts = {"dropout": dropout, "dropout_seed": dropout_seed}
        shared = (1, None, None) if kwargs.get("time_major") else (None, 1, None)
        self._input_dropout = Dropout(dropout, shared, dropout_seed)

    def _dropped(self, inputs: Any, training: Any, **others: Any) -> Any:
        # Keras 2 hands over states that are tensors of Keras behind the sequence.
        sequence, *states = inputs if isinstance(inputs, list | tuple) else (inputs,)
        sequence = self._input_dropout(sequence, training=training)
        inputs = [sequence, *states] if states else sequence
        return super().call(inputs, training=training, **others)  # type: ignore[misc]

    # Keras reads the names of these arguments.
    if keras_is_3():

        def call(
            self, sequences: Any, initial_state: Any = None, mask: Any = None, training: Any = False
        ) -> Any:
            """The outputs of a sequence, as the layer of Keras returns them."""
            return self._dropped(sequences, training, mask=mask, initial_state=initial_state)

    else:

        def call(  # type: ignore[misc]
            self, inputs: Any, mask: Any = None, training: Any = None, initial_state: Any = None
        ) -> Any:
            """The outputs of a sequence, as the layer of Keras returns them."""
            return self._dropped(inputs, training, mask=mask, initial_state=initial_state)

    def get_config(self) -> dict[str, Any]:
        """The arguments that create the layer again."""
        return {**super().get_config(), **self._dropouts}  # type: ignore[misc]


class LSTM(_InputDropout, tf.keras.layers.LSTM):  # type: ignore[misc]
    """A long short-term memory.

    Args:
        units: Size of the output.
        dropout: The part of the inputs that training sets to zero, the same for all time steps.
        dropout_seed: Two integers, of the decisions; None for others in each program.
        **kwargs: As for the layer of Keras. ``seed`` is that of the default initializers;
            ``partials_dtype``, ``options`` and ``options_bwd`` are without effect on a host.

    Raises:
        LayerError: ``time_major`` with Keras 3.
    """


class GRU(_InputDropout, tf.keras.layers.GRU):  # type: ignore[misc]
    """A gated recurrent unit, by default with the reset gate before the product, as published.

    Args:
        units: Size of the output.
        reset_after: Whether the reset gate comes after the product, as in Keras.
        **kwargs: As for `LSTM`.

    Raises:
        LayerError: ``time_major`` with Keras 3.
    """

    def __init__(self, units: int, reset_after: bool = False, **kwargs: Any) -> None:
        super().__init__(units, reset_after=reset_after, **kwargs)


PopnnLSTM, PopnnGRU = LSTM, GRU

_SERIAL = ("input_columns", "input_rows_kernel_columns", "kernel_rows")


class SerialDense(tf.keras.layers.Dense):  # type: ignore[misc]
    """A dense layer whose product the original computes in parts; the result is the same.

    Args:
        units: Size of the output.
        serialization_factor: Parts of the product.
        serialization_dimension: Which dimension is divided: "input_columns",
            "input_rows_kernel_columns" or "kernel_rows".
        *args: As for Keras' dense layer, from ``activation`` on.
        **kwargs: As for Keras' dense layer.

    Raises:
        LayerError: The dimension does not exist, or cannot be divided into the parts.
    """

    def __init__(
        self,
        units: int,
        serialization_factor: int,
        serialization_dimension: str,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if serialization_dimension not in _SERIAL:
            raise LayerError(
                "PD434",
                "SerialDense cannot divide this dimension",
                value=serialization_dimension,
                accepted=", ".join(_SERIAL),
            )
        super().__init__(units, *args, **kwargs)
        self.serialization_factor = serialization_factor
        self.serialization_dimension = serialization_dimension

    def build(self, input_shape: Any) -> None:
        """Creates the variables.

        Args:
            input_shape: Shape of the inputs.
        """
        sizes = {"input_rows_kernel_columns": input_shape[-1], "kernel_rows": self.units}
        size = sizes.get(self.serialization_dimension)
        if size is not None and int(size) % self.serialization_factor:
            raise LayerError(
                "PD434",
                f"SerialDense cannot divide {self.serialization_dimension} into equal parts",
                value=f"{size} in {self.serialization_factor} parts",
            )
        super().build(input_shape)

    def get_config(self) -> dict[str, Any]:
        """The arguments that create the layer again."""
        return {
            **super().get_config(),
            "serialization_factor": self.serialization_factor,
            "serialization_dimension": self.serialization_dimension,
        }


class AssumeEqualAcrossReplicas(tf.keras.layers.Layer):  # type: ignore[misc]
    """Returns its inputs: the original notes that they are the same on every replica.

    Args:
        inplace: Accepted as published.
        **kwargs: As for every layer.
    """

    def __init__(self, inplace: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._inplace = inplace

    def call(self, inputs: Any) -> Any:
        """The inputs.

        Args:
            inputs: A tensor, or a structure of tensors.
        """
        return tf.nest.map_structure(tf.identity, inputs)

    def get_config(self) -> dict[str, Any]:
        """The arguments that create the layer again."""
        return {**super().get_config(), "inplace": self._inplace}


class RecomputationCheckpoint(tf.keras.layers.Layer):  # type: ignore[misc]
    """Returns its inputs: the original computes what comes before it again in the backward pass."""

    def call(self, inputs: Any) -> Any:
        """The inputs.

        Args:
            inputs: A tensor, or a structure of tensors.
        """
        return tf.nest.map_structure(tf.identity, inputs)


class _Ctc(tf.keras.layers.Layer):  # type: ignore[misc]
    """What the layers of sequences without alignment share: their arguments."""

    def __init__(self, settings: dict[str, Any], kwargs: dict[str, Any]) -> None:
        super().__init__(**kwargs)
        self._settings = settings

    def get_config(self) -> dict[str, Any]:
        """The arguments that create the layer again."""
        return {**super().get_config(), **self._settings}


class CTCLoss(_Ctc):
    """The loss of sequences of labels, as a layer.

    Args:
        blank_index: The class of no label.
        from_logits: Whether the data are logits, instead of logarithms of probabilities.
        **kwargs: As for every layer.
    """

    def __init__(self, blank_index: int = 0, from_logits: bool = False, **kwargs: Any) -> None:
        super().__init__({"blank_index": blank_index, "from_logits": from_logits}, kwargs)

    def call(self, labels: Any, data: Any, label_length: Any, data_length: Any) -> Any:
        """The losses.

        Args:
            labels: Shape ``(batch, longest labels)``.
            data: Shape ``(longest time, batch, classes)``.
            label_length: Labels of each sequence.
            data_length: Time steps of each sequence.

        Returns:
            Shape ``(batch,)``: negative logarithms of the labels' probabilities.
        """
        loss = ctc.ctc_loss_v2 if self._settings["from_logits"] else ctc.ctc_loss_with_log_probs
        return loss(
            tf.cast(labels, tf.int32),
            data,
            tf.reshape(label_length, [-1]),
            tf.reshape(data_length, [-1]),
            self._settings["blank_index"],
        )


class CTCInferenceLayer(_Ctc):
    """The most likely sequences of labels.

    Args:
        blank_index: The class of no label.
        beam_width: How many beginnings of sequences are kept in each time step.
        top_paths: How many sequences are returned.
        from_logits: Whether the data are logits, instead of logarithms of probabilities.
        **kwargs: As for every layer.
    """

    def __init__(
        self,
        blank_index: int = 0,
        beam_width: int = 100,
        top_paths: int = 1,
        from_logits: bool = False,
        **kwargs: Any,
    ) -> None:
        settings = {
            "blank_index": blank_index,
            "beam_width": beam_width,
            "top_paths": top_paths,
            "from_logits": from_logits,
        }
        super().__init__(settings, kwargs)

    def call(self, data: Any, data_length: Any) -> Any:
        """The sequences.

        Args:
            data: Shape ``(longest time, batch, classes)``.
            data_length: Time steps of each sequence.

        Returns:
            Negative logarithms of probabilities, lengths and labels, as
            `ipu.nn_ops.ctc_beam_search_decoder` returns them.
        """
        return self._decoded(data, data_length)

    def _decoded(self, data: Any, data_length: Any) -> tuple[Any, Any, Any]:
        settings = self._settings
        return ctc.ctc_beam_search_decoder(
            data,
            tf.reshape(data_length, [-1]),
            settings["beam_width"],
            settings["top_paths"],
            settings["blank_index"],
        )


class CTCPredictionsLayer(CTCInferenceLayer):
    """The most likely sequence of labels.

    Args:
        **settings: As for `CTCInferenceLayer`.
    """

    def call(self, data: Any, data_length: Any) -> Any:
        """The sequence.

        Args:
            data: Shape ``(longest time, batch, classes)``.
            data_length: Time steps of each sequence.

        Returns:
            Labels of shape ``(batch, longest time)``, filled up with the blank label.
        """
        return self._decoded(data, data_length)[2][:, 0]


class GroupNormalization(tf.keras.layers.Layer):  # type: ignore[misc]
    """Normalises groups of channels over all positions.

    Args:
        groups: Groups that the channels are divided into.
        channels_axis: Where the channels are.
        center: Whether a learnt offset (``beta``) is added.
        scale: Whether a learnt factor (``gamma``) is multiplied.
        epsilon: Added to the variance.
        beta_initializer: Where the offset starts; None for zeros.
        gamma_initializer: Where the factor starts; None for ones.
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
        beta_initializer: Any = None,
        gamma_initializer: Any = None,
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
            "beta_initializer": beta_initializer or "zeros",
            "gamma_initializer": gamma_initializer or "ones",
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

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Normalises.

        Args:
            inputs: Shape ``(batch, ..., channels)`` or with the channels elsewhere.
            training: Accepted as published; it is the same in training.

        Returns:
            The normalised tensor, in the shape of ``inputs``.
        """
        del training
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


class LayerNormalization(tf.keras.layers.LayerNormalization):  # type: ignore[misc]
    """Normalises over one or several axes, as the layer of Keras: each position by itself.

    Args:
        axis: An axis, or several.
        epsilon: Added to the variance.
        center: Whether a learnt offset (``beta``) is added.
        scale: Whether a learnt factor (``gamma``) is multiplied.
        beta_initializer: Where the offset starts; None for zeros.
        gamma_initializer: Where the factor starts; None for ones.
        **kwargs: As for the layer of Keras.
    """

    def __init__(
        self,
        axis: Any = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            axis=axis,
            epsilon=epsilon,
            center=center,
            scale=scale,
            beta_initializer=beta_initializer or "zeros",
            gamma_initializer=gamma_initializer or "ones",
            **kwargs,
        )

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Normalises.

        Args:
            inputs: A tensor.
            training: Accepted as published; it is the same in training.
        """
        del training
        return super().call(inputs)


class InstanceNormalization(GroupNormalization):
    """Normalises every channel by itself.

    Args:
        channels_axis: As for `GroupNormalization`, like all other arguments.
        center: Whether a learnt offset is added.
        scale: Whether a learnt factor is multiplied.
        epsilon: Added to the variance.
        beta_initializer: Where the offset starts; None for zeros.
        gamma_initializer: Where the factor starts; None for ones.
        **settings: More arguments of `GroupNormalization`, except for ``groups``.
    """

    def __init__(
        self,
        channels_axis: int = -1,
        center: bool = True,
        scale: bool = True,
        epsilon: float = 1e-3,
        beta_initializer: Any = None,
        gamma_initializer: Any = None,
        **settings: Any,
    ) -> None:
        settings.pop("groups", None)  # of a saved layer
        super().__init__(
            1, channels_axis, center, scale, epsilon, beta_initializer, gamma_initializer,
            **settings,
        )  # fmt: skip
        self._groups = None


GroupNorm, LayerNorm, InstanceNorm = GroupNormalization, LayerNormalization, InstanceNormalization
