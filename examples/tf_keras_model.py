"""The network of both Keras examples, and what they check at the end."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

import popdist_tf.keras as hvd

if TYPE_CHECKING:
    import digits

LOWEST_ACCURACY = 0.9


def network(side: int) -> Any:
    """A small convolutional network for images of ``side`` by ``side`` pixels."""
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input((side, side, 1)),
            tf.keras.layers.Conv2D(16, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def check(model: Any, test: digits.Part, loss: float) -> int:
    """Prints what came out, alike on every rank; the exit code says whether it is good."""
    weights = b"".join(np.asarray(weight).tobytes() for weight in model.get_weights())
    digest = hashlib.sha256(weights).digest()
    digests = hvd.allgather(tf.constant([list(digest)], tf.int32)).numpy()
    are_equal = bool((digests == digests[0]).all())
    answers = model(test.images[..., None], training=False).numpy().argmax(axis=-1)
    accuracy = float((answers == test.labels).mean())
    good = are_equal and accuracy >= LOWEST_ACCURACY
    print(
        f"rank {hvd.rank()} of {hvd.size()}: loss {loss:.3f}, test accuracy {accuracy:.2%} "
        f"(at least {LOWEST_ACCURACY:.0%}), weights {digest.hex()[:16]} "
        f"{'identical on all ranks' if are_equal else 'DIFFER between ranks'}: "
        f"{'ok' if good else 'FAILED'}",
        flush=True,
    )
    return 0 if good else 1
