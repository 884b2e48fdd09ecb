"""The published recurrent layers in the style of TensorFlow 1, with time as the first dimension.

A kernel holds the weights of the inputs above those of the outputs; its columns, and the rows of
the biases, are in the published order of gates: forget, input, candidate and output for an LSTM;
reset, update and candidate for a GRU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow.compat.v2 as tf

from popdist_tf.errors import LayerError
from popdist_tf.loops.operations import hard_sigmoid

if TYPE_CHECKING:
    from collections.abc import Callable

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "hard_sigmoid": hard_sigmoid,
    "relu": tf.nn.relu,
    "sigmoid": tf.sigmoid,
    "softmax": tf.nn.softmax,
    "tanh": tf.tanh,
}


class LSTMStateTuple(NamedTuple):
    """The state of an LSTM: cell and output, each of shape ``(batch, num_units)``."""

    c: Any
    h: Any


class _Recurrent:
    """A recurrent layer; its variables are made by the first call.

    Args:
        num_units: Size of the output.
        dtype: Of the variables: float32 or float16.
        partials_dtype: Accepted as published, without effect on a host.
        seed: Of the default initializer of the weights.
        weights_initializer: Where the kernel starts; None for Glorot's uniform one.
        bias_initializer: Where the biases start; None for zeros.
        activation: Of the candidate and the output: "tanh", "relu", "softmax", "sigmoid" or
            "hard_sigmoid".
        recurrent_activation: Of the gates, likewise.
        return_state: Whether the last state is returned beside the outputs.
        name: Of the variables' scope; None for the class's own.
        **published: More published arguments (``options``, ``options_bwd``,
            ``preserve_final_state``), without effect on a host: a sequence's last state is that
            after its last time step.

    Raises:
        LayerError: An argument is not valid.
    """

    _GATES = 0
    _SCOPE = ""

    def __init__(
        self,
        num_units: int,
        dtype: Any = tf.float32,
        partials_dtype: Any = tf.float32,
        seed: int | None = None,
        weights_initializer: Any = None,
        bias_initializer: Any = None,
        activation: str = "tanh",
        recurrent_activation: str = "sigmoid",
        return_state: bool = True,
        name: str | None = None,
        **published: Any,
    ) -> None:
        del partials_dtype
        unknown = set(published) - {"options", "options_bwd", "preserve_final_state"}
        if unknown:
            raise LayerError(
                "PD434",
                f"{type(self).__name__} has no argument of this name",
                value=", ".join(sorted(unknown)),
            )
        self.num_units = num_units
        self.dtype = tf.as_dtype(dtype)
        self.name = name or self._SCOPE
        self.kernel: Any = None
        self.biases: Any = None
        self._weights_start = weights_initializer or tf.keras.initializers.GlorotUniform(seed)
        self._bias_start = bias_initializer or tf.zeros_initializer()
        self._activation = _activation(activation)
        self._recurrent_activation = _activation(recurrent_activation)
        self._returns_state = return_state

    @property
    def variables(self) -> list[Any]:
        """Kernel and biases, once the layer has been called."""
        return [] if self.kernel is None else [self.kernel, self.biases]

    trainable_variables = trainable_weights = weights = variables

    def _bias_shape(self) -> list[int]:
        return [self._GATES, self.num_units]

    def build(self, input_shape: Any) -> None:
        """Creates the variables.

        Args:
            input_shape: Shape ``(time, batch, input size)``.
        """
        if self.kernel is not None:
            return
        size = int(tf.TensorShape(input_shape)[-1])
        shapes = {
            "kernel": ([size + self.num_units, self._GATES * self.num_units], self._weights_start),
            "biases": (self._bias_shape(), self._bias_start),
        }
        made = {name: self._variable(name, *settings) for name, settings in shapes.items()}
        self.kernel, self.biases = made["kernel"], made["biases"]

    def _variable(self, name: str, shape: list[int], start: Any) -> Any:
        if not tf.compat.v1.executing_eagerly_outside_functions():
            with tf.compat.v1.variable_scope(self.name):
                return tf.compat.v1.get_variable(name, shape, self.dtype, start)
        with tf.init_scope():
            return tf.Variable(lambda: start(shape, dtype=self.dtype), name=f"{self.name}/{name}")

    def _run(
        self, inputs: Any, lengths: Any, states: tuple[Any, ...], extras: tuple[Any, ...] = ()
    ) -> tuple[Any, tuple[Any, ...]]:
        """Takes the inputs one time step after the other; ``extras`` have a row for each step."""
        size = int(inputs.shape[-1])
        kernel = tf.convert_to_tensor(self.kernel)
        own, biases = kernel[size:], tf.convert_to_tensor(self.biases)
        projected = tf.tensordot(inputs, kernel[:size], 1)
        lengths = None if lengths is None else tf.cast(lengths, tf.int32)

        def step(held: tuple[Any, ...], elements: tuple[Any, ...]) -> tuple[Any, ...]:
            index, row, *rest = elements
            new = self._step(row, own, biases, held[1:], tuple(rest))
            output = new[-1]
            if lengths is not None:
                counts = (index < lengths)[:, tf.newaxis]
                output = tf.where(counts, output, tf.zeros_like(output))
                new = tuple(
                    tf.where(counts, one, before) for one, before in zip(new, held[1:], strict=True)
                )
            return (output, *new)

        steps = tf.range(tf.shape(inputs)[0])
        outputs, *all_states = tf.scan(
            step, (steps, projected, *extras), (tf.zeros_like(states[-1]), *states)
        )
        return outputs, tuple(one[-1] for one in all_states)

    def _step(
        self, row: Any, own: Any, biases: Any, states: tuple[Any, ...], extras: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        raise NotImplementedError

    def _prepared(self, inputs: Any, training: bool) -> Any:
        del training  # the original keeps intermediate values for the backward pass by it
        inputs = tf.convert_to_tensor(inputs, self.dtype)
        self.build(inputs.shape)
        return inputs

    def _zeros(self, inputs: Any) -> Any:
        return tf.zeros(self.state_shape(tf.shape(inputs)[1]), self.dtype)

    def state_shape(self, batch_size: int) -> Any:
        """The shape of each part of the state.

        Args:
            batch_size: Sequences of a batch.
        """
        return [batch_size, self.num_units]


class PopnnLSTM(_Recurrent):
    """A long short-term memory; see the parameters of all recurrent layers in the module's page."""

    _GATES, _SCOPE = 4, "popnn_lstm"

    def __call__(self, inputs: Any, initial_state: Any = None, training: bool = True) -> Any:
        """Computes the outputs of all time steps.

        Args:
            inputs: Shape ``(time, batch, input size)``.
            initial_state: An `LSTMStateTuple`; None for zeros.
            training: Accepted as published.

        Returns:
            The outputs, of shape ``(time, batch, num_units)``, and the last `LSTMStateTuple`.
        """
        return self._called(inputs, None, initial_state, training)

    def _called(self, inputs: Any, lengths: Any, initial_state: Any, training: bool) -> Any:
        inputs = self._prepared(inputs, training)
        if initial_state is None:
            initial_state = LSTMStateTuple(self._zeros(inputs), self._zeros(inputs))
        outputs, last = self._run(inputs, lengths, tuple(initial_state))
        return (outputs, LSTMStateTuple(*last)) if self._returns_state else outputs

    def _step(
        self, row: Any, own: Any, biases: Any, states: tuple[Any, ...], extras: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        del extras
        cell, output = states
        gates = row + output @ own + tf.reshape(biases, [-1])
        forget, keep, candidate, out = tf.split(gates, 4, axis=1)
        cell = self._recurrent_activation(forget) * cell + self._recurrent_activation(
            keep
        ) * self._activation(candidate)
        return cell, self._recurrent_activation(out) * self._activation(cell)


class PopnnDynamicLSTM(PopnnLSTM):
    """A long short-term memory for sequences of different lengths."""

    _SCOPE = "popnn_dynamic_lstm"

    def __call__(  # type: ignore[override] # published with another second argument
        self, inputs: Any, seq_len: Any, initial_state: Any = None, training: bool = True
    ) -> Any:
        """Computes the outputs of all time steps.

        Args:
            inputs: Shape ``(time, batch, input size)``.
            seq_len: Time steps of each sequence: ``(batch,)``. Later outputs are zeros.
            initial_state: An `LSTMStateTuple`; None for zeros.
            training: Accepted as published.

        Returns:
            As `PopnnLSTM`.
        """
        return self._called(inputs, seq_len, initial_state, training)


class PopnnGRU(_Recurrent):
    """A gated recurrent unit.

    Args:
        num_units: As for `PopnnLSTM`.
        dtype: As for `PopnnLSTM`, like all other arguments.
        partials_dtype: Accepted as published, without effect on a host.
        seed: Of the default initializer of the weights.
        weights_initializer: Where the kernel starts.
        bias_initializer: Where the biases start.
        activation: Of the candidate.
        recurrent_activation: Of the gates.
        return_state: As for `PopnnLSTM`.
        name: Of the variables' scope.
        reset_after: Whether the reset gate multiplies the product of output and weights, instead
            of the output. The biases then have the shape ``(3, 2, num_units)``.
        **settings: As for `PopnnLSTM`.
    """

    _GATES, _SCOPE = 3, "popnn_gru"

    def __init__(
        self,
        num_units: int,
        dtype: Any = tf.float32,
        partials_dtype: Any = tf.float32,
        seed: int | None = None,
        weights_initializer: Any = None,
        bias_initializer: Any = None,
        activation: str = "tanh",
        recurrent_activation: str = "sigmoid",
        return_state: bool = True,
        name: str | None = None,
        reset_after: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(
            num_units, dtype, partials_dtype, seed, weights_initializer, bias_initializer,
            activation, recurrent_activation, return_state, name, **settings,
        )  # fmt: skip
        self._resets_after = reset_after

    def _bias_shape(self) -> list[int]:
        return [3, 2, self.num_units] if self._resets_after else [3, self.num_units]

    def __call__(self, inputs: Any, initial_state: Any = None, training: bool = True) -> Any:
        """Computes the outputs of all time steps.

        Args:
            inputs: Shape ``(time, batch, input size)``.
            initial_state: Shape ``(batch, num_units)``; None for zeros.
            training: Accepted as published.

        Returns:
            The outputs, of shape ``(time, batch, num_units)``, and the last state.
        """
        return self._called(inputs, None, initial_state, training)

    def _called(
        self,
        inputs: Any,
        lengths: Any,
        initial_state: Any,
        training: bool,
        extras: tuple[Any, ...] = (),
    ) -> Any:
        inputs = self._prepared(inputs, training)
        start = self._zeros(inputs) if initial_state is None else initial_state
        outputs, (last,) = self._run(inputs, lengths, (start,), extras)
        return (outputs, last) if self._returns_state else outputs

    def _step(
        self, row: Any, own: Any, biases: Any, states: tuple[Any, ...], extras: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        (output,) = states
        units = self.num_units
        first = tf.unstack(biases[:, 0] if self._resets_after else biases)
        reset_in, update_in, candidate_in = (
            part + bias for part, bias in zip(tf.split(row, 3, axis=1), first, strict=True)
        )
        both = output @ own[:, : 2 * units]
        if self._resets_after:
            both += tf.reshape(biases[:2, 1], [-1])
        reset = self._recurrent_activation(reset_in + both[:, :units])
        update = self._recurrent_activation(update_in + both[:, units:])
        if self._resets_after:
            from_output = reset * (output @ own[:, 2 * units :] + biases[2, 1])
        else:
            from_output = (reset * output) @ own[:, 2 * units :]
        candidate = self._activation(candidate_in + from_output)
        for score in extras:  # of attention
            update *= 1 - score[:, tf.newaxis]
        return (update * output + (1 - update) * candidate,)


class PopnnDynamicGRU(PopnnGRU):
    """A gated recurrent unit for sequences of different lengths."""

    _SCOPE = "popnn_dynamic_gru"

    def __call__(  # type: ignore[override] # published with another second argument
        self,
        inputs: Any,
        seq_len: Any,
        initial_state: Any = None,
        training: bool = True,
        time_major: bool = True,
    ) -> Any:
        """Computes the outputs of all time steps.

        Args:
            inputs: Shape ``(time, batch, input size)``, or with ``(batch, time)`` first.
            seq_len: Time steps of each sequence: ``(batch,)``. Later outputs are zeros.
            initial_state: Shape ``(batch, num_units)``; None for zeros.
            training: Accepted as published.
            time_major: Whether time is the first dimension of inputs, instead of the batch. It is
                that of outputs in any case, as published.

        Returns:
            As `PopnnGRU`.
        """
        return self._in_order(inputs, seq_len, initial_state, training, time_major)

    def _in_order(
        self,
        inputs: Any,
        seq_len: Any,
        initial_state: Any,
        training: bool,
        time_major: bool,
        extras: tuple[Any, ...] = (),
    ) -> Any:
        if not time_major:
            inputs = tf.transpose(inputs, [1, 0, 2])
        return self._called(inputs, seq_len, initial_state, training, extras)


class PopnnAUGRU(PopnnDynamicGRU):
    """A gated recurrent unit whose update gate is weakened by scores of attention."""

    _SCOPE = "popnn_augru"

    def __call__(  # type: ignore[override] # published with another third argument
        self,
        inputs: Any,
        seq_len: Any,
        attention_score: Any,
        initial_state: Any = None,
        training: bool = True,
        time_major: bool = True,
    ) -> Any:
        """Computes the outputs of all time steps.

        Args:
            inputs: Shape ``(time, batch, input size)``, or with ``(batch, time)`` first.
            seq_len: Time steps of each sequence: ``(batch,)``. Later outputs are zeros.
            attention_score: Shape ``(time, batch)``, or ``(batch, time)`` without ``time_major``;
                the update gate is multiplied by one minus it.
            initial_state: Shape ``(batch, num_units)``; None for zeros.
            training: Accepted as published.
            time_major: As for `PopnnDynamicGRU`.

        Returns:
            As `PopnnGRU`.
        """
        scores = tf.cast(attention_score, self.dtype)
        scores = scores if time_major else tf.transpose(scores)
        return self._in_order(inputs, seq_len, initial_state, training, time_major, (scores,))


def _activation(name: str) -> Callable[[Any], Any]:
    if name not in _ACTIVATIONS:
        raise LayerError(
            "PD434",
            "a recurrent layer has no activation of this name",
            value=name,
            accepted=", ".join(_ACTIVATIONS),
        )
    return _ACTIVATIONS[name]
