"""Models that ``torch.compile`` has compiled, whole or in part, and models that options compile.

The first call of such a model runs eagerly. It finds what an executor has to know and cannot see in
compiled code: the place of the loss among the outputs, modules that run without being parts of the
model, and layers whose results are marked. Later calls run compiled code with nothing around it
that Dynamo would have to trace or to guard, so nothing is compiled again per step or replica.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch._C._dynamo import eval_frame
from torch._functorch import config as functorch
from torch.nn.parallel import DistributedDataParallel

from popdist.exchange import DEFAULT_SLICE_BYTES
from popdist_torch.errors import LossError
from popdist_torch.executor.structure import flatten

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import nn

    from popdist_torch.executor.structure import Structure

_PIECES = 8


def is_compiled(model: nn.Module) -> bool:
    """Whether a module or a part of it is compiled: ``torch.compile(part)``, ``part.compile()``."""
    return any(
        hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) is not None
        for part in model.modules()
    )


def original(model: nn.Module) -> nn.Module:
    """The module that ``torch.compile`` was given; any other module unchanged."""
    return getattr(model, "_orig_mod", model)


def compiled_as_asked(model: nn.Module, settings: Mapping[str, Any] | None) -> Any:
    """What runs a model: itself, or what ``torch.compile`` makes of it with an option's settings.

    The program's own module is not changed.
    """
    return model if settings is None else torch.compile(model, **settings)


def keep_from_dynamo(*functions: Any) -> None:
    """Keeps Dynamo from tracing some functions."""
    found: Any = eval_frame  # what torch.compiler.disable sets, which loads Dynamo
    if not hasattr(found, "set_code_exec_strategy"):
        return  # an older torch
    never = found._FrameExecStrategy(found._FrameAction.SKIP, found._FrameAction.SKIP)  # noqa: SLF001 - as above
    for function in functions:
        found.set_code_exec_strategy(function.__code__, never)


@contextmanager
def eagerly() -> Iterator[None]:
    """Makes compiled code inside run as it was written."""
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        # The executor's own hook is meant to see each call of a module.
        warnings.filterwarnings("ignore", "Using `torch.compile", category=UserWarning)
        yield


def plain_backward() -> AbstractContextManager[Any]:
    """Makes backward passes that are compiled inside run without an autocast that is on around.

    Torch's default gives them the autocast of the forward pass, unlike eager code.
    """
    off: AbstractContextManager[Any] = functorch.patch({"backward_pass_autocast": "off"})
    return off


@contextmanager
def in_pieces(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Makes Dynamo divide what it compiles inside, as it does for ``DistributedDataParallel``.

    A compiled backward pass returns all gradients at its end. In pieces, those of the last layers
    are sent while earlier layers are still computed. Dynamo asks torch's own wrapper for the size
    of a piece, and needs nothing else of it.
    """
    sizes = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    kind: Any = DistributedDataParallel
    before = kind._active_ddp_module  # noqa: SLF001 - the only way to ask for it
    kind._active_ddp_module = SimpleNamespace(  # noqa: SLF001 - as above
        bucket_bytes_cap=max(DEFAULT_SLICE_BYTES, sizes // _PIECES)
    )
    try:
        yield
    finally:
        kind._active_ddp_module = before  # noqa: SLF001 - as above


class LossPlace:
    """The place of the loss among the outputs of a compiled model.

    Args:
        output: What the first, eager micro-batch returned, in any nesting.
        loss: Its loss.

    Raises:
        LossError: The model does not return its loss.
    """

    def __init__(self, output: Any, loss: torch.Tensor) -> None:
        leaves, self._structure = flatten(output)
        places = [place for place, leaf in enumerate(leaves) if leaf is loss]
        if not places:
            raise LossError(
                "PD313",
                "a compiled model does not return its loss",
                value=self._structure,
                accepted="outputs among which the loss is, such as `return output, loss`",
                hint="return the loss from forward, or leave torch.compile out; what is computed "
                "inside compiled code cannot be watched",
            )
        self._place = places[0]
        self._described = _described(loss)

    def find(self, output: Any) -> torch.Tensor:
        """The loss among the outputs of a micro-batch.

        Raises:
            LossError: The outputs are other than in the first micro-batch.
        """
        leaves, structure = flatten(output)
        found = leaves[self._place] if structure == self._structure else None
        if not isinstance(found, torch.Tensor) or _described(found) != self._described:
            raise LossError(
                "PD313",
                "a compiled model returned other outputs than in its first micro-batch, so its "
                "loss cannot be found",
                value=_shown(structure, found),
                accepted=f"{self._structure} with the loss at place {self._place}",
                hint="return the same nesting in each step, or leave torch.compile out",
            )
        return found


def _described(loss: torch.Tensor) -> tuple[Any, ...]:
    return (loss.shape, loss.dtype, loss.requires_grad)


def _shown(structure: Structure, found: Any) -> str:
    seen = _described(found) if isinstance(found, torch.Tensor) else type(found).__name__
    return f"{structure}, with {seen} at that place"
