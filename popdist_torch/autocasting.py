"""``autocast`` and its policies, which the SDK had to 2.6: accepted without effect.

They chose the precision of layers on the device. On a host the types of the model and of its inputs
choose it, and ``torch.autocast`` where a program uses that.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable


class autocast(ContextDecorator):  # noqa: N801 - published
    """Marks the layers that are called inside, as a context or a decorator of a function.

    Args:
        enabled: Whether the layers choose their precision by the policy.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled

    def __enter__(self) -> None:
        """Begins the marked part."""

    def __exit__(self, *_error: object) -> None:
        """Ends the marked part."""


class Policy:
    """Lists of operators and layers, by the precision in which a device computes them.

    Args:
        fp16: Those in half precision.
        fp32: Those in single precision.
        promote: Those in single precision where their inputs differ.
        demote: Those in half precision where their inputs differ.
    """

    def __init__(
        self,
        fp16: Iterable[Any] | None = None,
        fp32: Iterable[Any] | None = None,
        promote: Iterable[Any] | None = None,
        demote: Iterable[Any] | None = None,
    ) -> None:
        self.fp16 = list(fp16 or ())
        self.fp32 = list(fp32 or ())
        self.promote = list(promote or ())
        self.demote = list(demote or ())


default = Policy([torch.nn.Conv2d, torch.matmul, torch.conv2d], promote=[torch.cat, torch.stack])
"""The policy without another one."""


def mark(module: torch.nn.Module, enabled: bool = True) -> None:
    """``module.autocast()``: marks a module and the layers inside.

    Args:
        module: The module.
        enabled: Whether the layers choose their precision by the policy.
    """
    module._poptorch_autocast = enabled  # type: ignore[assignment]  # noqa: SLF001 - published


def register() -> None:
    """Gives torch's modules the method ``autocast``, unless another package has done so."""
    if not hasattr(torch.nn.Module, "autocast"):
        torch.nn.Module.autocast = mark  # type: ignore[attr-defined]
