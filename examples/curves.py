"""What the training examples show: a bar, throughput, and the loss as a curve."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tqdm import tqdm

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def progress(total: int, *, shown: bool) -> tqdm[None]:
    """A progress bar on one instance; those of the others would only overwrite it.

    Args:
        total: Updates.
        shown: Whether this is that instance.

    Returns:
        The bar.
    """
    return tqdm(total=total, unit="update", disable=not shown, file=sys.stdout, mininterval=0.5)


def write_curve(losses: Sequence[float], path: Path, title: str) -> None:
    """Writes losses as a PNG.

    Args:
        losses: One for each update.
        path: The file.
        title: What was trained.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SystemExit(
            "--plot needs matplotlib: pip install -e '.[examples]' -c constraints/default.txt"
        ) from None
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(losses) + 1), losses, linewidth=1)
    axes.set(title=title, xlabel="update", ylabel="loss", ylim=(0, None))
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    print(f"wrote {path}", flush=True)
