"""Results as pictures: each value beside its peers, and the exchange over all sizes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.growth import chart as growth
from benchmarks.suite import SUITE

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from benchmarks.document import Document

    RowDocument = dict[str, Any]

_BEST, _NOT_BEST, _PEER, _AIM = "#2a7f4f", "#d98a29", "#b9c0c9", "#1f2328"
_PEERS = {
    "memcpy": "#1f2328",
    "popdist": "#2a7f4f",
    "MPI sliced": "#5b8def",
    "MPI": "#2f5fb3",
    "torch gloo": "#d98a29",
    "Horovod defaults": "#b3432b",
}
_LIMIT = "#dfe3e8"
_LIMITS = frozenset(
    {
        "mpirun",
        "1 rank",
        "memcpy",
        "model",
        "bare Python",
        "MPI",
        "MPI sliced",
        "plain torch",
        "matrix products alone",
        "a thread that only sends",
    }
)
"""Peers that do less: they are what a value can come near to."""

_BACKGROUND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8}
_HEADLINES = (
    ("launcher", "poprun 2 x true", "Start two processes"),
    ("exchange", "popdist, 64 MiB, reused", "Sum 64 MiB over two processes"),
    (
        "torch",
        "popdist model, 25 M perceptron: step, 2 ranks",
        "PyTorch: a step of a 25 M perceptron on two ranks",
    ),
    (
        "tensorflow",
        "Keras step under PopDistStrategy, 2 ranks",
        "TensorFlow: a Keras step on two ranks",
    ),
    (
        "onnx",
        "step on 2 ranks, 4-layer transformer encoder, width 128, 16 x 64 tokens",
        "ONNX: a step of a transformer encoder on two ranks",
    ),
    (
        "onnx",
        "peak memory of a process, 4-layer transformer encoder, width 128, 16 x 64 tokens",
        "ONNX: peak memory of a transformer encoder",
    ),
)
"""Benchmark, row and title of each panel of the overview."""

_THOUSAND = 1000
_MOST_ROWS = 60
_WIDE = 30
"""From this ratio of the largest to the smallest value on, an axis is logarithmic."""


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
    headlines = _headlines(document["rows"])
    if len(headlines) == len(_HEADLINES):
        drawn.append(_save(_overview(headlines), folder / "overview.png"))
    for name in [one["name"] for one in document["benchmarks"]]:
        rows = [row for row in document["rows"] if row["benchmark"] == name]
        if name == "exchange" and rows:
            drawn.append(_save(_sizes(rows), folder / "exchange-sizes.png"))
        if name == "growth" and (figure := growth.draw(document)) is not None:
            drawn.append(_save(figure, folder / "growth-model.png"))
        measured = [group for group in groups(rows) if group.peers]
        if measured:
            drawn.append(_save(_bars(name, measured), folder / f"{name}.png"))
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


class Group(NamedTuple):
    """One value and what it is compared with.

    Attributes:
        name: What was measured.
        unit: The unit of all its values.
        value: Ours, the minimum.
        peers: What each peer took, by its name.
        bounds: What the aims ask for, in the same unit, by the peer that they speak about.
        wants_more: Whether more is better, as for a share that is hidden.
    """

    name: str
    unit: str
    value: float
    peers: dict[str, float]
    bounds: dict[str, float]
    wants_more: bool

    @property
    def is_best(self) -> bool:
        """Whether no rival is better; a limit is no rival."""
        better = max if self.wants_more else min
        rivals = [value for who, value in self.peers.items() if who not in _LIMITS]
        return better([self.value, *rivals]) == self.value


def groups(rows: list[RowDocument]) -> list[Group]:
    """The rows of one benchmark, one group for each value.

    Args:
        rows: All of them, one for each peer; of very many, only those with an aim are taken.

    Returns:
        The groups, in the order of the rows.
    """
    known = [row for row in rows if row["value"] is not None]
    if len(known) > _MOST_ROWS:
        known = [row for row in known if row["aim"]]
    found: dict[str, Group] = {}
    for row in known:
        wants_more = row["unit"] == "%"
        group = found.setdefault(
            row["name"], Group(row["name"], row["unit"], row["value"], {}, {}, wants_more)
        )
        if row["peer"] and row["peer_value"] is not None:
            group.peers[row["peer"]] = row["peer_value"]
        bound = _bound(row)
        if bound is not None:
            group.bounds[row["peer"] or ""] = bound
    return list(found.values())


def _bound(row: RowDocument) -> float | None:
    """What a row's aim asks of its value, in the row's unit."""
    aims = [aim for one in SUITE if one.name == row["benchmark"] for aim in one.aims]
    aim = next((aim for aim in aims if aim.sentence == row["aim"]), None)
    if aim is None:
        return None
    bound = aim.at_most if aim.at_most is not None else aim.at_least
    if bound is None or aim.of == "value" or row["peer_value"] is None:
        return bound
    peer = float(row["peer_value"])
    return peer * bound if aim.of == "ratio" else peer + bound


def _bars(name: str, measured: list[Group]) -> Any:
    """A panel for each unit, with a bar for our value and one for each peer's."""
    from matplotlib.figure import Figure

    units = list(dict.fromkeys(group.unit for group in measured))
    panels = [[group for group in measured if group.unit == unit] for unit in units]
    heights = [sum(len(group.peers) + 1.8 for group in panel) for panel in panels]
    figure = Figure(figsize=(9, 1.1 + 0.23 * sum(heights) + 0.5 * len(units)), layout="constrained")
    all_axes = figure.subplots(len(units), 1, height_ratios=heights, squeeze=False)[:, 0]
    for axes, unit, panel in zip(all_axes, units, panels, strict=True):
        _panel(axes, unit, panel)
    figure.suptitle(f"{name}: popdist beside its peers", fontsize=11, fontweight="bold")
    return figure


def _headlines(rows: list[RowDocument]) -> list[tuple[str, Group]]:
    """The values of the picture at the top of the page, each with its title."""
    found = []
    for benchmark, name, title in _HEADLINES:
        mine = [row for row in rows if row["benchmark"] == benchmark and row["name"] == name]
        found += [(title, group._replace(bounds={})) for group in groups(mine) if group.peers]
    return found


def _overview(headlines: list[tuple[str, Group]]) -> Any:
    """One panel for each headline."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1.75 * math.ceil(len(headlines) / 2)), layout="constrained")
    panels = figure.subplots(math.ceil(len(headlines) / 2), 2, squeeze=False).flat
    for axes, (title, group) in zip(panels, headlines, strict=False):
        _panel(axes, group.unit, [group._replace(name="")], wide=math.inf)
        axes.set_ylim(len(group.peers) + 1.6, 0.3)
        axes.set_title(title, fontsize=10, fontweight="bold", loc="left")
        axes.set_xlabel("")
        axes.set_xticks([])
    return figure


def _shown(value: float, unit: str) -> str:
    """A value for a label, with four digits and no exponent."""
    if unit == "us" and value >= _THOUSAND:
        value, unit = value / _THOUSAND, "ms"
    return f"{value:.0f} {unit}" if value >= _THOUSAND else f"{value:.4g} {unit}"


def _panel(axes: Axes, unit: str, panel: list[Group], *, wide: float = _WIDE) -> None:
    values = [v for g in panel for v in (g.value, *g.peers.values(), *g.bounds.values()) if v > 0]
    log = max(values, default=1) > wide * min(values, default=1)
    place = 0.0
    for group in panel:
        axes.text(
            0, place, f" {group.name}", fontsize=8, fontweight="bold", va="center",
            transform=axes.get_yaxis_transform(),
        )  # fmt: skip
        place += 1
        top = place - 0.45
        bars = [("popdist" if group.peers else "", group.value), *group.peers.items()]
        for rank, (who, value) in enumerate(bars):
            ours = _BEST if group.is_best else _NOT_BEST
            color = ours if not rank else _LIMIT if who in _LIMITS else _PEER
            axes.barh(place, value, height=0.8, color=color)
            label = f" {_shown(value, unit)}  {who}"
            if rank and group.value > 0 and value > 0:
                label += f" ({value / group.value:.2g} x)"
            axes.text(value, place, label, fontsize=7.5, va="center", bbox=_BACKGROUND, zorder=3)
            place += 1
        for bound in dict.fromkeys(group.bounds.values()):
            axes.plot([bound, bound], [top, place - 0.55], color=_AIM, linewidth=1.6)
        place += 0.4
    if log:
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 2, max(values) * 12)
    else:
        axes.set_xlim(0, max(values, default=1) * 1.45)
    axes.set_ylim(place, -0.8)
    axes.set_yticks([])
    more = "more is better" if panel[0].wants_more else "less is better"
    axes.set_xlabel(
        f"{unit}, minimum; {more}. Green: no rival is better. Black line: the aim.", fontsize=8
    )
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.tick_params(labelsize=8)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


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
