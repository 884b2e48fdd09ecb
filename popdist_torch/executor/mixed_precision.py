"""Operations on types that torch refuses, with PopTorch's results.

A layer computes in the precision of its input, whatever its weights have: single-precision weights
are the masters of half-precision layers. torch's norms do so too, where their weights have single
precision. Products of two tensors have the wider precision, as torch's element-wise operations have
in both. Indices and classes may have 32 bits, as all whole numbers of a device have.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LAYERS: frozenset[Callable[..., Any]] = frozenset(
    {
        F.linear,
        F.conv1d,
        F.conv2d,
        F.conv3d,
        F.conv_transpose1d,
        F.conv_transpose2d,
        F.conv_transpose3d,
        F.multi_head_attention_forward,
        F.prelu,
    }
)
_NORMS: frozenset[Callable[..., Any]] = frozenset(
    {F.batch_norm, F.group_norm, F.instance_norm, F.layer_norm}
)
_PRODUCTS: frozenset[Callable[..., Any]] = frozenset(
    {
        F.bilinear,
        F.binary_cross_entropy,
        F.scaled_dot_product_attention,
        torch.addmm,
        torch.addmv,
        torch.baddbmm,
        torch.bmm,
        torch.dot,
        torch.einsum,
        torch.lerp,
        torch.matmul,
        torch.mm,
        torch.mv,
        torch.Tensor.__matmul__,
        torch.Tensor.__rmatmul__,
        torch.Tensor.bmm,
        torch.Tensor.dot,
        torch.Tensor.lerp,
        torch.Tensor.matmul,
        torch.Tensor.mm,
        torch.Tensor.mv,
    }
)
_AT_PLACES = """
gather scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ index_copy
index_copy_ index_fill index_fill_
"""
_FOR_INDICES: dict[Callable[..., Any], tuple[int, str]] = {
    **{
        getattr(owner, name): (2, "index")
        for name in _AT_PLACES.split()
        for owner in (torch, torch.Tensor)
        if hasattr(owner, name)
    },
    **dict.fromkeys((torch.take, torch.Tensor.take, torch.Tensor.put_), (1, "index")),
    **dict.fromkeys((torch.take_along_dim, torch.Tensor.take_along_dim), (1, "indices")),
    **dict.fromkeys((F.cross_entropy, F.nll_loss, F.multi_margin_loss), (1, "target")),
    F.one_hot: (0, "tensor"),
}
"""The place and the name of an argument that torch takes in 64 bits only, always or in part."""
_TYPES = (torch.float16, torch.bfloat16, torch.float32)


class MixedPrecision(TorchFunctionMode):
    """Casts the arguments of layers and products whose precisions differ, and narrow indices."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Calls a torch function."""
        kwargs = kwargs or {}
        taken, named = accepted(func, args, kwargs)
        result = func(*taken, **named)
        if func in _NORMS and taken is not args:
            both = (_tensors((*a, *k.values())) for a, k in ((args, kwargs), (taken, named)))
            for given, used in zip(*both, strict=True):
                if used is not given and not given.requires_grad:
                    given.copy_(used)  # running statistics
        return result


def accepted(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments as torch takes them: of one precision, and indices of 64 bits."""
    if func not in _FOR_INDICES:
        return _of_one_precision(func, args, kwargs)
    place, name = _FOR_INDICES[func]
    index = args[place] if place < len(args) else kwargs.get(name)
    if not isinstance(index, torch.Tensor) or index.dtype != torch.int32:
        return args, kwargs
    if place < len(args):
        return (*args[:place], index.long(), *args[place + 1 :]), kwargs
    return args, {**kwargs, name: index.long()}


def _of_one_precision(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a layer or a product in one precision, and of others as they are."""
    layer = func in _LAYERS or func in _NORMS
    if not layer and func not in _PRODUCTS:
        return args, kwargs
    found = _tensors((*args, *kwargs.values()))
    types = [one.dtype for one in found if one.dtype in _TYPES]
    # Autocast chooses the precision of these operations itself.
    if len(set(types)) <= 1 or torch.is_autocast_enabled(found[0].device.type):
        return args, kwargs
    kept = types[0] if layer else reduce(torch.promote_types, types)
    if func in _NORMS and kept != torch.float32:
        return args, kwargs

    def cast(leaf: torch.Tensor) -> torch.Tensor:
        return leaf.to(kept) if leaf.dtype in _TYPES else leaf

    taken: tuple[Any, Any] = pytree.tree_map_only(torch.Tensor, cast, (args, kwargs))
    return taken


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    """Tensors, also those in lists, in their order; torch's trees take ten times as long."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


def may_mix(tensors: Iterable[Any]) -> bool:
    """Whether the tensors have several precisions, or whole numbers that may be narrow indices."""
    found = {one.dtype for one in tensors if isinstance(one, torch.Tensor)}
    return torch.int32 in found or len(found & set(_TYPES)) > 1
