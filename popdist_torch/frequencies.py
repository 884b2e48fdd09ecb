"""Embeddings whose gradients are divided by counts, in a job of several replicas.

With ``scale_grad_by_freq``, the gradient of a word is divided by how often the word is in the
batch. Each replica counts its own rows. One process counts those of all, so its gradients differ,
and no factor makes up for that afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from popdist_torch.errors import Error

if TYPE_CHECKING:
    from collections.abc import Iterable

LAYERS = (nn.Embedding, nn.EmbeddingBag)


def require_none_in_graph(outputs: Iterable[Any]) -> None:
    """Checks the graph of a backward pass.

    Raises:
        Error: It has an embedding that divides gradients by counts.
    """
    # Compilers trace backward passes of other kinds of tensors.
    roots = (o.grad_fn for o in outputs if type(o) in (torch.Tensor, nn.Parameter))
    pending = [node for node in roots if node is not None]
    seen = set(pending)
    while pending:
        node = pending.pop()
        if getattr(node, "_saved_scale_grad_by_freq", False):
            raise _refused(node.name().removesuffix("Backward0"))
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                pending.append(parent)


def require_no_layer(modules: Iterable[nn.Module]) -> None:
    """Checks modules, as graphs of compiled code do not say what they have.

    Raises:
        Error: An embedding divides gradients by counts.
    """
    for module in modules:
        if isinstance(module, LAYERS) and module.scale_grad_by_freq and module.training:
            raise _refused(repr(module))


def _refused(name: str) -> Error:
    return Error(
        "PD338",
        "an embedding divides gradients by how often a word is in the rows of one replica, and "
        "one process would count the rows of all",
        value=f"{name}, scale_grad_by_freq=True",
        accepted="scale_grad_by_freq=False",
        hint="weigh the losses of rows instead, by counts of all processes (hvd.allreduce)",
    )
