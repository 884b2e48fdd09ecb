"""Annotations that lay a model out over IPUs; a host checks what it is given, no more."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from popdist_torch.errors import Error, OptionError, OptionValueError
from popdist_torch.options.enums import MultiConvPlanType
from popdist_torch.options.option_methods import flag, stored_only, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Self


Wrapped = TypeVar("Wrapped", bound="nn.Module | Callable[..., Any]")

_MARK = "_popdist_block"


class _Scope:
    """A context that changes nothing."""

    def __enter__(self) -> Self:
        stored_only(type(self).__name__)
        return self

    def __exit__(self, *_error: object) -> None:
        """Ends."""


class Block(_Scope):
    """A context whose operations belong to one block.

    Args:
        user_id: Name of the block; without one blocks are numbered.
        ipu_id: IPU of the block.
    """

    _next = 0

    def __init__(self, user_id: str | int | None = None, ipu_id: int | None = None) -> None:
        self.user_id, self.ipu_id = _identity(user_id, ipu_id)
        self._user_id, self._ipu_id = user_id, ipu_id  # the names that published programs read

    @staticmethod
    def start(user_id: str | int | None = None, ipu_id: int | None = None) -> None:
        """Begins a block that lasts until the next one.

        Args:
            user_id: As for the class.
            ipu_id: As for the class.
        """
        _identity(user_id, ipu_id)
        stored_only("Block.start")

    @staticmethod
    def useAutoId() -> None:
        """Starts the numbering of blocks from the start."""
        Block._next = 0


def BeginBlock(
    layer_to_call: Wrapped, user_id: str | int | None = None, ipu_id: int | None = None
) -> Wrapped:
    """Makes a block begin wherever a module or a function is called.

    Args:
        layer_to_call: The module or function.
        user_id: Name of the block.
        ipu_id: IPU of the block.

    Returns:
        The same module; for a function, one that does the same.

    Raises:
        Error: A block begins there already.
    """
    _identity(user_id, ipu_id)
    if hasattr(layer_to_call, _MARK):
        raise Error(
            "PD305",
            "a block begins at this layer already",
            value=getattr(layer_to_call, _MARK),
            hint="call removeBlocks(model) before you annotate it again",
        )
    stored_only("BeginBlock")
    if isinstance(layer_to_call, nn.Module):
        setattr(layer_to_call, _MARK, (user_id, ipu_id))
        return layer_to_call

    return _Begun(layer_to_call, user_id, ipu_id)  # type: ignore[return-value]  # called alike


class _Begun:
    """A function where a block begins. It binds to its object as a method does, and is pickled."""

    def __init__(self, function: Any, user_id: str | int | None, ipu_id: int | None) -> None:
        functools.update_wrapper(self, function)
        setattr(self, _MARK, (user_id, ipu_id))
        # The names that published programs read.
        self._layer_to_call, self._user_id, self._ipu_id = function, user_id, ipu_id

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._layer_to_call(*args, **kwargs)

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else MethodType(self, owner)


def module_repr(m: nn.Module) -> str:
    """The text of a module, with the blocks that begin at its parts.

    Args:
        m: The module.

    Returns:
        As ``repr(m)``, with ``BeginBlock(...)`` before the class of each part where a block begins.
    """
    extra = m.extra_repr()
    lines = extra.splitlines()
    for name, child in m.named_children():
        lines.append(f"({name}): {module_repr(child)}".replace("\n", "\n  "))
    inside = extra if lines == [extra] else "".join(f"\n  {line}" for line in lines) + "\n"
    user_id, ipu_id = getattr(m, _MARK, (None, None))
    block = f"BeginBlock({user_id=}, {ipu_id=}) " if hasattr(m, _MARK) else ""
    return f"{block}{type(m).__name__}({inside if lines else ''})"


def BlockFunction(
    user_id: str | int | None = None, ipu_id: int | None = None
) -> Callable[[Wrapped], Wrapped]:
    """A decorator that makes a block begin wherever a function is called.

    Args:
        user_id: Name of the block.
        ipu_id: IPU of the block.

    Returns:
        The decorator.
    """

    def decorate(function: Wrapped) -> Wrapped:
        return BeginBlock(function, user_id, ipu_id)

    return decorate


def removeBlocks(module: nn.Module) -> None:
    """Removes the blocks that begin at a module or at parts of it.

    Args:
        module: The module.
    """
    for part in module.modules():
        if hasattr(part, _MARK):
            delattr(part, _MARK)


class Attribute(_Scope):
    """A context whose operations carry attributes for an IPU's compiler.

    Args:
        **attributes: The attributes.
    """

    def __init__(self, **attributes: Any) -> None:
        if not attributes:
            raise OptionError("PD300", "Attribute takes attributes by name", accepted="name=value")


@contextmanager
def NameScope(name: str) -> Iterator[None]:
    """Names a part of the model; profiles of ``torch.profiler`` show it.

    Args:
        name: The name.

    Yields:
        Nothing.
    """
    with torch.profiler.record_function(str(name)):
        yield


class MultiConv(_Scope):
    """A context whose convolutions share an IPU; on a host each runs by itself."""

    def availableMemoryProportions(self, value: float | Sequence[float]) -> Self:
        """Stores how much memory each convolution may use.

        Args:
            value: Fractions of the memory, one or one per convolution.

        Returns:
            This context.

        Raises:
            OptionError: A value is not a number.
        """
        fractions = value if isinstance(value, list | tuple) else [value]
        if not all(isinstance(x, int | float) for x in fractions):
            raise OptionError("PD300", "availableMemoryProportions takes numbers", value=value)
        return self

    def partialsTypes(self, value: torch.dtype | Sequence[torch.dtype]) -> Self:
        """Stores the types of partial sums.

        Args:
            value: ``torch.float`` or ``torch.half``, one or one per convolution.

        Returns:
            This context.

        Raises:
            OptionValueError: A value is another type.
        """
        types = value if isinstance(value, list | tuple) else [value]
        if not all(kind in (torch.float, torch.half) for kind in types):
            raise OptionValueError(
                "PD300",
                "Invalid partials types",
                value=value,
                accepted="torch.float or torch.half, or a list of them",
            )
        return self

    def planType(self, value: MultiConvPlanType) -> Self:
        """Stores how the convolutions are planned.

        Args:
            value: The plan.

        Returns:
            This context.

        Raises:
            OptionError: It is not a plan.
        """
        if not isinstance(value, MultiConvPlanType):
            raise OptionError(
                "PD300", "Invalid plan type", value=value, accepted="a poptorch.MultiConvPlanType"
            )
        return self

    def perConvReservedTiles(self, value: int) -> Self:
        """Stores how many tiles each convolution has for itself.

        Args:
            value: Tiles.

        Returns:
            This context.
        """
        whole_number("perConvReservedTiles", value, least=0)
        return self

    def cycleBackOff(self, value: float) -> Self:
        """Stores how much slower a plan may be to save memory.

        Args:
            value: A fraction.

        Returns:
            This context.
        """
        self.availableMemoryProportions(value)
        return self

    def enableConvDithering(self, value: bool | Sequence[bool]) -> Self:
        """Stores whether convolutions are spread over tiles differently.

        Args:
            value: Whether they are, one or one per convolution.

        Returns:
            This context.
        """
        for one in value if isinstance(value, list | tuple) else [value]:
            flag("enableConvDithering", one)
        return self


def _identity(user_id: str | int | None, ipu_id: int | None) -> tuple[str, int | None]:
    if ipu_id is not None:
        whole_number("ipu_id", ipu_id, least=0)
    if user_id is None:
        user_id, Block._next = str(Block._next), Block._next + 1  # noqa: SLF001 - same module
    if not isinstance(user_id, str | int) or isinstance(user_id, bool):
        raise OptionError("PD300", "a block's name is text or a whole number", value=user_id)
    return str(user_id), ipu_id
