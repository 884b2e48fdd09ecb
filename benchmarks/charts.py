"""Results as pictures: each value beside its peers, and the exchange over all sizes."""

from __future__ import annotations

import math
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.growth import chart as growth
from benchmarks.suite import SUITE

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from benchmarks.document import Document

    RowDocument = dict[str, Any]

_BEST, _NOT_BEST, _NO_RIVAL = "#2a7f4f", "#d98a29", "#2f5fb3"
_PEER, _AIM = "#b9c0c9", "#b3432b"
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

_OF_LIMITS = (
    "alone", "without an", "without the", "exchange nothing", "exchange beside", "products",
)  # fmt: skip
"""Words in the names of other peers that do less."""

_SHORT = {
    "horovod.torch.DistributedOptimizer": "Horovod",
    "Horovod optimizer": "Horovod",
    "computing, then the exchange alone": "computing, then exchange",
}
_BACKGROUND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.9, "pad": 0.8}
_LEGEND = (
    "Minimum of each. Green: popdist is best. Orange: a peer is better.\n"
    "Blue: no peer does this work. Light grey: a limit, which does less work."
)
_LEGEND_OF_AIMS = f"{_LEGEND} Red line: the aim."
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

_TEN, _THOUSAND = 10, 1000
_TITLE = 95
"""Letters in a line of a figure's title."""

_LETTER = 0.0072
"""Width of a letter of a label, as a share of a panel as wide as a figure."""

_MOST_ROWS = 60
_WIDE = 60
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
    if headlines:
        drawn.append(_save(_overview(headlines, document), folder / "overview.png"))
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
    def rivals(self) -> list[float]:
        """What those took that do the same work; a limit, or an import alone, does less."""
        return [
            value
            for who, value in self.peers.items()
            if not _is_limit(who) and not who.startswith("import ")
        ]

    @property
    def is_best(self) -> bool:
        """Whether no rival is better."""
        better = max if self.wants_more else min
        return better([self.value, *self.rivals]) == self.value

    @property
    def imported(self) -> str:
        """The package of somebody else that a statement imports; empty for other rows."""
        package = self.name.removeprefix("import ")
        return "" if package == self.name or "popdist" in package else package

    @property
    def color(self) -> str:
        """The colour of its bar."""
        if _is_limit(self.name):
            return _LIMIT
        if self.imported:
            return _PEER
        if not self.rivals:
            return _NO_RIVAL
        return _BEST if self.is_best else _NOT_BEST

    @property
    def who(self) -> str:
        """What was measured, in a word."""
        if _is_limit(self.name):
            return self.name.partition(",")[0]
        if self.imported:
            return self.imported
        return "poprun" if "poprun" in self.name else "popdist"


def _is_limit(who: str) -> bool:
    return who in _LIMITS or any(word in who for word in _OF_LIMITS)


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
    about = next((f": {one.what}" for one in SUITE if one.name == name), "")
    figure.suptitle(fill(name + about, _TITLE), fontsize=11, fontweight="bold")
    figure.supxlabel(_LEGEND_OF_AIMS, fontsize=8)
    return figure


def _headlines(rows: list[RowDocument]) -> list[tuple[str, Group]]:
    """The values of the picture at the top of the page, each with its title, without aims."""
    found = []
    for benchmark, name, title in _HEADLINES:
        mine = [row for row in rows if row["benchmark"] == benchmark and row["name"] == name]
        found += [(title, group._replace(bounds={})) for group in groups(mine) if group.peers]
    return found


def _overview(headlines: list[tuple[str, Group]], document: Document) -> Any:
    """One panel for each headline."""
    from matplotlib.figure import Figure

    pairs = [headlines[place : place + 2] for place in range(0, len(headlines), 2)]
    heights = [max(len(group.peers) + 2.0 for _, group in pair) for pair in pairs]
    figure = Figure(figsize=(12, 0.28 * sum(heights) + 1.2), layout="constrained")
    grid = figure.add_gridspec(len(pairs), 2, height_ratios=heights)
    for row, (pair, height) in enumerate(zip(pairs, heights, strict=True)):
        for column, (title, group) in enumerate(pair):
            axes = figure.add_subplot(grid[row, column])
            axes.set_title(title, fontsize=10, fontweight="bold", loc="left")
            _panel(axes, group.unit, [group], wide=math.inf, letter=1.8 * _LETTER, is_titled=True)
            axes.set_ylim(height - 0.6, -0.6)
            axes.set_xticks([])
            axes.spines["bottom"].set_visible(False)
    cpu, cores = document["machine"]["cpu"], document["machine"]["cores"]
    title = f"popdist and its peers, measured in one run on {cores} cores ({cpu})"
    figure.suptitle(fill(title, _TITLE), fontsize=12, fontweight="bold")
    figure.supxlabel(_LEGEND, fontsize=9)
    return figure


def _shown(value: float, unit: str) -> str:
    """A value for a label, with three digits and no exponent."""
    if unit == "us" and value >= _THOUSAND:
        value, unit = value / _THOUSAND, "ms"
    if unit == "ms" and value >= _THOUSAND:
        value, unit = value / _THOUSAND, "s"
    return f"{value:.0f} {unit}" if value >= _THOUSAND else f"{value:.3g} {unit}"


def _together(bounds: list[float], unit: str) -> str:
    """Several values with the unit once, where it is the same for all."""
    shown = [_shown(bound, unit).rpartition(" ") for bound in bounds]
    last = shown[-1][2]
    parts = [value if its == last else f"{value} {its}" for value, _, its in shown[:-1]]
    return ", ".join([*parts, f"{shown[-1][0]} {last}"])


def _panel(
    axes: Axes,
    unit: str,
    panel: list[Group],
    *,
    wide: float = _WIDE,
    letter: float = _LETTER,
    is_titled: bool = False,
) -> None:
    values = [v for g in panel for v in (g.value, *g.peers.values(), *g.bounds.values()) if v > 0]
    log = max(values, default=1) > wide * min(values, default=1)
    room = 1.45 * max(values, default=1)
    place = 0.0
    for group in panel:
        bounds = sorted(dict.fromkeys(group.bounds.values()))
        if not is_titled:
            axes.text(
                0, place, f" {group.name}", fontsize=8, fontweight="bold", va="center",
                transform=axes.get_yaxis_transform(),
            )  # fmt: skip
            place += 1
        top = place - 0.45
        for rank, (who, value) in enumerate([(group.who, group.value), *group.peers.items()]):
            color = group.color if not rank else _LIMIT if _is_limit(who) else _PEER
            axes.barh(place, value, height=0.8, color=color)
            label = f" {_shown(value, unit)}  {_SHORT.get(who, who)}"
            if rank and group.value > 0 and value > 0:
                ratio = value / group.value
                label += f" ({ratio:.2f} x)" if ratio < _TEN else f" ({ratio:.0f} x)"
            axes.text(value, place, label, fontsize=7.5, va="center", bbox=_BACKGROUND, zorder=3)
            room = max(room, value / (1 - min(letter * len(label), 0.7)))
            place += 1
        for bound in bounds:
            axes.plot([bound, bound], [top, place - 0.55], color=_AIM, linewidth=1.6, zorder=2.5)
        if bounds:
            asked = ("aims: " if len(bounds) > 1 else "aim: ") + _together(bounds, unit)
            axes.text(
                1, top + (0.45 if is_titled else -0.55), asked, fontsize=7.5, ha="right",
                va="center", color=_AIM, transform=axes.get_yaxis_transform(),
            )  # fmt: skip
        place += 0.4
    if log:
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 2, max(values) * 12)
    else:
        axes.set_xlim(0, room)
    axes.set_ylim(place, -0.8)
    axes.set_yticks([])
    more = "more is better" if panel[0].wants_more else "less is better"
    if not is_titled:
        scale, shown = (_THOUSAND, "ms") if unit == "us" and max(values) > _THOUSAND else (1, unit)
        axes.set_xlabel(f"{shown}; {more}", fontsize=8)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / scale:g}")
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
    panels[0].set_ylabel("time (minimum)")
    panels[0].yaxis.set_major_formatter(lambda value, _: _shown(value, "us"))
    figure.suptitle(
        "exchange: time to sum tensors over two ranks, by size", fontsize=11, fontweight="bold"
    )
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
