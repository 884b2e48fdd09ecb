"""The growth of step time as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.growth.curves import NETWORKS, constants, predicted, rows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from benchmarks.document import Document

_STYLES = {"ring": "--", "hierarchical": "-", "overlapped": ":"}
_COLORS = ("#b3432b", "#2f5fb3")


def draw(record: Document) -> Any | None:
    """Draws the model to 8,192 instances beside what was measured on one host.

    Args:
        record: A record.

    Returns:
        A figure of matplotlib; None where growth was not measured.
    """
    from matplotlib.figure import Figure

    known = constants(record)
    if known is None:
        return None
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for network, color in zip(NETWORKS, _COLORS, strict=True):
        curve = list(predicted(known, network))
        for way, style in _STYLES.items():
            times = [seconds[way] * 1e3 for _, seconds in curve]
            label = f"{way}, {network}"
            left.plot([n for n, _ in curve], times, style, color=color, label=label)
    left.axhline(known.compute * 1e3, color="black", linewidth=0.8, label="compute alone")
    left.set(xscale="log", yscale="log", title="model: 8 instances a host, a core for each")
    left.legend(fontsize=8)
    draw_measured(right, record)
    right.set_title(f"one host with {known.cores} cores: measured (dots), model (lines)")
    _labelled(left)
    return figure


def is_measured(record: Document) -> bool:
    """Whether a record has steps on several numbers of ranks."""
    return len({row["parameters"]["ranks"] for row in _rows(record, "step")}) > 1


def draw_measured(axes: Axes, record: Document) -> None:
    """Draws step, exchange and computation on one host beside the model.

    Args:
        axes: Where.
        record: A record in which `is_measured`.
    """
    for what, color in {"step": "#1f2328", "exchange": "#b3432b", "compute": "#2f5fb3"}.items():
        rows = _rows(record, what)
        ranks = [row["parameters"]["ranks"] for row in rows]
        axes.plot(ranks, [row["peer_value"] for row in rows], "--", color=color)
        axes.plot(ranks, [row["value"] for row in rows], "o", color=color, label=what)
    axes.set(xscale="log", yscale="log")
    axes.legend(fontsize=8)
    _labelled(axes)
    axes.set_xticks([1, 2, 4, 8], minor=False)
    axes.xaxis.set_minor_formatter("")


def _rows(record: Document, what: str) -> list[dict[str, Any]]:
    return [r for r in rows_of(record) if r["parameters"]["what"] == what and r["peer"]]


def _labelled(axes: Axes) -> None:
    from matplotlib.ticker import LogLocator

    axes.set(xlabel="instances", ylabel="ms")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter("")
    axes.grid(alpha=0.3)
