"""Forward passes in which rows do not meet and nothing is drawn: for measurements of gradients.

Dropout and normalization over a batch are meant to be each replica's own. Inside `Quiet` dropout
keeps its input and batch normalization uses running statistics, as in evaluation mode, whatever
calls them; the modules keep their training flags, by which ``forward`` may choose its outputs.
"""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch.overrides import TorchFunctionMode

from popdist.checks import passes
from popdist_torch.synchronised_norms import OverAllProcesses

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from torch import nn

_DROPOUTS = frozenset(
    {
        *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout),
        *(F.feature_alpha_dropout, torch.dropout, torch.dropout_, torch.feature_dropout),
        *(torch.alpha_dropout, torch.feature_alpha_dropout),
    }
)
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


class Quiet(TorchFunctionMode):
    """Calls functions of dropout and batch normalization as in evaluation mode."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Calls a torch function, without what it does in training only."""
        kwargs = dict(kwargs or {})
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func is F.batch_norm:
            return _with_running_statistics(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            place = 4  # of dropout_p
            if len(args) > place:
                args = (*args[:place], 0.0, *args[place + 1 :])
            else:
                kwargs["dropout_p"] = 0.0
        elif func is F.multi_head_attention_forward:
            kwargs["training"] = False  # the flag of its dropout, and of nothing else
        elif getattr(func, "__name__", "") in _RECURRENT:
            args = tuple(0.0 if isinstance(value, float) else value for value in args)
        return func(*args, **kwargs)


def _with_running_statistics(
    input: torch.Tensor,  # noqa: A002 - torch's names, as callers give them
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    del training
    if running_mean is None or running_var is None:
        running_mean, running_var = input.new_zeros(input.shape[1]), input.new_ones(input.shape[1])
    return F.batch_norm(
        input, running_mean, running_var, weight, bias, training=False, momentum=momentum, eps=eps
    )


def without_exchange() -> AbstractContextManager[None]:
    """Makes collective operations of Horovod raise `ExchangeError` inside."""
    others = {"horovod_torch_barrier", "horovod_torch_join"}
    return passes.without_exchange(
        "horovod.torch.mpi_ops", "mpi_lib", lambda name: "_async" in name or name in others
    )


@contextmanager
def local_norms(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Keeps layers that normalize over all processes from exchanging inside."""
    layers = [part for part in modules if isinstance(part, OverAllProcesses) and part.training]
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer in layers:
            layer.training = True


def seed_all(seed: int) -> None:
    """Seeds the random numbers of torch, Python and numpy."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
