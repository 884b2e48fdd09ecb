"""A warning for buffers that a plain loop's model changes by the rows of one process.

Gradients are averaged over all processes, buffers are not: a codebook, a center or a queue that
``forward`` updates follows each process's own rows, and models of processes part without an error.
Running statistics of normalization layers are exempt, as they are not used in training.
"""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from popdist.agreement import ABSENT, disagreements, listed
from popdist.checks import is_enabled
from popdist.exchange import gather
from popdist_torch.agreement import buffer_facts
from popdist_torch.checks import BUFFERS
from popdist_torch.errors import PlainLoopError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

logger = logging.getLogger("popdist.torch")


def differ(parameters: Sequence[torch.Tensor], horovod: Any) -> bool:
    """Warns on the first process of buffers that differ; every process must call it.

    Args:
        parameters: Parameters of the models whose buffers are compared.
        horovod: The module ``horovod.torch``, initialised.

    Returns:
        Whether there are any.
    """
    stated = buffer_facts(_buffers({id(parameter) for parameter in parameters}).items())
    found = [row for row in disagreements(stated, gather(horovod)) if ABSENT not in row.values]
    if found and horovod.rank() == 0 and is_enabled(BUFFERS):
        logger.warning(
            "%s",
            PlainLoopError(
                "PD311",
                "the model's buffers differ between processes, as each process has changed them by "
                f"its own rows:{listed(found)}",
                hint="average in forward what changes them (hvd.allreduce), or gather the rows "
                "(hvd.allgather); ignore the warning for buffers that are meant to be local",
            ),
        )
    return bool(found)


def _buffers(own: set[int]) -> dict[str, torch.Tensor]:
    """The buffers of all models that have some of the parameters, but of normalization layers."""
    # Not isinstance: that asks weak proxies for the class of an object that may be gone.
    modules = [o for o in gc.get_objects() if issubclass(type(o), nn.Module)]
    inner = {
        id(part) for module in modules for part in module.__dict__.get("_modules", {}).values()
    }
    found: dict[str, torch.Tensor] = {}
    twice = set()
    for root in modules:
        if id(root) in inner or "_modules" not in root.__dict__:
            continue
        if own.isdisjoint(map(id, root.parameters())):
            continue
        for prefix, part in root.named_modules():
            if isinstance(part, _NormBase):
                continue
            for name, buffer in part.named_buffers(prefix, recurse=False):
                place = f"{name} of {type(root).__qualname__}"
                twice |= {place} & found.keys()
                found[place] = buffer
    return {name: buffer for name, buffer in found.items() if name not in twice}
