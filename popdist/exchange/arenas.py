"""The flat buffers of an exchange plan, and the items' places in them as tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist.exchange.planner import Plan


def allocate(plan: Plan, *, device: torch.device | str = "cpu") -> list[torch.Tensor]:
    """Allocates the arenas of a plan.

    Args:
        plan: The plan.
        device: Where they live.

    Returns:
        One zero-filled 1-D tensor per arena; one without elements for those that are lent.
    """
    return [
        torch.zeros(
            0 if arena.lent else arena.elements, dtype=getattr(torch, arena.dtype), device=device
        )
        for arena in plan.arenas
    ]


def views(
    plan: Plan, arenas: Sequence[torch.Tensor], shapes: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    """The items' places in the arenas.

    Args:
        plan: The plan.
        arenas: Its arenas.
        shapes: The shape of each item.

    Returns:
        One tensor per item, of the item's shape, that shares the arena's memory; one without
        elements for those in lent arenas.
    """
    return [
        arenas[slot.arena]
        if plan.arenas[slot.arena].lent
        else arenas[slot.arena][slot.start : slot.stop].view(tuple(shape))
        for slot, shape in zip(plan.slots, shapes, strict=True)
    ]
