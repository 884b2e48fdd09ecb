"""``ipu.scopes``: scopes of device code."""

from typing import Any

from popdist.sdk.surface import missing
from popdist_tf.loops.operations import (
    frontend_attribute,
    ipu_jit_scope,
    ipu_scope,
    ipu_shard,
    outside_compilation_scope,
    partials_type,
    stochastic_rounding,
)

__all__ = [
    "frontend_attribute",
    "ipu_jit_scope",
    "ipu_scope",
    "ipu_shard",
    "outside_compilation_scope",
    "partials_type",
    "stochastic_rounding",
]


def __getattr__(name: str) -> Any:
    return missing(__name__, name)
