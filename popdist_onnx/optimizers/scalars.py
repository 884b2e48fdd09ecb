"""Numbers that an update reads, calculated from settings on the host and named as published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from popdist_onnx.graph import names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Formula = Callable[[Mapping[str, float], float], float]


@dataclass(frozen=True)
class Scalar:
    """A number of the update.

    It is constant where all settings it is made of are, or where one that it is multiplied by is a
    constant 0.

    Attributes:
        prefix: Beginning of its published tensor id.
        settings: Keys of the settings it is made of.
        formula: From the settings' values, and the number of micro-batches that a gradient is the
            mean of (1 with Sum), to the number.
        factor: The setting whose 0 makes the others irrelevant.
    """

    prefix: str
    settings: tuple[str, ...]
    formula: Formula
    factor: str | None = None

    def tensor_id(self, weight: str | None, dtype: str) -> str:
        """The published id.

        Args:
            weight: The weight whose own settings it is made of; None for the default.
            dtype: Name of its element type.

        Returns:
            ``<prefix>___default___<TYPE>`` or ``<prefix>___specific___<weight>``.
        """
        if weight is None:
            return f"{self.prefix}{names.DEFAULT_SCALAR}{dtype}"
        return f"{self.prefix}{names.SPECIFIC_SCALAR}{weight}"


def plain(prefix: str, key: str) -> Scalar:
    """A number that is a setting itself.

    Args:
        prefix: Beginning of its published tensor id.
        key: The setting.

    Returns:
        The scalar.
    """
    return Scalar(prefix, (key,), lambda values, _divisor: values[key])


def owner(tensor_id: str) -> tuple[str, str | None] | None:
    """Takes a scalar's published id apart.

    Args:
        tensor_id: A tensor id.

    Returns:
        The prefix and the weight (None for the default); None where it is not a scalar's id.
    """
    for separator, own in ((names.SPECIFIC_SCALAR, True), (names.DEFAULT_SCALAR, False)):
        prefix, found, rest = tensor_id.partition(separator)
        if found:
            return prefix, rest if own else None
    return None


CLIP_SCALING = Scalar(
    "clipGradientScaling", ("lossScaling",), lambda v, af: 1 / (abs(v["lossScaling"]) * af)
)
"""What the norm of summed, loss-scaled gradients is multiplied by to be that of the mean."""

LOSS_SCALING_INPUT = "lossScaling_"
"""Beginning of the id of the input that carries a loss scaling; its element type follows."""

UPDATE_FACTOR = "lossScaleUpdateFactor"
"""The input that carries what automatic loss scaling multiplies the loss scaling by."""


def is_scalar_input(name: str) -> bool:
    """Whether an input of a graph carries a number of the optimizer, and no data.

    Args:
        name: The input's name.

    Returns:
        True for the published ids of such numbers.
    """
    return name.startswith((LOSS_SCALING_INPUT, UPDATE_FACTOR)) or owner(name) is not None
