"""The generated tables of the pages about programs of the IPU SDK."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from popdist.sdk.check.idioms import IDIOMS
from popdist.sdk.finder import ALIASES
from popdist.sdk.removed import NAMES
from popdist.sdk.surface import load
from popdist.sdk.surface.absent import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from popdist.sdk.check.idioms import Idiom
    from popdist.sdk.surface.vocabulary import Entry, Surface

_STATUS = ("works", "accepted without effect", "refused")
_COUNTED = {"works": "work", "accepted without effect": "without effect", "refused": "refused"}


def modules_table() -> str:
    """Which module of ours stands for which of the SDK's."""
    rows = ["| `import` | gives |", "|---|---|"]
    rows += [f"| `{sdk}` | `{mine}` |" for sdk, mine in ALIASES.items()]
    return "\n".join(rows)


def counts_table() -> str:
    """How many names of each module have which status."""
    rows = [
        "| Module | Names | Works | Without effect | Refused |",
        "|---|---:|---:|---:|---:|",
    ]
    total: Counter[str] = Counter()
    for sdk in ALIASES:
        counts: Counter[str] = Counter(entry.status for entry in load(sdk).entries)
        total += counts
        rows.append(_counts(f"`{sdk}`", counts))
    return "\n".join([*rows, _counts("all", total)])


def _counts(title: str, counts: Counter[str]) -> str:
    numbers = " | ".join(str(counts[status]) for status in _STATUS)
    return f"| {title} | {counts.total()} | {numbers} |"


def _names_table(sdk: str) -> Callable[[], str]:
    return lambda: _table(load(sdk))


def _table(surface: Surface) -> str:
    """The names in folded groups: one for each sub-module or class, and one for single names."""
    groups: dict[str, list[Entry]] = {}
    for entry in sorted(surface.entries, key=_order):
        groups.setdefault(entry.name.partition(".")[0], []).append(entry)
    singles = [entries[0] for entries in groups.values() if len(entries) == 1]
    parts = [_folded(f"<code>{name}</code>", one) for name, one in groups.items() if len(one) > 1]
    return "\n\n".join([*parts, *([_folded("single names", singles)] if singles else [])])


def _folded(title: str, entries: list[Entry]) -> str:
    """One closed group with its counts in the title, and without columns that are empty."""
    counts: Counter[str] = Counter(entry.status for entry in entries)
    said = ", ".join(f"{counts[status]} {_COUNTED[status]}" for status in _STATUS if counts[status])
    columns = [
        ("Name", [f"`{entry.name}`" for entry in entries]),
        ("On a host", [entry.status if len(counts) > 1 else "" for entry in entries]),
        ("Why, or a remark", [_text(entry.reason) for entry in entries]),
        ("Instead", [_text(entry.instead) for entry in entries]),
    ]
    kept = [(head, cells) for head, cells in columns if any(cells)]
    if len(kept) == 1:
        rows = [", ".join(kept[0][1])]
    else:
        rows = [_row(head for head, _ in kept), f"|{'---|' * len(kept)}"]
        rows += [_row(cells) for cells in zip(*(cells for _, cells in kept), strict=True)]
    summary = f"<summary>{title}: {said}</summary>"
    head = f'<details class="names" markdown="1">{summary}'
    return "\n".join([head, "", *rows, "", "</details>"])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _order(entry: Entry) -> tuple[str, ...]:
    return tuple(part.lower() for part in entry.name.split("."))


def _text(text: str) -> str:
    return text.removesuffix(".").replace("|", "\\|").replace("<", "&lt;")


def absent_table() -> str:
    """Modules of the SDK that are refused as a whole."""
    rows = ["| Module | Why | Instead |", "|---|---|---|"]
    rows += [
        f"| `{entry.name}` | {_text(entry.reason)} | {_text(entry.instead)} |" for entry in ABSENT
    ]
    return "\n".join(rows)


def removed_table() -> str:
    """What the SDK's names give back."""
    given = {**{name: " ".join(sorted(names)) for name, names in NAMES.items()}, **_COMPLETED}
    rows = ["| Module | Names |", "|---|---|"]
    rows += [f"| `{name}` | {_code_of_each(given[name])} |" for name in sorted(given)]
    return "\n".join(rows)


_COMPLETED = {
    "inspect": "getargspec",
    "sysconfig": 'get_config_vars()["SO"]',
    "torch": "_six",
    "torch.optim.lr_scheduler": "StepLR(verbose) ReduceLROnPlateau(verbose) LRScheduler(verbose)",
    "torch.utils.data": "Sampler(data_source)",
    "torchvision.models": "utils",
    "typing": "NamedTuple._field_types",
}


def _code_of_each(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split())


def idioms_table() -> str:
    """What else programs have to change."""
    moved = [one for one in IDIOMS if one.is_moved]
    rows = ["| Written | Write instead | Refused since |", "|---|---|---|"]
    rows += [
        f"| {_written(one)} | {_code(one.edit)} | {one.since}{'' if one.certain else ' *'} |"
        for one in IDIOMS
        if one not in moved
    ]
    names = ", ".join(f"`{_below(one)}`" for one in moved)
    intro = (
        "Names of TensorFlow 1 that are now under `tf.compat.v1`, as they are; write "
        "`tf.compat.v1.Session` for `tf.Session`, or begin with `import tensorflow.compat.v1 as "
        "tf`:"
    )
    return "\n".join([*rows, "", intro, "", names])


def _below(idiom: Idiom) -> str:
    return idiom.name.partition(".")[2]


def _written(idiom: Idiom) -> str:
    short = idiom.name.replace("tensorflow.", "tf.").replace("numpy.", "np.")
    if idiom.keyword:
        return f"`{short}({idiom.keyword}=...)`"
    return f"`{short}(...)` without `{idiom.without}`" if idiom.without else f"`{short}`"


def _code(text: str) -> str:
    """An edit; one that is nothing but code is shown as code."""
    return text if " " in text.partition("(")[0] else f"`{text}`"


def _parts() -> Iterable[tuple[str, Callable[[], str]]]:
    for sdk in ALIASES:
        yield f"sdk-{sdk.replace('.', '-')}", _names_table(sdk)


PARTS = {
    "sdk-modules": modules_table,
    "sdk-counts": counts_table,
    "sdk-absent": absent_table,
    "sdk-idioms": idioms_table,
    "sdk-removed": removed_table,
    **dict(_parts()),
}
"""The tables by the names that pages know them by."""
