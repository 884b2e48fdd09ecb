"""Generated parts of the page of checks: the declared checks, and the table of losses."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popdist.checks import CHECKS
from popdist_onnx.checks import CHECKS as ONNX_CHECKS
from popdist_tf.checks import CHECKS as TENSORFLOW_CHECKS
from popdist_torch.checks import CHECKS as TORCH_CHECKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist.checks import Check

ADAPTERS: dict[str, Sequence[Check]] = {
    "all": CHECKS,
    "PyTorch": TORCH_CHECKS,
    "TensorFlow": TENSORFLOW_CHECKS,
    "ONNX": ONNX_CHECKS,
}


def checks_table() -> str:
    """The checks of every adapter."""
    rows = [
        "| Check | Adapter | What must hold | When | Cost | A finding is |",
        "|---|---|---|---|---|---|",
    ]
    rows += [
        f"| `{check.name}` | {adapter} | {check.judges} | {check.when} | {check.cost} | "
        f"{'an error' if check.stops else 'a warning'}, {check.code} |"
        for adapter, checks in ADAPTERS.items()
        for check in checks
    ]
    return "\n".join(rows)


def losses_table() -> str:
    """The losses of tests/properties, by their verdict."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.properties import torch_losses

    losses: dict[str, tuple[str, Any]] = torch_losses.LOSSES
    meanings = {
        torch_losses.EQUAL: "equal to one process, never named",
        torch_losses.NAMED: "different from one process, always named",
        torch_losses.OWN: "each replica's own by design, never named",
    }
    rows = ["| Outcome | Losses |", "|---|---|"]
    for verdict, meaning in meanings.items():
        names = [name.replace("_", " ") for name, (found, _) in losses.items() if found == verdict]
        rows.append(f"| {meaning} ({len(names)}) | {', '.join(names)} |")
    return "\n".join(rows)


PARTS = {"checks": checks_table, "check-losses": losses_table}
