"""A picture of the exchange: when slices leave, made by the exchange's own planner."""

from __future__ import annotations

from svg import BLUE, GREEN, GREY, ORANGE, Picture  # beside this script

from popdist.exchange.buckets import Item, plan

LAYERS = {"layer 5": 400, "layer 4": 1200, "layer 3": 1600, "layer 2": 900, "layer 1": 700}
"""Gradients in the order in which backward makes them, with their number of elements."""

SLICE = 1024
"""Elements of a slice."""

SCALE = 0.115
"""Pixels for each element, as time to compute and time to travel."""


def overlap_picture() -> str:
    """Slices that leave while backward goes on."""
    items = [Item(name, elements, "float32", 4) for name, elements in LAYERS.items()]
    layout = plan(items, slice_bytes=4 * SLICE)
    picture = Picture(900, 220, "Slices of gradients leave while backward computes the next ones")
    for row, name in enumerate(("backward", "buffer", "exchange", "update")):
        picture.words(10, 45 + 50 * row, name, place="start")
    ready, now = [], 90.0
    for item in items:
        width = item.elements * SCALE
        picture.labelled(now, 25, width, 30, item.name, BLUE)
        now += width
        ready.append(now)
    end = busy = 0.0
    for number, part in enumerate(layout.slices):
        left, width = 90 + part.start * SCALE, (part.stop - part.start) * SCALE
        picture.labelled(left, 75, width, 30, f"slice {number}", GREY)
        busy = max(busy, ready[part.items[-1]] + 4)
        picture.arrow(left + width, 105, busy + 1, 125)
        picture.labelled(busy, 125, width * 0.8, 30, f"{number}", ORANGE)
        busy += width * 0.8
        end = max(end, busy)
    picture.labelled(end + 4, 175, 60, 30, "update", GREEN)
    return picture.text()


PICTURES = {"overlap": overlap_picture}
"""By the name of the file."""
