"""Detection of a model's loss by the functions it calls, and a check that losses are finite."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch.utils import _pytree as pytree

from popdist_torch.errors import LossError, NotFiniteError
from popdist_torch.executor.mixed_precision import MixedPrecision, accepted
from popdist_torch.ops.hints import identity_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from popdist_torch.options.placement import Placement

logger = logging.getLogger("popdist.torch")

LOSS_FUNCTIONS: frozenset[Callable[..., Any]] = frozenset(
    {
        identity_loss,
        torch.ops.poptorch.identity_loss,
        torch.ops.poptorch.identity_loss.default,
        F.binary_cross_entropy,
        F.binary_cross_entropy_with_logits,
        F.cosine_embedding_loss,
        F.cross_entropy,
        F.ctc_loss,
        F.hinge_embedding_loss,
        F.kl_div,
        F.l1_loss,
        F.margin_ranking_loss,
        F.mse_loss,
        F.multilabel_soft_margin_loss,
        F.nll_loss,
        F.poisson_nll_loss,
        F.smooth_l1_loss,
        F.soft_margin_loss,
        F.triplet_margin_loss,
    }
)
"""Every function whose result is a loss; the modules of ``torch.nn`` call these."""


class LossWatch(MixedPrecision):
    """Records the result of every loss function that a model calls.

    Attributes:
        found: The losses that can be differentiated, in the order of their calls.
        without_graph: Number of the other losses.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[torch.Tensor] = []
        self.without_graph = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Calls a torch function, and records its result if that is a loss."""
        if func not in LOSS_FUNCTIONS:
            return super().__torch_function__(func, types, args, kwargs)
        args, kwargs = accepted(func, args, kwargs or {})
        try:
            result = func(*args, **kwargs)
        except (IndexError, RuntimeError, ValueError) as error:
            raise _refused(func, (*args, *kwargs.values()), error) from error
        # Losses inside torch.func's transforms belong to the transform.
        inner = torch._C._functorch.is_functorch_wrapped_tensor  # noqa: SLF001 - torch's own test
        if not inner(result):
            if result.requires_grad:
                self.found.append(result)
            else:
                self.without_graph += 1
        return result


def _refused(func: Any, args: Sequence[Any], error: Exception) -> LossError:
    """The error for a loss function that does not accept the model's arguments."""
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    classes = func in (F.cross_entropy, F.nll_loss) and len(tensors) > 1
    labels = classes and tensors[1].is_floating_point() and tensors[1].dim() < tensors[0].dim()
    return LossError(
        "PD303",
        f"the loss function {func.__name__} does not take these tensors: {error}",
        value=", ".join(f"{tuple(t.shape)} {t.dtype}" for t in tensors),
        hint="labels that are classes are whole numbers: labels.long()" if labels else None,
    )


def final_loss(found: Sequence[torch.Tensor]) -> int:
    """The index of the one loss that no other loss depends on.

    Raises:
        LossError: There is none, or more than one.
    """
    if not found:
        raise LossError(
            "PD303",
            "Couldn't find a loss in graph!",
            hint="use a loss of torch.nn, or mark your own with "
            "popdist_torch.identity_loss(value, reduction='none')",
        )
    if len(found) == 1:
        return 0
    absorbed: set[Any] = set()
    for loss in found:
        absorbed |= _ancestors(loss)
    final = [index for index, loss in enumerate(found) if loss.grad_fn not in absorbed]
    if len(final) > 1:
        raise LossError(
            "PD303",
            "Multiple independent losses found in graph. Graph must have one final loss. "
            "Wrap final graph loss in poptorch.identity_loss.",
            value=f"{len(final)} losses",
            accepted="one loss",
            hint="return poptorch.identity_loss(first + second, reduction='none')",
        )
    return final[0]


def warn_of_no_effect() -> None:
    """Warns where a model has losses, and no parameter has an effect on them."""
    warning = LossError(
        "PD351",
        "the loss depends on no parameter that is trained, so calls train nothing",
        hint="leave out detach(), no_grad() and operations without a gradient before the loss",
    )
    logger.warning("%s", warning)


def warn_of_unmarked(output: Any, loss: torch.Tensor) -> None:
    """Warns where ``forward`` returns a value computed from the loss, as the real loss may be."""
    for leaf in pytree.tree_leaves(output):
        if (
            isinstance(leaf, torch.Tensor)
            and leaf is not loss
            and leaf.requires_grad
            and leaf.numel() == 1
            and loss.grad_fn in _ancestors(leaf)
            and leaf.detach().sum() != loss.detach().sum()
        ):
            warning = LossError(
                "PD316",
                "forward returns a value that is computed from the loss, and that is not what "
                "trains: the loss is the result of the last loss function of torch.nn, added up",
                value=f"{leaf.detach().sum():.6g} returned; {loss.detach().sum():.6g} trains",
                hint="popdist_torch.identity_loss(value, reduction='none') in forward makes the "
                "value the loss; use value.detach() for a metric",
            )
            logger.warning("%s", warning)
            return


def _ancestors(loss: torch.Tensor) -> set[Any]:
    """The graph nodes that a tensor depends on, without its own."""
    seen: set[Any] = set()
    pending = [loss.grad_fn]
    while pending:
        node = pending.pop()
        for parent, _ in node.next_functions if node is not None else ():
            if parent is not None and parent not in seen:
                seen.add(parent)
                pending.append(parent)
    return seen


# Stopping a job at the first loss that is not finite, with its place, on all instances.


class LossGuard:
    """Checks the losses of every update.

    Where a loss is infinite or not a number, all instances raise the same error before the update,
    so the weights are still those of the previous update. The check costs one small allreduce an
    update.

    Args:
        here: The local replicas' place in the job.
        horovod: The module ``horovod.torch``, initialised; None for a job of one instance.
        label: Prefix for the name of the exchanged tensor; equal on all instances.
    """

    def __init__(self, here: Placement, horovod: Any, label: str) -> None:
        self._here = here
        self._horovod = horovod
        self._name = f"{label}.losses"
        self._updates = 0
        # For every replica of the job the first bad accumulation step, counted from 1.
        self._bad = torch.zeros(here.total_replicas)

    def watch(self, loss: torch.Tensor, step: int, replica: int) -> None:
        """Checks the loss of one micro-batch; step and replica are local indices from 0."""
        index = self._here.first_replica + replica
        if not self._bad[index] and not bool(torch.isfinite(loss.detach()).all()):
            self._bad[index] = step + 1

    def require_finite(self, iteration: int) -> None:
        """Ends the update of a device iteration (from 0).

        Raises:
            NotFiniteError: A loss of some replica of the job was infinite or not a number.
        """
        bad = self._bad
        if self._horovod is not None:
            bad = self._horovod.allreduce(bad, op=self._horovod.Sum, name=self._name)
        self._bad = torch.zeros_like(self._bad)
        self._updates += 1
        found = [(index, int(step) - 1) for index, step in enumerate(bad.tolist()) if step]
        if found:
            where = "; ".join(f"replica {index}, accumulation step {step}" for index, step in found)
            raise NotFiniteError(
                "PD309",
                f"a loss is infinite or not a number in update {self._updates} (device iteration "
                f"{iteration} of its call), which was not made",
                value=where,
                hint="check the data of that micro-batch; a lower learning rate or loss scaling, "
                "or clipping, helps where losses grow first",
            )
