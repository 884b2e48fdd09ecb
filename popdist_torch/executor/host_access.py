"""Keeps a program's module honest while an executor trains a copy of it.

The executor's copy is newer than the program's module after every step, but copying back each time
would cost a pass over all weights. So the module's parameters are made to notice when they are
looked at: for as long as the module is wrapped they belong to a subclass of ``Parameter`` that
brings the newest values before any torch function sees them. Buffers are brought along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn
from torch.utils import _pytree as pytree

from popdist_torch.errors import Error, NotOnHostError

if TYPE_CHECKING:
    from collections.abc import Callable


class HostLink:
    """Which executor, if any, holds newer weights than a module.

    Attributes:
        version: How often newer weights were brought; executors that only read compare it.
    """

    def __init__(self) -> None:
        self.version = 0
        self._bring: Callable[[], None] | None = None

    def outdated(self, bring: Callable[[], None]) -> None:
        """Notes that the module is older than an executor's copy.

        Args:
            bring: Copies the weights into the module, past the notice that its parameters take.
        """
        self._bring = bring

    def up_to_date(self) -> None:
        """Notes that the module is as new as it will get."""
        self._bring = None

    def refresh(self) -> None:
        """Brings the newest weights where the module is older."""
        if self._bring is not None:
            bring, self._bring = self._bring, None
            bring()
            self.version += 1


class HostParameter(nn.Parameter):
    """A parameter of a wrapped module; copies of it are plain parameters."""

    _popdist_link: HostLink

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Brings the newest weights, then calls the function as if on a plain parameter."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - torch's own way to do this
            for leaf in pytree.tree_leaves((args, kwargs)):
                if isinstance(leaf, HostParameter):
                    leaf._popdist_link.refresh()  # noqa: SLF001 - the class's own attribute
            return func(*args, **kwargs)

    def plain(self) -> nn.Parameter:
        """A plain parameter with this one's newest values, in memory of its own.

        Returns:
            The copy.
        """
        return nn.Parameter(self.detach().clone(), requires_grad=self.requires_grad)

    def replicaGrouping(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Raises: all replicas of a job have the same weights.

        Raises:
            NotOnHostError: Always.
        """
        raise NotOnHostError(
            "PD305",
            "replicaGrouping gives groups of replicas weights of their own, which is not offered: "
            "all replicas of a job train the same weights",
            hint="leave the call out, or train the groups in jobs of their own",
        )

    def __repr__(self) -> str:  # type: ignore[override]  # as Parameter's own
        return repr(self.plain())

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        return memo.setdefault(id(self), self.plain())  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def link_of(module: nn.Module) -> HostLink | None:
    """The link of a wrapped module.

    Args:
        module: The module, or a part of it.

    Returns:
        The link; None where no part is wrapped for training.
    """
    for parameter in module.parameters():
        if isinstance(parameter, HostParameter):
            return parameter._popdist_link  # noqa: SLF001
    return None


def wrap(module: nn.Module) -> HostLink:
    """Makes a module's parameters notice when they are looked at.

    Parameters of classes other than ``Parameter`` stay as they are.

    Args:
        module: The module.

    Returns:
        Its link.

    Raises:
        Error: The module, or a part of it, is wrapped for training already.
    """
    if link_of(module) is not None:
        raise Error(
            "PD305",
            "this model is wrapped by trainingModel already",
            value=type(module).__name__,
            hint="call destroy() on the first wrapper before you wrap the model again",
        )
    link = HostLink()
    for parameter in module.parameters():
        if type(parameter) is nn.Parameter:
            parameter.__class__ = HostParameter
            parameter._popdist_link = link  # type: ignore[attr-defined]  # noqa: SLF001
    return link


def unwrap(module: nn.Module) -> None:
    """Makes a module's parameters plain again, with their newest values.

    Args:
        module: The module.
    """
    for parameter in module.parameters():
        if isinstance(parameter, HostParameter):
            parameter._popdist_link.refresh()  # noqa: SLF001
            del parameter._popdist_link  # noqa: SLF001
            parameter.__class__ = nn.Parameter  # type: ignore[assignment]
