"""What PopTorch programs ask about IPUs; an ordinary host has none."""

from __future__ import annotations

from typing import NoReturn

from popdist_torch.errors import NotOnHostError
from popdist_torch.options.checks import whole_number


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Whether there are so many IPUs.

    Programs ask to choose between the IPU and something else; here the something else is right.
    Wrapped models run either way.

    Args:
        num_ipus: Their number.

    Returns:
        False.
    """
    whole_number("ipuHardwareIsAvailable", num_ipus, least=1)
    return False


def ipuHardwareVersion() -> NoReturn:
    """Which generation of IPU there is.

    Raises:
        NotOnHostError: Always: there is none, which raises in PopTorch too.
    """
    raise NotOnHostError(
        "PD305",
        "there is no IPU whose version could be told",
        hint="ask ipuHardwareIsAvailable() first",
    )
