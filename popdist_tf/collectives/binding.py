"""The real Horovod for TensorFlow, imported when it is needed."""

from __future__ import annotations

import sys
from typing import Any

from popdist.errors import BackendError
from popdist_tf.collectives.host import HostCollectives
from popdist_tf.errors import StrategyError


def binding() -> Any:
    """Horovod's TensorFlow binding.

    Returns:
        The module ``horovod.tensorflow``.

    Raises:
        BackendError: It is not installed, or lacks its native extension.
    """
    try:
        import horovod.tensorflow as horovod
    except ImportError as error:
        raise BackendError(
            "PD010",
            "Horovod for TensorFlow cannot be imported",
            value=str(error),
            hint="python -m popdist.horovod_build",
        ) from None
    return horovod


def binding_is_initialised() -> bool:
    """Whether the program has initialised Horovod; does not import it.

    Returns:
        True after ``init`` and before ``shutdown``.
    """
    horovod = sys.modules.get("horovod.tensorflow")
    return horovod is not None and bool(horovod.is_initialized())


def initialised_collectives() -> HostCollectives:
    """The collectives of the Horovod job that the program has initialised.

    Returns:
        The collectives.

    Raises:
        StrategyError: Horovod is not initialised.
    """
    horovod = binding()
    if not horovod.is_initialized():
        raise StrategyError(
            "PD411",
            "Horovod has not been initialised",
            hint="call popdist_tf.ipu.horovod.init() first",
        )
    size = int(horovod.size())
    return HostCollectives(horovod if size > 1 else None, size, int(horovod.rank()))
