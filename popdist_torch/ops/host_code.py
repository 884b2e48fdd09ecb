"""Code that a model runs beside the accelerator, and code that only an IPU can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils import _pytree as pytree

from popdist_torch.errors import NotOnHostError

if TYPE_CHECKING:
    from collections.abc import Callable


class CPU:
    """Calls a function with its tensors on the CPU, from wherever the model runs.

    Gradients flow through it. Results go back to the device of the first tensor.

    Args:
        layer_to_call: The function or module.
        ID: Name of the operation.
    """

    def __init__(self, layer_to_call: Callable[..., Any], ID: str = "") -> None:
        self._layer = layer_to_call
        self._name = ID

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """Calls the function.

        Args:
            *inputs: Its arguments.
            **kwargs: As above.

        Returns:
            What it returned.
        """
        tensors = [
            leaf for leaf in pytree.tree_leaves((inputs, kwargs)) if isinstance(leaf, torch.Tensor)
        ]
        home = tensors[0].device if tensors else torch.device("cpu")
        args, named = pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, (inputs, kwargs))
        result = self._layer(*args, **named)
        return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(home), result)


def custom_op(
    inputs: Any = None,
    name: str = "",
    domain: str = "",
    domain_version: int = 1,
    example_outputs: Any = None,
    attributes: Any = None,
) -> NoReturn:
    """Stands for an operation that was compiled for an IPU, which cannot run here.

    Args:
        inputs: Its tensors.
        name: Its name.
        domain: Its domain.
        domain_version: The domain's version.
        example_outputs: Tensors like its results.
        attributes: Its attributes.

    Raises:
        NotOnHostError: Always.
    """
    del inputs, example_outputs, attributes
    raise NotOnHostError(
        "PD305",
        "custom_op runs compiled IPU code, which a host does not have",
        value=f"{domain}.{name}, version {domain_version}",
        hint="compute it with torch operations where poptorch.ipuHardwareIsAvailable() is False",
    )
