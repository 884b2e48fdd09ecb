"""Results as pictures: the ratios of each benchmark, and the exchange over all sizes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from benchmarks.growth import chart as growth
from benchmarks.suite import SUITE

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.document import Document
    from benchmarks.rows import Aim

    RowDocument = dict[str, Any]

_MET, _NOT_MET, _NO_VERDICT = "#2a7f4f", "#b3432b", "#7d8590"
_PEERS = {
    "memcpy": "#1f2328",
    "popdist": "#2a7f4f",
    "MPI sliced": "#5b8def",
    "MPI": "#2f5fb3",
    "torch gloo": "#d98a29",
    "Horovod defaults": "#b3432b",
}
_MOST_BARS = 40


class PicturesError(RuntimeError):
    """matplotlib is not installed."""


def draw(document: Document, folder: Path) -> list[Path]:
    """Draws all charts of some results.

    Args:
        document: The results.
        folder: Where the PNG files go; it is made where it does not exist.

    Returns:
        The files, in the order of the benchmarks.

    Raises:
        PicturesError: matplotlib is not installed.
    """
    require()
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name in [one["name"] for one in document["benchmarks"]]:
        rows = [row for row in document["rows"] if row["benchmark"] == name]
        if name == "exchange" and rows:
            drawn.append(_save(_sizes(rows), folder / "exchange-sizes.png"))
        if name == "growth" and (figure := growth.draw(document)) is not None:
            drawn.append(_save(figure, folder / "growth-model.png"))
        compared = ratios(rows)
        if compared:
            drawn.append(_save(_ratios(name, compared), folder / f"{name}.png"))
    return drawn


def require() -> None:
    """Finds out before minutes of work, and not after them, whether charts can be drawn.

    Raises:
        PicturesError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401 - the look is all
    except ImportError:
        raise PicturesError(
            "charts need matplotlib: pip install -e '.[examples]' -c constraints/default.txt"
        ) from None


def ratios(rows: list[RowDocument]) -> list[RowDocument]:
    """The rows of one benchmark that a chart of ratios shows.

    Args:
        rows: All of them.

    Returns:
        Those with a ratio; of very many, those with an aim.
    """
    found = [row for row in rows if row["ratio"]]
    return found if len(found) <= _MOST_BARS else [row for row in found if row["aim"]]


def _ratios(name: str, rows: list[RowDocument]) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    aims = {aim.sentence: aim for one in SUITE if one.name == name for aim in one.aims}
    figure = Figure(figsize=(9, 1.2 + 0.32 * len(rows)), layout="constrained")
    axes = figure.subplots()
    places = range(len(rows), 0, -1)
    axes.barh(
        places,
        [row["ratio"] - 1 for row in rows],
        left=1,
        height=0.6,
        color=[_color(row) for row in rows],
    )
    for place, row in zip(places, rows, strict=True):
        axes.annotate(
            f"{row['ratio']:.2f}",
            (row["ratio"], place),
            (4 if row["ratio"] >= 1 else -4, 0),
            textcoords="offset points",
            ha="left" if row["ratio"] >= 1 else "right",
            va="center",
            fontsize=8,
        )
        bound = _bound(aims.get(row["aim"]))
        if bound is not None:
            axes.plot([bound, bound], [place - 0.4, place + 0.4], color="black", linewidth=1.5)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(list(places), [f"{row['name']}  /  {row['peer']}" for row in rows], fontsize=8)
    axes.margins(x=0.12)
    axes.set_title(
        f"{name}: time over the peer's (below 1 is faster)\n"
        "green: aim met, red: not met, grey: no aim or no verdict; black mark: the aim",
        fontsize=9,
    )
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter("")
    axes.grid(axis="x", alpha=0.3)
    return figure


def _color(row: RowDocument) -> str:
    if row["met"] is None:
        return _NO_VERDICT
    return _MET if row["met"] else _NOT_MET


def _bound(aim: Aim | None) -> float | None:
    if aim is None or aim.of != "ratio":
        return None
    return aim.at_most if aim.at_most is not None else aim.at_least


def _sizes(rows: list[RowDocument]) -> Any:
    """Time against size in each kind of memory."""
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys((r["parameters"]["buffers"], _many(r)) for r in rows))
    across = min(3, len(kinds))
    down = math.ceil(len(kinds) / across)
    figure = Figure(figsize=(4.4 * across, 3.8 * down), layout="constrained")
    panels = list(figure.subplots(down, across, sharey=True, squeeze=False).flat)
    for spare in panels[len(kinds) :]:
        spare.remove()
    panels = panels[: len(kinds)]
    for axes, (buffers, many) in zip(panels, kinds, strict=True):
        for contender, points in _curves(rows, buffers, many=many).items():
            sizes, micros = zip(*sorted(points.items()), strict=True)
            axes.plot(
                sizes, micros, marker="o", markersize=3, label=contender, color=_PEERS[contender]
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: _readable(value))
        axes.set_title(f"{'16 tensors' if many else 'one tensor'}, {buffers} buffers", fontsize=9)
        axes.set_xlabel("bytes of each rank")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("microseconds (minimum)")
    panels[0].legend(fontsize=8)
    return figure


def _curves(rows: list[RowDocument], buffers: str, *, many: bool) -> dict[str, dict[int, float]]:
    curves: dict[str, dict[int, float]] = {name: {} for name in _PEERS}
    for row in rows:
        parameters = row["parameters"]
        if (parameters["buffers"], _many(row)) != (buffers, many):
            continue
        for contender, value in (
            (parameters["contender"], row["value"]),
            (row["peer"], row["peer_value"]),
        ):
            # Fresh memory leaves memcpy nothing to do at small sizes; a logarithm has no 0.
            if contender in curves and value:
                curves[contender][parameters["bytes"]] = value
    return {name: points for name, points in curves.items() if points}


def _many(row: RowDocument) -> bool:
    return bool(row["parameters"]["tensors"] > 1)


def _readable(size: float) -> str:
    for unit, name in ((2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size:g} B"


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=110)
    return path
