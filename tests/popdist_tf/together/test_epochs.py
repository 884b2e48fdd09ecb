"""Ends of a Keras training in the middle of an epoch: who is asked, and what is said."""

import types

import pytest
import tensorflow as tf

from popdist_tf.errors import AgreementError
from popdist_tf.together.epochs import _acts_between_steps, _SameEnd

keras = tf.keras.callbacks


class Logs(keras.Callback):
    def on_epoch_end(self, epoch, logs=None): ...


class Batches(keras.Callback):
    def on_train_batch_end(self, batch, logs=None): ...


class OldBatches(Batches):
    def on_batch_begin(self, batch, logs=None): ...


class MoreBatches(keras.ModelCheckpoint):
    def on_train_batch_end(self, batch, logs=None): ...


@pytest.mark.parametrize(
    ("callback", "acts"),
    [
        (Logs(), False),
        (Batches(), True),
        (OldBatches(), True),
        (MoreBatches("x.weights.h5", save_weights_only=True), True),
        (keras.TerminateOnNaN(), True),
        (keras.LambdaCallback(on_epoch_end=lambda *_: None), False),
        (keras.LambdaCallback(on_train_batch_end=lambda *_: None), True),
        (keras.EarlyStopping(), False),
        (keras.ModelCheckpoint("x.weights.h5", save_weights_only=True), False),
    ],
)
def test_callbacks_that_may_end_an_epoch(callback, acts):
    assert _acts_between_steps(callback) == acts


def end(*, asks, stops, others=0, steps=4):
    callback = _SameEnd(3, lambda own: own + others, asks=asks)
    callback.set_params({"steps": steps})
    model = types.SimpleNamespace(stop_training=stops)
    # Keras 3 has a property without a setter.
    callback.set_model(model)
    callback.on_epoch_begin(5)
    return callback


@pytest.mark.parametrize(("stops", "others"), [(False, 0), (True, 2)])
def test_all_or_nobody_may_leave(stops, others):
    end(asks=True, stops=stops, others=others).on_train_batch_end(1)


@pytest.mark.parametrize(("stops", "others", "does"), [(True, 0, "ends"), (False, 2, "continues")])
def test_some_may_not_leave(stops, others, does):
    count = others + stops
    with pytest.raises(AgreementError, match="PD007") as caught:
        end(asks=True, stops=stops, others=others).on_train_batch_end(1)
    assert f"{count} of 3 instances end it after step 2 of epoch 5; this one {does}" in str(
        caught.value
    )


def test_who_leaves_where_nobody_asks_says_so():
    with pytest.raises(AgreementError, match="PD007"):
        end(asks=False, stops=True).on_train_batch_end(1)
    with pytest.raises(AgreementError, match="PD007"):
        end(asks=False, stops=True, steps=None).on_train_batch_end(3)
    end(asks=False, stops=True).on_train_batch_end(3)  # the last step: compared after the epoch
    end(asks=False, stops=False).on_train_batch_end(1)
