"""Lazy copies of newer values from the device into a program's module.

After a call of a training executor, the device holds newer weights and buffers than the program's
module. Copying all of them back after every call would be slow. So while a module is wrapped, its
parameters and buffers have subclasses of ``Parameter`` and ``Tensor``, which copy the newest values
before any torch function reads the old ones.
"""

from __future__ import annotations

import copyreg
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils import _pytree as pytree

from popdist_torch.errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from popdist_torch.options.enums import CommGroupType, VariableRetrievalMode


class HostLink:
    """Whether an executor holds newer values than a module, and the function that copies them.

    Args:
        declare: Declares groups of replicas for a parameter, with the arguments of
            ``replicaGrouping``.

    Attributes:
        version: How often newer values were copied; inference executors compare it.
        declare: As above.
    """

    def __init__(self, declare: Callable[..., None]) -> None:
        self.version = 0
        self.declare = declare
        self._bring: Callable[[], None] | None = None

    def outdated(self, bring: Callable[[], None]) -> None:
        """Marks the module as older than the device; ``bring`` copies the device's values."""
        self._bring = bring

    def up_to_date(self) -> None:
        """Marks the module as up to date."""
        self._bring = None

    def refresh(self) -> None:
        """Copies the newest values if the module is older."""
        if self._bring is not None:
            bring, self._bring = self._bring, None
            bring()
            self.version += 1


class _Followed(torch.Tensor):
    """A tensor of a wrapped module; copies of it are plain."""

    _popdist_link: HostLink

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Copies the newest values, then calls the function as if on a plain tensor."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - torch's own way to do this
            for leaf in pytree.tree_leaves((args, kwargs)):
                if isinstance(leaf, _Followed):
                    leaf._popdist_link.refresh()  # noqa: SLF001 - the class's own attribute
            return func(*args, **kwargs)

    def plain(self) -> torch.Tensor:
        """A plain tensor with the newest values, in memory of its own."""
        return self.detach().clone()

    def __repr__(self) -> str:  # type: ignore[override]  # as Tensor's own
        return repr(self.plain())

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return memo.setdefault(id(self), self.plain())  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


class HostBuffer(_Followed):
    """A buffer of a wrapped module."""


class InferredParameter(nn.Parameter):
    """A parameter of a module that is wrapped for inference alone; copies of it are plain."""

    _popdist_link: HostLink

    def plain(self) -> nn.Parameter:
        """A plain parameter with the newest values, in memory of its own."""
        return nn.Parameter(self.detach().clone(), requires_grad=self.requires_grad)

    def replicaGrouping(
        self,
        comm_group_type: CommGroupType,
        shards: int,
        variable_retrieval_mode: VariableRetrievalMode,
    ) -> None:
        """Gives groups of replicas values of their own; call it before the model's first call.

        The parameter has one more dimension, the first, for the values of all groups. ``forward``
        sees the value of its replica's group, without this dimension.

        Args:
            comm_group_type: ``Consecutive``: ``shards`` neighbours make a group; ``Orthogonal``:
                replica r is in group r modulo the number of groups; ``NoGrouping``: each replica
                is one; ``All``: all replicas are one, and there is no such dimension.
            shards: The number of replicas of a group, for the first two.
            variable_retrieval_mode: Whether values that are read back have one row for each group
                (``OnePerGroup``) or for each replica (``AllReplicas``).

        Raises:
            Error: The groups do not divide the replicas of the job, the parameter has another
                shape, or the model was called already.
        """
        self._popdist_link.declare(self, comm_group_type, shards, variable_retrieval_mode)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return memo.setdefault(id(self), self.plain())  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


class HostParameter(_Followed, InferredParameter):
    """A parameter of a wrapped module."""

    def plain(self) -> nn.Parameter:
        """A plain parameter with the newest values, in memory of its own."""
        return InferredParameter.plain(self)


_FOLLOWED: dict[type, type[_Followed]] = {
    nn.Parameter: HostParameter,
    InferredParameter: HostParameter,
    torch.Tensor: HostBuffer,
}
"""What tensors become while their module is wrapped; other classes are left as they are."""

_PLAIN: dict[type, type] = {
    HostParameter: nn.Parameter,
    InferredParameter: nn.Parameter,
    HostBuffer: torch.Tensor,
}


def let_group(module: nn.Module, declare: Callable[..., None]) -> None:
    """Gives the parameters of a module that is wrapped for inference ``replicaGrouping``."""
    link = HostLink(declare)
    for parameter in module.parameters():
        if type(parameter) in (nn.Parameter, InferredParameter):
            parameter.__class__ = InferredParameter
            parameter._popdist_link = link  # type: ignore[attr-defined]  # noqa: SLF001 - its own


def leave_groups(module: nn.Module) -> None:
    """Undoes `let_group`."""
    for parameter in module.parameters():
        if type(parameter) in _PLAIN and not isinstance(parameter, _Followed):
            del vars(parameter)["_popdist_link"]
            parameter.__class__ = nn.Parameter


def link_of(module: nn.Module) -> HostLink | None:
    """The link of a wrapped module, or of one that has a wrapped part; None without one."""
    for parameter in module.parameters():
        if isinstance(parameter, HostParameter):
            return parameter._popdist_link  # noqa: SLF001
    return None


_finished: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""How often destroyed wrappers brought newer values to modules that still live: an inference model
that was made before has to notice. Modules hold nothing of it, so that their copies are plain."""


def times_brought(module: nn.Module) -> int:
    """How often any executor, live or destroyed, copied newer values; copies pending ones first."""
    link = link_of(module)
    if link is not None:
        link.refresh()
    before = sum(_finished.get(part, 0) for part in module.modules()) if _finished else 0
    return before + (0 if link is None else link.version)


def require_unwrapped(module: nn.Module) -> None:
    """Checks that no part of a module is wrapped for training.

    Raises:
        Error: A part of it is.
    """
    if link_of(module) is not None:
        raise Error(
            "PD390",
            "Model has already been wrapped in 'poptorch.trainingModel'. Call model.destroy() on "
            "the model to unwrap before wrapping again.",
            value=type(module).__name__,
        )


def follow(tensors: Iterable[torch.Tensor], link: HostLink) -> bool:
    """Makes tensors copy the newest values when read; false if a tensor's class prevents that."""
    complete = True
    for tensor in tensors:
        kind = type(tensor)
        if kind in _FOLLOWED:
            tensor.__class__ = _FOLLOWED[kind]
            tensor._popdist_link = link  # type: ignore[attr-defined]  # noqa: SLF001
        complete = complete and (kind in _FOLLOWED or kind in _PLAIN)
    return complete


def unfollow(module: nn.Module, tensors: Iterable[torch.Tensor], link: HostLink) -> None:
    """Makes the tensors that `follow` changed plain again, with their newest values."""
    link.refresh()
    for part in module.modules():
        _finished[part] = _finished.get(part, 0) + link.version
    for tensor in tensors:
        if isinstance(tensor, _Followed):
            del tensor._popdist_link  # noqa: SLF001
            tensor.__class__ = _PLAIN[type(tensor)]


def plain_class(kind: type) -> type:
    """The class that a tensor has while an executor runs; its own if `follow` did not change it."""
    return _PLAIN.get(kind, kind)


_OF_THE_PROGRAM = "_popdist_class_of_the_program"


def add_destroy(module: nn.Module, destroy: Callable[[], None]) -> None:
    """Adds the method ``destroy`` to a wrapped module, as PopTorch does.

    The module gets a separate class while it is wrapped; its copies and saved files are of the
    program's class. Modules with a ``destroy`` of their own do not change, nor do modules whose
    class cannot be replaced.
    """
    kind = type(module)
    if type(kind) is not type or hasattr(module, "destroy"):
        return

    def reduced(self: nn.Module, protocol: Any) -> Any:
        made = kind.__reduce_ex__(self, protocol)
        if made[0] is copyreg.__newobj__:  # type: ignore[attr-defined]  # the usual one
            # Pickle requires the exact class with `__newobj__`; `_reconstructor` has the same
            # effect.
            return (copyreg._reconstructor, (kind, object, None), *made[2:])  # type: ignore[attr-defined]  # noqa: SLF001
        return (made[0], tuple(kind if p is wrapped else p for p in made[1]), *made[2:])

    members = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__reduce_ex__": reduced,
        _OF_THE_PROGRAM: kind,
        "destroy": lambda _self: destroy(),
    }
    wrapped = type(kind.__name__, (kind,), members)
    module.__class__ = wrapped


def remove_destroy(module: nn.Module) -> None:
    """Gives a module the program's class again."""
    if (kind := vars(type(module)).get(_OF_THE_PROGRAM)) is not None:
        module.__class__ = kind


_unwrapped: WeakKeyDictionary[nn.Module, tuple[HostLink, type]] = WeakKeyDictionary()
"""The link and the class of modules that `unwrap` has made plain for a time."""


def unwrap(module: nn.Module) -> None:
    """Makes a wrapped module and its tensors plain, with the newest values, until `rewrap`.

    Its executor stays; another one can be made of the module meanwhile.

    Args:
        module: The module; one that is not wrapped does not change.
    """
    link = link_of(module)
    if link is None:
        return
    link.refresh()
    _unwrapped[module] = (link, type(module))
    for tensor in (*module.parameters(), *module.buffers()):
        if isinstance(tensor, _Followed):
            del tensor._popdist_link  # noqa: SLF001
            tensor.__class__ = _PLAIN[type(tensor)]
    remove_destroy(module)


def rewrap(module: nn.Module) -> None:
    """Undoes `unwrap`.

    Args:
        module: The module; one that `unwrap` did not change does not change.
    """
    if module in _unwrapped:
        link, kind = _unwrapped.pop(module)
        follow([*module.parameters(), *module.buffers()], link)
        module.__class__ = kind
