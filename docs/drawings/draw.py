"""Draws the diagrams of the pages into docs/images, or checks that they are up to date.

Each is made by the code that it is about, so a change there shows here. Run
``python docs/drawings/draw.py`` after such a change.
"""

from __future__ import annotations

import sys
from pathlib import Path

import architecture  # beside this script, as are the next ones
import batches
import graphs
import overlap
import placement

IMAGES = Path(__file__).resolve().parents[1] / "images"
PICTURES = {
    name: draw
    for module in (architecture, placement, batches, graphs, overlap)
    for name, draw in module.PICTURES.items()
}


def main(arguments: list[str]) -> int:
    """Draws, or with ``--check`` names the pictures that are out of date.

    Args:
        arguments: The command line.

    Returns:
        1 where a picture was out of date and was not to be drawn, else 0.
    """
    stale = 0
    for name, draw in PICTURES.items():
        path, text = IMAGES / f"{name}.svg", draw()
        if not path.exists() or path.read_text() != text:
            stale += 1
            print(path.name)
            if "--check" not in arguments:
                path.write_text(text)
    return int(stale > 0 and "--check" in arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
