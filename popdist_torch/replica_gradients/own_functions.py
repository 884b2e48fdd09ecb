"""A program's own ``torch.autograd.Function``, in a job of several replicas.

The ``backward`` of such a function sees gradients as hooks of activations do (`activation_hooks`):
they are larger than in one process with all rows. Straight-through estimators, reversed gradients
and matrix products are linear in them, which the operations of the first calls prove. A function
without such a proof is asked, in its first calls, what it makes of multiples of its gradients.

A function that computes a gradient for a parameter has to add up over replicas, too.

Functions that call Horovod or torch.distributed in ``backward``, or a backward pass of their own,
are not asked: other processes would not take part, and gradients would be added twice.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.utils import _pytree as pytree

from popdist_torch.errors import GradientError
from popdist_torch.replica_gradients.activation_hooks import ACTIVATION_HOOKS, OfGlobalBatch
from popdist_torch.replica_gradients.linearity import Linearity
from popdist_torch.replica_gradients.multiples import (
    QUESTIONS,
    Streams,
    equal,
    in_proportion,
    plain,
    scaled,
    tensors,
    versions,
)
from popdist_torch.replica_gradients.parameter_hooks import place_of

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("popdist.torch")

_NOT_ASKED = ("torch.", "torch", "popdist_torch", "horovod", "functorch")
_GENERATED = "torch._library.autograd"
_EXCHANGES = (
    *("horovod", "torch.distributed", "mpi4py", "popdist."),
    *("popdist_torch.horovod", "popdist_torch.executor", "popdist_torch.rounds"),
)


@dataclass
class _Known:
    """What is known of one class of functions.

    Attributes:
        left: Answers that are still asked for.
        in_place: Whether it writes to its gradients.
    """

    left: int = QUESTIONS
    in_place: bool = True


_FUNCTIONS: dict[Any, _Known] = {}


def start() -> None:
    """Checks the functions of all backward passes from now on; a second call does nothing."""
    run: Any = BackwardCFunction.apply
    if getattr(run, "__module__", None) == __name__:
        return

    def apply(self: Any, *gradients: Any) -> Any:
        kind = self._forward_cls
        known = _FUNCTIONS.get(kind)
        if known is None:
            known = _FUNCTIONS[kind] = _Known(QUESTIONS if _is_asked(kind) else 0)
        if not known.left or ACTIVATION_HOOKS.factor == 1 or not plain(gradients):
            return run(self, *gradients)
        return _watched(run, self, gradients, known)

    BackwardCFunction.apply = apply  # type: ignore[method-assign]  # the engine looks it up


def _is_asked(kind: Any) -> bool:
    """Whether a class is a program's own, and does not get gradients of the global batch."""
    module = str(kind.__module__)
    generated = module == _GENERATED and "_poptorch_" not in kind.__name__
    own = not module.startswith(_NOT_ASKED) or generated
    return own and not isinstance(kind.backward, OfGlobalBatch)


def _watched(run: Callable[..., Any], node: Any, gradients: Any, known: _Known) -> Any:
    """The result of a function, which is asked for others if it changes gradients."""
    streams, written = Streams.of(gradients), versions(gradients)
    before = scaled(gradients, 1.0) if known.in_place else gradients
    context, calls, proof = _Context(node), _Calls(), Linearity(tensors(gradients))
    with calls, proof:
        result = run(context, *gradients)
    wrote = versions(gradients) != written
    seen = before is not gradients or not wrote
    known.in_place = wrote
    if calls.exchange:
        known.left = 0
    elif proof.proves(tensors(result)):
        known.left -= 1
    elif seen and _tells(before, result):
        asked = None if proof.wrote else (lambda *given: run(context, *given))
        _ask(asked, before, result, streams, node, known)
    return result


def _tells(before: Any, result: Any) -> bool:
    """Whether a result says how a function depends on the size of gradients."""
    given, made = [*tensors(before)], [*tensors(result)]
    # The gradients of numbers, such as losses, are as large as in one process.
    if all(tensor.numel() == 1 for tensor in (*given, *made)):
        return False
    unchanged = all(any(torch.equal(one, other) for other in given) for one in made)
    finite = all(bool(torch.isfinite(tensor).all()) for tensor in (*given, *made))
    return not unchanged and finite and any(bool(tensor.any()) for tensor in made)


def _ask(
    function: Callable[..., Any] | None,
    given: Any,
    made: Any,
    streams: Streams,
    node: Any,
    known: _Known,
) -> None:
    """Compares what a function makes of other gradients; None for one that cannot be asked."""
    kind = node._forward_cls  # noqa: SLF001 - no public name
    right: bool | None = None
    try:
        if function is not None:
            right = in_proportion(function, given, made, streams)
        if function is None or right is None:
            right = None
        elif right is False:
            right = _ignores(function, given, made, streams)
        else:
            right = _adds_up(function, given, made, streams, _of_parameters(node))
    except Exception:  # noqa: BLE001 - the program's own code, which may not run twice
        right = None
    if right:
        known.left -= 1
        return
    name = f"{kind.__qualname__}.backward{place_of(kind.backward)}"
    if right is None:
        known.left = 0
        logger.warning("%s", _unknown(name))
    else:
        ACTIVATION_HOOKS.refuse("the backward of a torch.autograd.Function", name)


def _ignores(function: Callable[..., Any], given: Any, made: Any, streams: Streams) -> bool:
    """Whether a function is a loss that returns its own gradient, whatever the gradient given."""
    if any(tensor.numel() > 1 for tensor in tensors(given)):
        return False
    return _equal_again(function, scaled(given, 2.0), made, streams)


def _adds_up(
    function: Callable[..., Any], given: Any, made: Any, streams: Streams, places: list[int]
) -> bool:
    """Whether gradients of parameters add up over replicas; those of activations need not."""
    if not places:
        return True

    def of_parameters(*gradients: Any) -> list[Any]:
        result = function(*gradients)
        both = [result] if isinstance(result, torch.Tensor) else [*result]
        return [both[place] for place in places]

    other = pytree.tree_map_only(torch.Tensor, _another, given)
    total = pytree.tree_map(_sum, given, other)
    now = Streams.of(given)
    with torch.no_grad():
        streams.restore()
        parts = of_parameters(*other)
        now.restore()
    own = [made] if isinstance(made, torch.Tensor) else [*made]
    summed = [_sum(own[place], part) for place, part in zip(places, parts, strict=True)]
    return _equal_again(of_parameters, total, summed, streams)


def _equal_again(function: Callable[..., Any], given: Any, expected: Any, streams: Streams) -> bool:
    now = Streams.of(given)
    try:
        with torch.no_grad():
            streams.restore()
            return equal(function(*given), expected)
    finally:
        now.restore()


def _another(gradient: torch.Tensor) -> torch.Tensor:
    """Another gradient of the same shape, with other signs."""
    return gradient.flip([*range(gradient.dim())]) * -0.5


def _sum(one: Any, other: Any) -> Any:
    return one + other if isinstance(one, torch.Tensor) else one


def _of_parameters(node: Any) -> list[int]:
    """The arguments of a function that are parameters, or computed from one alone."""
    places = [place for place, needed in enumerate(node.needs_input_grad) if needed]
    parents = [parent for parent, _ in node.next_functions if parent is not None]
    if len(places) != len(parents):
        return []
    return [place for place, parent in zip(places, parents, strict=True) if _is_parameter(parent)]


def _is_parameter(node: Any) -> bool:
    while len(node.next_functions) == 1 and node.next_functions[0][0] is not None:
        node = node.next_functions[0][0]
    return isinstance(getattr(node, "variable", None), nn.Parameter)


def _unknown(name: str) -> GradientError:
    return GradientError(
        "PD337",
        "the backward of a torch.autograd.Function cannot be checked, because it does not give "
        "the same result twice, or writes to other tensors; gradients are larger here than in one "
        "process with all rows",
        value=name,
        hint="where it clips, normalizes or has a threshold, decorate backward with "
        "popdist_torch.global_batch_hook below @staticmethod; else ignore the warning",
    )


class _Context:
    """The context of a function, whose saved tensors are read once: a checkpoint allows no more."""

    def __init__(self, node: Any) -> None:
        object.__setattr__(self, "_node", node)
        object.__setattr__(self, "_saved", None)

    @property
    def saved_tensors(self) -> Any:
        """The tensors that ``forward`` has saved."""
        if self._saved is None:
            object.__setattr__(self, "_saved", self._node.saved_tensors)
        return self._saved

    def __getattr__(self, name: str) -> Any:
        """Everything else is the context's own."""
        return getattr(self._node, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets it on the context itself."""
        setattr(self._node, name, value)


class _Calls:
    """Notes whether code calls other processes, or runs a backward pass of its own."""

    def __init__(self) -> None:
        self.exchange = False

    def __enter__(self) -> None:
        self._before = sys.getprofile()
        sys.setprofile(self._seen)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)

    def _seen(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            module = str(frame.f_globals.get("__name__"))
            inner = module == "torch.autograd" and frame.f_code.co_name == "backward"
        elif event == "c_call":
            module, inner = str(getattr(argument, "__module__", "")), False
        else:
            return
        self.exchange = self.exchange or inner or module.startswith(_EXCHANGES)
