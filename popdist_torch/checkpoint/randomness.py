"""The host's random streams, from which programs draw augmentations, masks and orders."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def state() -> dict[str, Any]:
    """Where the streams of this process stand.

    Returns:
        Plain values: torch's default streams, Python's, and numpy's where numpy is imported.
    """
    version, numbers, gauss = random.getstate()
    kept: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, list(numbers), gauss],
    }
    if torch.cuda.is_available():
        kept["cuda"] = torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        kept["numpy"] = [name, keys.tolist(), *rest]
    return kept


def restore(kept: dict[str, Any]) -> None:
    """Puts the streams of this process where others stood.

    Args:
        kept: What `state` returned.
    """
    torch.set_rng_state(kept["torch"])
    version, numbers, gauss = kept["python"]
    random.setstate((version, tuple(numbers), gauss))
    if "cuda" in kept and torch.cuda.device_count() == len(kept["cuda"]):
        torch.cuda.set_rng_state_all(kept["cuda"])
    if "numpy" in kept:
        import numpy as np

        name, keys, *rest = kept["numpy"]
        np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002 - theirs
