"""A picture of the batch algebra, made by the adapter's own arithmetic."""

from __future__ import annotations

from svg import BLUE, GREEN, GREY, ORANGE, PURPLE, Picture  # beside this script

from popdist_torch.executor.batching import Batching

MICRO_BATCH = 4
SHADES = (BLUE, GREEN)


def batches_picture() -> str:
    """Which rows of one call go where: D = 2, A = 3, R = 2."""
    counts = Batching(iterations=2, accumulation=3, replicas=2)
    rows = MICRO_BATCH * counts.parts
    picture = Picture(860, 330, "The rows of one call, and the replicas that read them")
    picture.words(430, 18, f"one call: {rows} rows = D 2 x A 3 x R 2 x micro-batch {MICRO_BATCH}")
    width = 820 / counts.parts
    for d in range(counts.iterations):
        left = 20 + d * 410
        picture.words(left + 200, 84, f"device iteration {d}: one update")
        picture.box(left, 100, 400, 170, GREY)
        for a in range(counts.accumulation):
            for r in range(counts.replicas):
                part = counts.part(d, a, r)
                x = 20 + part * width
                first = part * MICRO_BATCH
                picture.labelled(x, 28, width, 28, f"{first}-{first + MICRO_BATCH - 1}", SHADES[r])
                cell = left + 92 + a * 102
                top = 132 + r * 44
                picture.labelled(
                    cell, top, 92, 34, f"rows {first}-{first + MICRO_BATCH - 1}", SHADES[r]
                )
            picture.words(left + 138 + a * 102, 122, f"step {a}", size=11)
        for r in range(counts.replicas):
            picture.words(left + 10, 153 + r * 44, f"replica {r}", place="start")
        picture.labelled(left + 10, 226, 380, 34, "sum over steps and local replicas", ORANGE)
        picture.arrow(left + 200, 262, left + 200, 286)
        picture.labelled(
            left, 288, 400, 32, "sum over instances, divided by A x Rg; update", PURPLE
        )
    return picture.text()


PICTURES = {"batches": batches_picture}
"""By the name of the file."""
