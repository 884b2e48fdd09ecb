"""The generated tables of docs/onnx-optimizers.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.optimizers.adam import Adam
from popdist_onnx.optimizers.adaptive import Adaptive
from popdist_onnx.optimizers.hyperparameters import CHECKS
from popdist_onnx.optimizers.sgd import SGD
from popdist_onnx.types.enums import SGDAccumulatorAndMomentum

if TYPE_CHECKING:
    from popdist_onnx.optimizers.optimizer import Optimizer

OPTIMIZERS: tuple[type[Optimizer], ...] = (SGD, Adam, Adaptive)


def settings_table() -> str:
    """The settings of every optimizer."""
    rows = ["| Optimizer | Setting | Default | Accepted | Of single weights | Meaning |"]
    rows.append("|---|---|---|---|---|---|")
    for optimizer in OPTIMIZERS:
        for setting in optimizer.settings:
            own = f"`{setting.key}`" if setting.per_weight else "-"
            rows.append(
                f"| `{optimizer.published}` | `{setting.constructor_key}` | {setting.default:g} "
                f"| {CHECKS[setting.check]} | {own} | {setting.meaning} |"
            )
    return "\n".join(rows)


def scalars_table() -> str:
    """The numbers that updates read, by their published ids."""
    variants = {
        "SGD": SGD({}),
        "SGD, Separate": SGD({}, accumulatorAndMomentum=SGDAccumulatorAndMomentum.Separate),
        "Adam": Adam({}),
        "Adam, scaled state": Adam({}, scaled_optimizer_state=True),
        "Adaptive": Adaptive({}),
    }
    rows = ["| Number | Optimizer | Made of |", "|---|---|---|"]
    seen = set()
    for name, optimizer in variants.items():
        for scalar in optimizer.scalars():
            key = (optimizer.published, scalar.prefix, scalar.settings)
            if key not in seen:
                seen.add(key)
                made_of = ", ".join(f"`{setting}`" for setting in scalar.settings) or "-"
                rows.append(f"| `{scalar.prefix}` | {name} | {made_of} |")
    return "\n".join(rows)
