"""A program's own types that contain tensors, for arguments and results of models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from torch.utils import _pytree as pytree

from popdist_torch.errors import Error

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


class ICustomArgParser(ABC):
    """How tensors are taken out of a type, and put into it."""

    @abstractmethod
    def yieldTensors(self, struct: Any) -> Iterator[torch.Tensor]:
        """The tensors of an object.

        Args:
            struct: The object.

        Returns:
            Its tensors, always in the same order.
        """

    @abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[torch.Tensor]) -> Any:
        """An object like another one, with other tensors.

        Args:
            original_structure: The other object.
            tensor_iterator: The tensors, in the order of `yieldTensors`.

        Returns:
            The new object.
        """


class _Like:
    """An object that stands for the structure of all of its type."""

    def __init__(self, struct: Any) -> None:
        self.struct = struct

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Like) and type(self.struct) is type(other.struct)

    __hash__ = None  # type: ignore[assignment]


_PARSERS: dict[type, ICustomArgParser] = {}
_SERVED: set[type] = set()
"""The classes that torch's trees know by these parsers."""


def registerCustomArgParser(argument_type: type, parser: ICustomArgParser | None) -> None:
    """Lets models take and return objects of a type; loaders keep them ready too.

    A parser serves subclasses too, where no other one is registered for them before it.

    Args:
        argument_type: The type.
        parser: How its tensors are reached, in place of an earlier parser; None removes that.

    Raises:
        Error: It is not an `ICustomArgParser`.
    """
    if parser is None:
        _PARSERS.pop(argument_type, None)
        for kind in [one for one in _SERVED if issubclass(one, argument_type)]:
            _SERVED.remove(kind)
            del pytree.SUPPORTED_NODES[kind]
        return
    if not isinstance(parser, ICustomArgParser):
        raise Error(
            "PD305",
            "arg_parser must inherit from ICustomArgParser",
            value=type(parser).__name__,
            hint="write class Parser(poptorch.ICustomArgParser), and give an object of it",
        )
    _PARSERS[argument_type] = parser
    serve(argument_type)


def serve(kind: type) -> bool:
    """Makes torch's trees know a class that a parser serves; whether they did not know it."""
    if kind in pytree.SUPPORTED_NODES or _parser_of(kind) is None:
        return False

    def tensors_of(struct: Any) -> list[Any]:
        return list(_parser_of(kind).yieldTensors(struct))

    pytree.register_pytree_node(
        kind,
        lambda struct: (tensors_of(struct), _Like(struct)),
        lambda tensors, like: _parser_of(kind).reconstruct(like.struct, iter(tensors)),
        flatten_with_keys_fn=lambda struct: (
            [(pytree.SequenceKey(index), one) for index, one in enumerate(tensors_of(struct))],
            _Like(struct),
        ),
    )
    _SERVED.add(kind)
    return True


def served(value: Any) -> Any:
    """The value, of whose objects torch's trees know all that a parser serves."""
    while _PARSERS and any([serve(type(leaf)) for leaf in pytree.tree_leaves(value)]):  # noqa: C419 - all of them
        pass
    return value


def _parser_of(kind: type) -> Any:
    """The parser of a class or, as published, the first one of a class above it."""
    if kind in _PARSERS:
        return _PARSERS[kind]
    return next((own for above, own in _PARSERS.items() if issubclass(kind, above)), None)
