"""Writes ``docs/zoo.md`` from the records of ``make test-zoo``: ``python -m tests.zoo.page``."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING

from tests.zoo.architectures import IMAGES, PAIRS, SOUND, TEXT, TIMM, TORCHVISION
from tests.zoo.compare import RESULTS, ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "zoo.md"

_HEAD = """# Architectures

This page lists the architectures of `transformers`, `timm` and `torchvision` that popdist can train
as ONNX graphs. `make test-zoo` writes it. The target exports small networks with random weights
with both exporters of torch (see [`from_torch`](onnx.md#a-few-lines)). It compares the gradients of
all parameters, and the losses of three SGD steps, with torch in double precision. It uses a
separate environment without TensorFlow, and downloads no weights.

A number is the largest error of a gradient, relative to its largest element (or to a thousandth of
the largest element of all gradients). The column "torch" is the error of torch in single
precision: the largest of up to four runs with inputs that differ by one rounding. A popdist error
of the same size is rounding. If an exporter refuses an architecture, the cell has the reason. The
column "losses" has the largest relative error of a loss. Where an activation lies at an edge (as of
ReLU), it is the least of up to four runs with such inputs. A star marks a module that also writes
buffers (ranges of activations), which no file carries: `from_torch` asks for `check=False` there.
"""


def table(family: str) -> list[str]:
    """The rows of a family."""
    rows = ["| Architecture | Parameters | torch | torchscript | dynamo | losses |"]
    rows.append("|---|---:|---:|---|---|---:|")
    for file in _records(family):
        found = json.loads(file.read_text())
        both = found["exporters"]
        losses = [one["losses"] for one in both.values() if "losses" in one]
        rows.append(
            f"| `{found['name']}` | {found['parameters']:,} | {found['torch']:.1e} "
            f"| {_cell(both['torchscript'])} | {_cell(both['dynamo'])} "
            f"| {format(max(losses), '.1e') if losses else '-'} |"
        )
    return rows


def _records(family: str) -> list[Path]:
    return sorted(RESULTS.glob(f"{family}-*.json"))


def _cell(result: dict[str, object]) -> str:
    if "error" in result:
        return f"{result['error']:.1e}" + (r" \*" if result.get("buffers") else "")
    kind = "not exported" if "not exported" in result else "failed"
    said = " ".join(str(result[kind]).split()).replace("|", "/")
    return f"{kind}: {said[:90]}{'...' if len(said) > 90 else ''}"


def measured(family: str) -> str:
    """When, and at which commits, the rows of a family were measured."""
    rows = [json.loads(one.read_text()) for one in _records(family)]
    by_day: dict[str, list[str]] = {}
    for row in rows:
        by_day.setdefault(row.get("measured", "an unknown day"), []).append(f"`{row['name']}`")
    most, *rest = sorted(by_day, key=lambda day: -len(by_day[day]))
    said = f"Measured on {most}."
    for day in rest:
        said += f" Measured on {day}: {', '.join(by_day[day])}."
    return said


def section(family: str, asked: int) -> str:
    """The part of the page about a family; that of the last page where none was measured."""
    if not _records(family):
        _, head, rest = PAGE.read_text().partition(f"## {family}\n")
        return f"{head}{rest.partition('## ')[0]}".strip()
    both = [json.loads(file.read_text())["exporters"] for file in _records(family)]
    compared = sum(any("error" in one for one in found.values()) for found in both)
    twice = sum(all("error" in one for one in found.values()) for found in both)
    said = f"{compared} of {asked} were compared, {twice} of them by both exporters."
    said = textwrap.fill(f"{said} {measured(family)}", 100)
    return "\n".join([f"## {family}", "", said, "", *table(family)])


def main() -> None:
    """Writes the page."""
    asked = {
        "transformers": len(TEXT) + len(PAIRS) + len(IMAGES) + len(SOUND),
        "timm": len(TIMM),
        "torchvision": len(TORCHVISION),
    }
    sections = [section(family, count) for family, count in asked.items()]
    PAGE.write_text("\n\n".join([_HEAD.strip(), *sections]) + "\n")


if __name__ == "__main__":
    main()
