"""`getSupportedOperations`: what a model may hold."""

from __future__ import annotations

from typing import NamedTuple

import onnx

from popdist_onnx.lowering import DOMAIN, LOWERINGS


class OperatorIdentifier(NamedTuple):
    """One operator.

    Args:
        domain: Its domain.
        type: Its name.
        version: The opset that its definition is from.
    """

    domain: str
    type: str
    version: int


def getSupportedOperations(includeInternal: bool = False) -> list[OperatorIdentifier]:
    """The operators that a model may hold.

    Args:
        includeInternal: Whether those that only training adds are listed as well.

    Returns:
        All definitions of ``ai.onnx`` that the installed onnx knows and does not deprecate, and
        PopART's operators that a host can run.
    """
    found = [
        OperatorIdentifier("ai.onnx", schema.name, schema.since_version)
        for schema in onnx.defs.get_all_schemas_with_history()
        if not schema.domain and not schema.deprecated
    ]
    internal = ["GradCopyFromHost", "GradCopyToHost"] if includeInternal else []
    found += [OperatorIdentifier(DOMAIN, name, 1) for name in (*LOWERINGS, *internal)]
    return sorted(found)
