"""Functions of a program that run before and after models are compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from popdist_torch.errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable

    Hooks = dict[int, Callable[[], Any]]


class CompileHook:
    """A registered function."""

    def __init__(self, hooks: Hooks, key: int) -> None:
        self._hooks = hooks
        self._key = key

    def remove(self) -> None:
        """Removes the function from the registered ones."""
        self._hooks.pop(self._key, None)


before: Hooks = {}
"""Registered by the program for the whole process, as PopTorch has it."""

after: Hooks = {}
"""As above."""


def registerPreCompileHook(hook: Callable[[], Any]) -> CompileHook:
    """Calls a function before each model is compiled: at its first call, or in ``compile``.

    Args:
        hook: A function without arguments.

    Returns:
        An object whose ``remove`` removes the hook.

    Raises:
        OptionError: It cannot be called.
    """
    return _registered(before, hook)


def registerPostCompileHook(hook: Callable[[], Any]) -> CompileHook:
    """Calls a function after each model was compiled.

    Args:
        hook: A function without arguments.

    Returns:
        An object whose ``remove`` removes the hook.

    Raises:
        OptionError: It cannot be called.
    """
    return _registered(after, hook)


def run(hooks: Hooks) -> None:
    """Calls the registered functions of `before` or `after`, in the order of their registration."""
    for hook in list(hooks.values()):
        hook()


def _registered(hooks: Hooks, hook: Any) -> CompileHook:
    if not callable(hook):
        raise Error("PD300", "a compile hook must be callable", value=hook, accepted="a function")
    key = max(hooks, default=0) + 1
    hooks[key] = hook
    return CompileHook(hooks, key)
