"""Host functions of custom operators, by the names that `poptorch.custom_op` calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from popdist import host_functions
from popdist.nearest import did_you_mean
from popdist_torch.errors import CustomOperatorError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    Function = Callable[["Call"], Any]


class Call(NamedTuple):
    """One call of a custom operator.

    Attributes:
        inputs: Its tensors.
        attributes: Its attributes.
        example_outputs: Tensors with the shapes and types of its results.
    """

    inputs: Sequence[torch.Tensor]
    attributes: Mapping[str, Any]
    example_outputs: Sequence[torch.Tensor]


class Registry:
    """Host functions by domain, name and version."""

    def __init__(self) -> None:
        self._functions: dict[tuple[str, str, int], Function] = {}
        self._loaded = False

    def add(self, function: Function, name: str, domain: str, version: int) -> None:
        """Registers a function; it replaces an earlier one of the same name."""
        self._functions[domain, name, version] = function

    def find(self, name: str, domain: str, version: int) -> Function:
        """The function of an operator.

        Raises:
            CustomOperatorError: There is none.
        """
        self._load()
        function = self._functions.get((domain, name, version))
        if function is not None:
            return function
        known = [".".join(key[:2]) for key in self._functions]
        near = did_you_mean(f"{domain}.{name}", known, shown="{}")
        raise CustomOperatorError(
            "PD360",
            "custom_op runs compiled IPU code, which a host does not have, and no host function is "
            "registered for this operator",
            value=f"{domain}.{name}, version {version}",
            accepted=", ".join(sorted(known)),
            hint=near
            or f"compute it with torch in a file, @popdist_torch.host_op({name!r}, {domain!r}, "
            f"{version}) on a function of one argument, and name the file in "
            f"{host_functions.VARIABLE}",
        )

    def _load(self) -> None:
        """Imports what the variable names, at the first call of an operator."""
        if self._loaded:
            return
        self._loaded = True
        for source in host_functions.sources():
            _run(source)


def _run(source: str) -> None:
    """Imports a module, or runs a file.

    Raises:
        CustomOperatorError: It cannot be imported.
    """
    try:
        host_functions.load(source)
    except Exception as error:
        raise CustomOperatorError(
            "PD361",
            f"{host_functions.VARIABLE} names something that cannot be imported",
            value=source,
            accepted="Python files and modules, separated by colons",
            hint=f"{type(error).__name__}: {error}",
        ) from error


REGISTRY = Registry()


def host_op(name: str, domain: str, version: int = 1) -> Callable[[Function], Function]:
    """Registers a function that computes a custom operator on a host.

    The function gets one argument with ``inputs``, ``attributes`` and ``example_outputs``, as given
    to `custom_op`, and returns a tensor or a sequence of tensors. Gradients flow through the torch
    operations that it calls.

    Args:
        name: The operator's name.
        domain: Its domain.
        version: The domain's version.

    Returns:
        A decorator, which returns the function.
    """

    def register(function: Function) -> Function:
        REGISTRY.add(function, name, domain, version)
        return function

    return register
