"""Hooks of a program that see the gradient of an activation, in a job of several replicas.

The loss of a replica is the mean of its own rows. One process with the rows of all replicas divides
by all of them, so its gradients of activations are smaller by the number of replicas. A hook that
multiplies gradients by constants or masks gives the right result in both. A hook that clips,
normalizes or takes signs does not: of a gradient that is ``n`` times as large it makes something
other than ``n`` times its result. So hooks are asked, at their first calls, what they make of the
gradient times a power of two.

Hooks are found where they are registered (`torch.Tensor.register_hook`, and those of graph nodes)
or gathered by a call of their module. Compiled code is not checked.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules import module as of_all_modules

from popdist_torch.errors import GradientError
from popdist_torch.replica_gradients.multiples import (
    QUESTIONS,
    Streams,
    differ,
    in_proportion,
    plain,
    scaled,
    versions,
)
from popdist_torch.replica_gradients.parameter_hooks import of_popdist, place_of

if TYPE_CHECKING:
    from collections.abc import Callable

_TORCH = ("torch.autograd.", "torch.utils.", "torch.distributed.", "torch.nn.", "torch._")


@dataclass
class _Known:
    """What is known of hooks of one code; a program may make them anew for each pass.

    Attributes:
        answers: Calls in which they were asked, and answered rightly.
        in_place: Whether they change gradients in place; None before their first call.
    """

    answers: int = 0
    in_place: bool | None = None


class ActivationHooks:
    """The check of the hooks of activations in this process.

    Attributes:
        factor: How many times larger than in one process the gradients are that hooks see now.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._divided = -1  # the backward pass in which gradients were divided last
        self._found: tuple[int, GradientError] | None = None
        self._known: dict[Any, _Known] = {}
        self._started = False

    def start(self, factor: float | None = None) -> None:
        """Checks all hooks of activations that are registered or called from now on.

        Args:
            factor: How many times larger gradients are; None where `in_pass` says it.
        """
        if factor is not None:
            self.factor = factor
        if self._started:
            return
        self._started = True
        _wrap_registration()
        _wrap_nodes()
        _wrap_modules()

    def divided(self) -> None:
        """Notes that the backward pass that runs has divided gradients by the factor."""
        self._divided = torch._C._current_graph_task_id()  # noqa: SLF001 - no public name

    def require_undivided(self, task: int, name: str) -> None:
        """Checks a backward pass that has reached a parameter whose gradients are added up.

        Raises:
            GradientError: A hook of the pass has got gradients divided by a number of replicas.
        """
        if self._divided == task:
            raise GradientError(
                "PD334",
                "global_batch_hook has divided gradients by the number of processes, and the "
                "gradients of this parameter are added up, not averaged",
                value=name,
                hint="give all distributed optimizers the same op, or register the hook itself "
                "in passes of optimizers with op=Sum",
            )

    def in_pass(self, factor: float) -> _Pass:
        """Wraps a backward pass whose gradients train the model.

        Args:
            factor: How many times larger gradients are in the pass.

        Returns:
            A context manager, which raises what `require_right` raises.
        """
        return _Pass(self, factor)

    def require_right(self, task: int) -> None:
        """Checks a backward pass that has reached a parameter of the job.

        Args:
            task: The number that torch gave the pass.

        Raises:
            GradientError: A hook of the pass depends on the size of gradients.
        """
        if self._found is not None and self._found[0] == task:
            _, error = self._found
            self._found = None
            raise error

    def known(self, hook: Any) -> _Known:
        """What is known of all hooks of the same code."""
        return self._known.setdefault(_code_of(hook), _Known())

    def refuse(self, what: str, name: str) -> None:
        """Notes that some code of the program, called so, depends on the size of gradients."""
        task = torch._C._current_graph_task_id()  # noqa: SLF001 - no public name
        self._found = (
            task,
            GradientError(
                "PD334",
                f"{what} does to a gradient something else than to its multiple, and gradients "
                "are larger here than in one process with all rows",
                value=name,
                accepted="code that multiplies, masks or projects gradients",
                hint=f"gradients are {self.factor:g} times as large: "
                "popdist_torch.global_batch_hook(hook), registered in place of the hook, gives it "
                "what it would get in one process, and it decorates the backward of a function "
                "too; or clip the gradients of parameters before the update",
            ),
        )

    def take(self) -> GradientError | None:
        """The error of the pass that has ended."""
        found, self._found = self._found, None
        return None if found is None else found[1]


class _Pass:
    """One backward pass of a training model."""

    def __init__(self, hooks: ActivationHooks, factor: float) -> None:
        self._hooks, self._factor = hooks, factor
        self._before = 1.0

    def __enter__(self) -> None:
        self._hooks.take()  # of a pass that trained nothing here
        self._before, self._hooks.factor = self._hooks.factor, self._factor

    def __exit__(self, kind: object, *_: object) -> None:
        self._hooks.factor = self._before
        error = self._hooks.take()
        if error is not None and kind is None:
            raise error


ACTIVATION_HOOKS = ActivationHooks()
"""The check of this process."""


class _Asked:
    """A program's hook, which is asked what it makes of other gradients.

    The arguments of a hook of a module begin with the module; gradients and tuples of them follow.
    """

    def __init__(self, hook: Callable[..., Any]) -> None:
        self.hook = hook
        functools.update_wrapper(self, hook, updated=())

    def __call__(self, *args: Any) -> Any:
        """Returns what the hook returns."""
        known = ACTIVATION_HOOKS.known(self.hook)
        if ACTIVATION_HOOKS.factor == 1 or known.answers >= QUESTIONS or not plain(args):
            return self.hook(*args)
        streams = Streams.of(args)
        before = args if known.in_place is False else scaled(args, 1.0)
        written = versions(args)
        result = self.hook(*args)
        wrote = versions(args) != written
        known.in_place = known.in_place or wrote
        made = _given(args) if result is None and wrote else result
        unchanged = made is None or (made is _given(args) and not wrote)
        if not unchanged and not (wrote and before is args) and differ(made, _given(before)):
            self._ask(before, made, streams)
        return result

    def _ask(self, args: tuple[Any, ...], made: Any, streams: Streams) -> None:
        """Compares what the hook makes of multiples of the gradients."""

        def answer(*asked: Any) -> Any:
            answered = self.hook(*asked)
            return _given(asked) if answered is None else answered

        if in_proportion(answer, args, made, streams):
            ACTIVATION_HOOKS.known(self.hook).answers += 1
        else:
            name = f"{_name_of(self.hook)}{place_of(self.hook)}"
            ACTIVATION_HOOKS.refuse("a hook of an activation or of a module", name)

    def __reduce__(self) -> Any:
        """Makes copies and files hold the program's own hook."""
        return functools.partial, (self.hook,)


class OfGlobalBatch:
    """A hook that gets gradients as large as in one process with all rows."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self._hook = hook

    def __call__(self, *args: Any) -> Any:
        """Returns the hook's result as large as the gradients of this process."""
        factor = ACTIVATION_HOOKS.factor
        if factor == 1:
            return self._hook(*args)
        ACTIVATION_HOOKS.divided()
        smaller = scaled(args, 1 / factor)
        written = versions(smaller)
        result = self._hook(*smaller)
        if result is None and versions(smaller) != written:
            result = _given(smaller)
        return None if result is None else scaled(result, factor)


def global_batch_hook(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a hook of activations get the gradients that one process with all rows would have.

    The gradient of an activation is that of its replica's own mean loss. In one process with the
    rows of all replicas it is smaller, so a bound or a threshold would be met at another size. The
    hook is given the gradient divided by the number of replicas (and by that of the micro-batches
    which `trainingModel` averages), and its result is multiplied again.

    Args:
        hook: For ``Tensor.register_hook``, ``Module.register_full_backward_hook`` or
            ``Module.register_full_backward_pre_hook``, or for a graph node; it returns its result.
            Or the ``backward`` of a ``torch.autograd.Function``, below ``@staticmethod``.

    Returns:
        The hook to register. In a job of one replica it does the same as the given one.
    """
    return OfGlobalBatch(hook)


def _wrap_registration() -> None:
    """Makes hooks of tensors that are computed ask; those of parameters are checked elsewhere."""
    register = torch.Tensor.register_hook

    @functools.wraps(register)
    def register_hook(self: torch.Tensor, hook: Any) -> Any:
        if not torch.compiler.is_compiling() and self.requires_grad and not self.is_leaf:
            hook = _asked(hook)
        return register(self, hook)  # type: ignore[no-untyped-call]

    torch.Tensor.register_hook = register_hook  # type: ignore[method-assign]


def _wrap_nodes() -> None:
    """Makes hooks of graph nodes (``tensor.grad_fn.register_hook``) ask."""
    function: Any = torch.autograd.Function
    register = function._register_hook  # noqa: SLF001 - what all nodes call

    def register_hook(hooks: Any, hook: Any) -> Any:
        return register(hooks, _asked(hook))

    function._register_hook = staticmethod(register_hook)  # noqa: SLF001 - as above


def _wrap_modules() -> None:
    """Makes the backward hooks of modules ask, as a call of the module gathers them."""
    backward, before = nn.Module._get_backward_hooks, nn.Module._get_backward_pre_hooks  # noqa: SLF001 - what calls ask

    @functools.wraps(backward)
    def get_backward_hooks(self: nn.Module) -> Any:
        _replace(self._backward_hooks, of_all_modules._global_backward_hooks)  # noqa: SLF001 - no public names
        return backward(self)  # type: ignore[no-untyped-call]

    @functools.wraps(before)
    def get_backward_pre_hooks(self: nn.Module) -> Any:
        _replace(self._backward_pre_hooks, of_all_modules._global_backward_pre_hooks)  # noqa: SLF001 - as above
        return before(self)  # type: ignore[no-untyped-call]

    nn.Module._get_backward_hooks = get_backward_hooks  # type: ignore[method-assign]  # noqa: SLF001 - as above
    nn.Module._get_backward_pre_hooks = get_backward_pre_hooks  # type: ignore[method-assign]  # noqa: SLF001 - as above


def _replace(*registered: dict[int, Any]) -> None:
    if not torch.compiler.is_compiling():
        for hooks in registered:
            for key, hook in hooks.items():
                hooks[key] = _asked(hook)


def _asked(hook: Any) -> Any:
    """A hook that asks; those of popdist and of torch stay as they are."""
    known = isinstance(hook, _Asked | OfGlobalBatch) or of_popdist(hook)
    module = getattr(_code_owner(hook), "__module__", None)
    of_torch = str(module).startswith(_TORCH)
    return hook if known or of_torch or not callable(hook) else _Asked(hook)


def _code_owner(hook: Any) -> Any:
    """The function inside partial objects."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    return hook


def _code_of(hook: Any) -> Any:
    """What makes hooks alike: their code; hooks may be made anew for each pass."""
    owner = _code_owner(hook)
    call = owner if hasattr(owner, "__code__") else vars(type(owner)).get("__call__")
    return getattr(call, "__code__", None) or id(owner)


def _name_of(hook: Any) -> str:
    owner = _code_owner(hook)
    return str(getattr(owner, "__qualname__", type(owner).__qualname__))


def _given(args: tuple[Any, ...]) -> Any:
    """The gradients that a hook's result replaces: after the module, if it is a module's hook."""
    return args[1] if isinstance(args[0], nn.Module) else args[0]
