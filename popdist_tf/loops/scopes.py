"""Scopes of device code: on a host, the replica's own processor."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from popdist_tf.strategies.placement import device_code

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def ipu_scope(device: str) -> Iterator[None]:
    """Code in this scope stands for code on the device.

    Args:
        device: An IPU's name, as published; kept out of TensorFlow's sight, which knows no such
            device.

    Raises:
        ValueError: ``device`` does not name an IPU.
    """
    if "IPU" not in str(device).upper():
        raise ValueError(f"ipu_scope needs the name of an IPU, such as '/device:IPU:0': {device!r}")
    with device_code(), _local_device():
        yield


def _local_device() -> Any:
    if tf.distribute.has_strategy():  # which has set the replica's device already
        return nullcontext()
    gpu = tf.config.list_physical_devices("GPU")
    return tf.device("/device:GPU:0" if gpu else "/device:CPU:0")


@contextmanager
def _without_effect(*_args: Any, **_kwargs: Any) -> Iterator[None]:
    yield


ipu_shard = _without_effect
ipu_jit_scope = _without_effect
frontend_attribute = _without_effect
partials_type = _without_effect
stochastic_rounding = _without_effect
outside_compilation_scope = _without_effect
