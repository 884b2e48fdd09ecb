"""Floating-point exceptions: ``options.Precision.enableFloatingPointExceptions``.

An IPU stops where an operation divides by zero, overflows or is invalid, by the rules of IEEE 754.
Processors of hosts have flags for that, but vectorized functions set them at random. So each
operation's result is compared with its operands: a result that is not finite, from operands that
are, is an exception. So is an ordered comparison of a NaN.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from popdist_torch.errors import Error
from popdist_torch.executor.compiled import eagerly

if TYPE_CHECKING:
    from collections.abc import Iterator

_ORDERED = frozenset({"lt", "le", "gt", "ge", "less", "less_equal", "greater", "greater_equal"})


class _Exceptions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises where an operation's result is not finite although its operands are."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2].rstrip("_")  # noqa: SLF001 - torch's own way
        # Operands are looked at first: an operation may change them.
        operands = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if _is_floating(leaf)]
        checked = bool(operands) and "empty" not in name
        nan = checked and any(map(_has_nan, operands))
        infinite = checked and any(map(_has_infinity, operands))
        if name.partition(".")[0] in _ORDERED and nan:
            raise _error("invalid operation", name)
        results = func(*args, **kwargs)
        if not checked:
            return results
        found = [leaf for leaf in pytree.tree_leaves(results) if _is_floating(leaf)]
        if not nan and any(map(_has_nan, found)):
            raise _error("invalid operation", name)
        if not nan and not infinite and any(map(_has_infinity, found)):
            raise _error("overflow or division by zero", name)
        return results


def _is_floating(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return leaf.is_floating_point() or leaf.is_complex()
    return isinstance(leaf, float)


def _has_nan(value: Any) -> bool:
    return bool(torch.as_tensor(value).isnan().any())


def _has_infinity(value: Any) -> bool:
    return bool(torch.as_tensor(value).isinf().any())


def _error(kind: str, name: str) -> Error:
    return Error(
        "PD350",
        f"floating-point exception: {kind}",
        value=f"in {name}",
        hint="options.Precision.enableFloatingPointExceptions(False) lets models compute on",
    )


@contextmanager
def exceptions() -> Iterator[None]:
    """Raises `Error` on floating-point exceptions inside; compiled models then run eagerly."""
    with eagerly(), _Exceptions():  # type: ignore[no-untyped-call]
        yield
