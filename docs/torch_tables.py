"""The generated tables of the pages about the PyTorch adapter."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from popdist_torch import Options, optim, options
from popdist_torch.ops.library import OPERATORS
from popdist_torch.options.option_methods import declared
from popdist_torch.options.options import GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "LAMB")


def _methods() -> Iterator[tuple[str, str, str | None]]:
    fresh = Options()
    yield from declared(Options)
    for group in GROUPS:
        yield from declared(type(getattr(fresh, group)))
    yield from declared(options.TensorLocationSettings)


def acting_table() -> str:
    """Options that act on a host."""
    rows = ["| Option | Meaning | On a host |", "|---|---|---|"]
    rows += [f"| `{path}` | {_code(what)} | {act} |" for path, what, act in _methods() if act]
    return "\n".join(rows)


def stored_table() -> str:
    """Options that are stored."""
    rows = ["| Option | Meaning |", "|---|---|"]
    rows += [f"| `{path}` | {_code(what)} |" for path, what, act in _methods() if not act]
    return "\n".join(rows)


def optimizers_table() -> str:
    """Arguments of every optimizer."""
    rows = ["| Optimizer | Arguments | More | Stored |", "|---|---|---|---|"]
    for name in OPTIMIZERS:
        kind: Any = getattr(optim, name)
        further = {"params", "extras", *kind.acting, *kind.only_stored}
        own = [p for p in inspect.signature(kind).parameters if p not in further]
        rows.append(
            f"| `{name}` | {_list(own)} | {_list(kind.acting)} | {_list(kind.only_stored)} |"
        )
    return "\n".join(rows)


def operators_table() -> str:
    """Operators under ``torch.ops.poptorch``."""
    rows = ["| Operator |", "|---|"]
    rows += [f"| `{schema}` |" for schema in OPERATORS]
    return "\n".join(rows)


def _list(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names) or "-"


def _code(text: str) -> str:
    return text.replace("``", "`").removesuffix(".")


PARTS = {
    "torch-options-acting": acting_table,
    "torch-options-stored": stored_table,
    "torch-optimizers": optimizers_table,
    "torch-operators": operators_table,
}
"""The tables by the names that pages know them by."""
