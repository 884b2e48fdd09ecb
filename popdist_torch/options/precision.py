"""``Options.Precision``: number formats of an IPU; on a host the model's dtypes decide."""

from __future__ import annotations

from typing import Any

import torch

from popdist_torch.errors import OptionValueError
from popdist_torch.options.checks import flag
from popdist_torch.options.settings import Setting
from popdist_torch.options.storage import OptionsDict

_PARTIALS = {torch.float: "float", torch.half: "half"}


def _partials(name: str, dtype: Any) -> str:
    if dtype not in _PARTIALS:
        raise OptionValueError(
            "PD300",
            f"{name} takes a type of partial sums",
            value=dtype,
            accepted="torch.float or torch.half",
        )
    return _PARTIALS[dtype]


class PrecisionOptions(OptionsDict):
    """Options of the device's arithmetic."""

    path = "Precision."

    setPartialsType = Setting(
        "The type of partial sums, ``torch.float`` or ``torch.half``.",
        "dtype",
        "partials_type",
        _partials,
    )
    enableStochasticRounding = Setting(
        "Whether the device rounds to half precision at random.",
        "enabled",
        "stochastic_rounding",
        flag,
    )
    enableFloatingPointExceptions = Setting(
        "Whether the device stops at overflows and undefined results.",
        "enabled",
        "floating_point_exceptions",
        flag,
    )
    halfFloatCasting = Setting(
        "How half and single precision combine; without effect in PopTorch too since SDK 3.",
        "half_float_casting",
        "half_float_casting",
        lambda _name, value: value,
    )
    runningStatisticsAlwaysFloat = Setting(
        "Whether running statistics are kept in single precision.",
        "value",
        "running_statistics_always_float",
        flag,
    )
    autocastEnabled = Setting(
        "Whether operations choose their precision by a policy (to SDK 2.6).",
        "autocast_enabled",
        "autocast_enabled",
        flag,
    )
    autocastPolicy = Setting(
        "The policy of ``autocastEnabled`` (to SDK 2.6).",
        "autocast_policy",
        "autocast_policy",
        lambda _name, policy: policy,
    )
