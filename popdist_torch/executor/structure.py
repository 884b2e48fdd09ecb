"""Nested arguments and outputs as leaves and a structure, from which they can be rebuilt.

Dictionaries of any class, named tuples, dataclasses, lists and tuples are flattened, and also types
with a parser (`popdist_torch.registerCustomArgParser`) or types registered with torch. Two
dictionaries with the same keys have one structure, whatever the order of their keys.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections import OrderedDict, defaultdict, deque
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from popdist_torch.arguments import serve

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Structure:
    """A nesting without its leaves.

    Attributes:
        kind: The class of the object; None for a leaf.
        keys: The names of its children.
        children: The structures of its children.
        context: What torch needs to build an object of a registered class.
        example: The object that was flattened; new ones are built like it.
    """

    kind: type | None
    keys: tuple[Any, ...] = ()
    children: tuple[Structure, ...] = ()
    context: Any = None
    example: Any = dataclasses.field(default=None, compare=False, repr=False)

    def build(self, leaves: Iterator[Any]) -> Any:
        """Builds an object from leaves in the order in which `flatten` gave them."""
        if self.kind is None:
            return next(leaves)
        children = [child.build(leaves) for child in self.children]
        if self.kind is dict:
            named = dict(zip(self.keys, children, strict=True))
            return {key: named[key] for key in self.example}
        if _registered(self.kind):
            return pytree.SUPPORTED_NODES[self.kind].unflatten_fn(children, self.context)
        if issubclass(self.kind, tuple):
            return self.kind(*children) if hasattr(self.kind, "_fields") else self.kind(children)
        if issubclass(self.kind, list | deque):
            made = copy.copy(self.example)
            made.clear()
            made.extend(children)
            return made
        named = dict(zip(self.keys, children, strict=True))
        made = copy.copy(self.example)
        for key, child in named.items():
            if isinstance(made, MutableMapping):
                made[key] = child
            else:
                object.__setattr__(made, key, child)  # a dataclass, frozen or not
        return made

    def paths(self, prefix: str = "") -> Iterator[str]:
        """A name for every leaf: the expression by which a program reaches it."""
        if self.kind is None:
            yield prefix
        for key, child in zip(self.keys, self.children, strict=True):
            yield from child.paths(f"{prefix}[{key!r}]" if prefix else str(key))


_LEAF = Structure(None)


def flatten_arguments(named: dict[str, Any]) -> tuple[list[Any], Structure]:
    """Flattens the arguments of a call; their order stays that of the signature."""
    if all(isinstance(value, torch.Tensor) for value in named.values()):
        return list(named.values()), _of_tensors(tuple(named))
    leaves: list[Any] = []
    parts = tuple(_flatten(value, leaves) for value in named.values())
    return leaves, Structure(dict, tuple(named), parts, example=named)


@functools.lru_cache(maxsize=128)
def _of_tensors(names: tuple[str, ...]) -> Structure:
    """The structure of arguments that are all tensors; small calls would notice its making."""
    return Structure(dict, names, (_LEAF,) * len(names), example=dict.fromkeys(names))


_ORDINARY = (dict, list, tuple, OrderedDict, defaultdict, deque)


def _registered(kind: type) -> bool:
    """Whether a program or a library defines how objects of a class are flattened."""
    return kind in pytree.SUPPORTED_NODES and kind not in _ORDINARY


def flatten(value: Any) -> tuple[list[Any], Structure]:
    """The leaves and the structure of any nesting of tensors and other values."""
    leaves: list[Any] = []
    return leaves, _flatten(value, leaves)


def _flatten(value: Any, leaves: list[Any]) -> Structure:
    kind = type(value)
    context = None
    if isinstance(value, torch.Tensor):
        leaves.append(value)
        return _LEAF
    serve(kind)
    keys: tuple[Any, ...]
    if _registered(kind):
        inner, context = pytree.SUPPORTED_NODES[kind].flatten_fn(value)
        children = list(inner)
        keys = tuple(range(len(children)))
    elif isinstance(value, MutableMapping):
        keys = tuple(sorted(value, key=str))
        children = [value[key] for key in keys]
    elif isinstance(value, list | tuple | deque):
        children = list(value)
        keys = tuple(range(len(children)))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        keys = tuple(field.name for field in dataclasses.fields(value))
        children = [getattr(value, key) for key in keys]
    else:
        leaves.append(value)
        return _LEAF
    parts = tuple(_flatten(child, leaves) for child in children)
    return Structure(kind, keys, parts, context, value)
