"""A proof that code is linear in some tensors, from the operations of one run.

Each tensor that the code makes is constant, linear in the given tensors, or something else. The
code runs once, as it would without the proof: nothing is asked of it, and nothing is called twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from popdist_torch.executor.compiled import keep_from_dynamo

if TYPE_CHECKING:
    from collections.abc import Iterable

_CONSTANT, _LINEAR, _OTHER = range(3)

_OF_FIRST = frozenset(
    {
        *("neg", "view", "_unsafe_view", "reshape", "_reshape_alias", "t", "transpose", "permute"),
        *("expand", "squeeze", "unsqueeze", "select", "slice", "narrow", "as_strided", "clone"),
        *("contiguous", "alias", "detach", "_to_copy", "sum", "mean", "cumsum", "flip", "roll"),
        *("index_select", "gather", "index", "unbind", "split", "split_with_sizes", "repeat"),
        *("constant_pad_nd", "tril", "triu", "diagonal", "unfold", "div", "lift_fresh"),
    }
)
"""Linear in the first argument, where the others are constant."""

_OF_ONE = frozenset({"mul", "mm", "bmm", "mv", "dot", "convolution", "linear"})
"""Linear in each argument, where the others are constant."""

_OF_ALL = frozenset({"add", "sub", "cat", "stack", "where"})
"""Linear in all arguments together, where those that are constant are zero."""

_NEW = ("zeros", "ones", "full", "empty", "rand", "new_", "arange", "bernoulli")


class Linearity(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the operations of one run.

    Args:
        given: The tensors in which results may be linear.

    Attributes:
        wrote: Whether a tensor that existed before was written to.
    """

    def __init__(self, given: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.wrote = False
        self._kinds = {_place(tensor): _LINEAR for tensor in given}
        self._own = set(self._kinds)  # memory of the given tensors, and of those that were made
        self._kept: list[Any] = []  # memory that is used again would keep its kind
        self._decides = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would load Dynamo for that, which takes more than a second

    def proves(self, results: Iterable[torch.Tensor]) -> bool:
        """Whether all results are linear."""
        return not self._decides and all(self._kind(value) == _LINEAR for value in results)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs an operation, and notes of what kind its results are."""
        del types
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if _is_tensor(leaf)]
        name = func._schema.name.removeprefix("aten::")  # noqa: SLF001 - as torch's own modes
        writes = func._schema.is_mutable  # noqa: SLF001 - as above
        kind = self._of(name.rstrip("_") if writes else name, args, given)
        places = set(map(_place, given))
        result = func(*args, **(kwargs or {}))
        self._kept.append((args, kwargs, result))
        if writes:
            whole = _is_whole(args[0]) if _is_tensor(args[0]) else False
            for place in places if args and not _is_tensor(args[0]) else {_place(args[0])}:
                self.wrote = self.wrote or place not in self._own
                before = self._kinds.get(place, _CONSTANT)
                self._kinds[place] = kind if whole or kind == before else _OTHER
            return result
        for tensor in filter(_is_tensor, pytree.tree_leaves(result)):
            place = _place(tensor)
            if place not in places:
                self._own.add(place)
                self._kinds[place] = kind
        return result

    def _of(self, name: str, args: Any, given: list[torch.Tensor]) -> int:
        """The kind of an operation's results."""
        kinds = [self._kind(tensor) for tensor in given]
        if name == "copy":
            return kinds[1]
        if max(kinds, default=_CONSTANT) == _CONSTANT or name.startswith(_NEW):
            return _CONSTANT
        if name in ("_local_scalar_dense", "equal", "is_nonzero"):
            self._decides = True
        first = kinds[0] == _LINEAR and kinds.count(_LINEAR) == 1
        backward = name.endswith(("_backward", "_backward_data"))
        linear = (
            (first and (name in _OF_FIRST or backward))
            or (name in _OF_ONE and kinds.count(_LINEAR) == 1)
            or (name in _OF_ALL and self._adds(args[name == "where" :]))
        )
        chosen = name == "where" and kinds[0] != _CONSTANT
        return _LINEAR if linear and not chosen and _OTHER not in kinds else _OTHER

    def _adds(self, terms: Any) -> bool:
        """Whether the terms of a sum are linear, or zero."""
        terms = terms[:1] if isinstance(terms[0], list | tuple) else terms[:2]
        leaves = [leaf for leaf in pytree.tree_leaves(terms) if leaf is not None]
        return all(
            not leaf
            if not isinstance(leaf, torch.Tensor)
            else self._kind(leaf) == _LINEAR or not bool(leaf.any())
            for leaf in leaves
        )

    def _kind(self, tensor: torch.Tensor) -> int:
        return self._kinds.get(_place(tensor), _CONSTANT)


keep_from_dynamo(Linearity.__torch_dispatch__)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor has all memory that it shares."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _place(tensor: torch.Tensor) -> int:
    """What tensors share that share memory."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - no public name
