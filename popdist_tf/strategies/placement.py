"""Whether code is "on the device", which decides between reductions on devices and on hosts.

On the original hardware `tf.device` told the two apart. Here both run on the same processors, and
what is left of the distinction is how a plain tensor counts: once for each replica of the instance
inside `strategy.run` or an `ipu_scope`, and once for the instance outside.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_on_device: ContextVar[bool] = ContextVar("popdist_on_device", default=False)


def on_device() -> bool:
    """Whether the code that is being built or run stands for device code.

    Returns:
        True inside `strategy.run` and `ipu_scope`.
    """
    return _on_device.get()


@contextmanager
def device_code() -> Iterator[None]:
    """Marks the code in this context as device code."""
    token = _on_device.set(True)
    try:
        yield
    finally:
        _on_device.reset(token)
