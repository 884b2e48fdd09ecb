"""``poptorch.custom_op``: operators that programs compile for an IPU, by functions of a host."""

from __future__ import annotations

from typing import Any

import torch

from popdist_torch.errors import CustomOperatorError
from popdist_torch.ops.custom import known as _known
from popdist_torch.ops.custom import replicas as _replicas
from popdist_torch.ops.custom.registry import REGISTRY, Call, host_op

__all__ = ["Call", "custom_op", "host_op"]

_REGISTERED = (_known, _replicas)


def custom_op(
    inputs: Any = None,
    name: str = "",
    domain: str = "",
    domain_version: int = 1,
    example_outputs: Any = None,
    attributes: Any = None,
) -> list[torch.Tensor]:
    """Computes an operation that a program has compiled for an IPU, with its function of a host.

    Args:
        inputs: Its tensors.
        name: Its name.
        domain: Its domain.
        domain_version: The domain's version.
        example_outputs: Tensors like its results.
        attributes: Its attributes.

    Returns:
        Its results.

    Raises:
        CustomOperatorError: No function is registered (see `host_op`), or it returned another
            number of results than there are examples.
    """
    function = REGISTRY.find(name, domain, domain_version)
    examples = list(example_outputs or ())
    found = function(Call(list(inputs or ()), attributes or {}, examples))
    results = [found] if isinstance(found, torch.Tensor) else list(found)
    if len(results) != len(examples):
        raise CustomOperatorError(
            "PD362",
            f"the host function of {domain}.{name} returned another number of tensors than there "
            "are example_outputs",
            value=len(results),
            accepted=str(len(examples)),
        )
    return results
