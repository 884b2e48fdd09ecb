"""A program's own types that contain tensors, for arguments and results of models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from torch.utils import _pytree as pytree

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


def registerCustomArgParser(argument_type: type, parser: ICustomArgParser) -> None:
    """Lets models take and return objects of a type; loaders keep them ready too.

    Args:
        argument_type: The type.
        parser: How its tensors are reached.
    """
    pytree.register_pytree_node(
        argument_type,
        lambda struct: (list(parser.yieldTensors(struct)), _Like(struct)),
        lambda tensors, like: parser.reconstruct(like.struct, iter(tensors)),
    )
