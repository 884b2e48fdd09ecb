"""Embeddings that depend on the rows of one replica, in a job of several.

With ``scale_grad_by_freq``, the gradient of a word is divided by how often the word is in the
batch. Each replica counts its own rows. One process counts those of all, so its gradients differ,
and no factor makes up for that afterwards.

With ``max_norm``, a call shortens the words that it looks up, in the weight. Each process looks up
its own rows, so their weights part. Replicas of one process share the weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from popdist_torch.errors import AgreementError, Error

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


def require_no_counts(modules: Iterable[nn.Module]) -> None:
    """Checks modules, as graphs of compiled code do not say what they have.

    Raises:
        Error: An embedding divides gradients by counts.
    """
    for module in modules:
        if isinstance(module, LAYERS) and module.scale_grad_by_freq and module.training:
            raise _refused(repr(module))


def require_no_shortening(modules: Iterable[nn.Module]) -> None:
    """Checks modules of a job of several processes, before it compares their weights.

    Raises:
        AgreementError: An embedding changes a weight that is trained, by the rows of its process.
    """
    for module in modules:
        if isinstance(module, LAYERS) and module.max_norm and module.weight.requires_grad:
            raise AgreementError(
                "PD007",
                "an embedding shortens the words that its process looks up, and each process "
                "looks up its own rows, so weights would differ between processes",
                value=repr(module),
                accepted="max_norm=None",
                hint="shorten all words on every process, when the layer is made and after each "
                "update: `with torch.no_grad(): layer.weight.renorm_("
                f"{module.norm_type:g}, 0, {module.max_norm:g})`",
            )


def _refused(name: str) -> Error:
    return Error(
        "PD338",
        "an embedding divides gradients by how often a word is in the rows of one replica, and "
        "one process would count the rows of all",
        value=f"{name}, scale_grad_by_freq=True",
        accepted="scale_grad_by_freq=False",
        hint="weigh the losses of rows instead, by counts of all processes (hvd.allreduce)",
    )
