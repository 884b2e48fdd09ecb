"""Embeddings that change their weight by the rows of one process.

With ``max_norm``, a call shortens the words that it looks up, in the weight. Each process looks up
its own rows, so their weights diverge. Replicas of one process share the weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from popdist_torch.errors import AgreementError

if TYPE_CHECKING:
    from collections.abc import Iterable

LAYERS = (nn.Embedding, nn.EmbeddingBag)


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
