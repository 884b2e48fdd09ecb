"""``Options.Precision``: number formats of an IPU; on a host the model's dtypes decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_torch.errors import OptionValueError
from popdist_torch.options.checks import flag
from popdist_torch.options.effects import stored_only
from popdist_torch.options.storage import OptionsDict

if TYPE_CHECKING:
    import torch


class PrecisionOptions(OptionsDict):
    """Options of the device's arithmetic."""

    def setPartialsType(self, dtype: torch.dtype) -> PrecisionOptions:
        """Stores the type of partial sums.

        Args:
            dtype: ``torch.float`` or ``torch.half``.

        Returns:
            These options.

        Raises:
            OptionValueError: Another type.
        """
        import torch

        names = {torch.float: "float", torch.half: "half"}
        if dtype not in names:
            raise OptionValueError(
                "PD300",
                "setPartialsType takes a type of partial sums",
                value=dtype,
                accepted="torch.float or torch.half",
            )
        stored_only("Precision.setPartialsType")
        self.createOrSet(partials_type=names[dtype])
        return self

    def enableStochasticRounding(self, enabled: bool) -> PrecisionOptions:
        """Stores whether the device rounds to half precision at random.

        Args:
            enabled: Whether it does.

        Returns:
            These options.
        """
        stored_only("Precision.enableStochasticRounding")
        self.createOrSet(stochastic_rounding=flag("enableStochasticRounding", enabled))
        return self

    def enableFloatingPointExceptions(self, enabled: bool) -> PrecisionOptions:
        """Stores whether the device stops at overflows and undefined results.

        Args:
            enabled: Whether it does.

        Returns:
            These options.
        """
        stored_only("Precision.enableFloatingPointExceptions")
        self.createOrSet(floating_point_exceptions=flag("enableFloatingPointExceptions", enabled))
        return self

    def runningStatisticsAlwaysFloat(self, enabled: bool) -> PrecisionOptions:
        """Stores whether running statistics are kept in single precision.

        Args:
            enabled: Whether they are.

        Returns:
            These options.
        """
        stored_only("Precision.runningStatisticsAlwaysFloat")
        self.createOrSet(
            running_statistics_always_float=flag("runningStatisticsAlwaysFloat", enabled)
        )
        return self
