"""The words in which a list says how the names of one SDK module fare on a host.

Names are dotted below the module: ``Options``, ``Options.deviceIterations``, ``optim.AdamW``.
Below a class, names of its instances count too (``Options.Training.gradientAccumulation``), where
the class can be made without arguments.
"""

from __future__ import annotations

from importlib import import_module
from typing import Literal, NamedTuple

Status = Literal["works", "accepted without effect", "refused"]


class Entry(NamedTuple):
    """One published name.

    Attributes:
        name: Dotted below the module.
        status: What a program that uses it can expect.
        reason: Why it has no effect or is refused, one sentence; a remark where it works.
        instead: What to use in place of a refused name, or what a name needs that works.
        error: The published error that a refused name raises, as our module's dotted path, where
            it is not a `NotImplementedError`.
    """

    name: str
    status: Status
    reason: str = ""
    instead: str = ""
    error: str = ""


class Surface(NamedTuple):
    """Everything that one module of the SDK publishes.

    Attributes:
        sdk: The SDK's module.
        ours: The module of ours that stands for it.
        entries: Its names, each once.
    """

    sdk: str
    ours: str
    entries: tuple[Entry, ...]

    def find(self, name: str) -> Entry | None:
        """The entry of a dotted name, or of the closest name above it that is refused.

        Args:
            name: Dotted below the module.

        Returns:
            The entry, or None for an unknown name.
        """
        known = {entry.name: entry for entry in self.entries}
        if name in known:
            return known[name]
        above = name
        while "." in above:
            above = above.rpartition(".")[0]
            if above in known:
                return known[above] if known[above].status == "refused" else None
        return None


def works(*names: str, note: str = "", needs: str = "") -> tuple[Entry, ...]:
    """Names that do what the SDK says.

    Args:
        names: Dotted below the module.
        note: A remark for the page, one sentence.
        needs: What a program that calls them has to be started with, where they raise otherwise.
    """
    return tuple(Entry(name, "works", note, needs) for name in names)


def without_effect(reason: str, *names: str) -> tuple[Entry, ...]:
    """Names that are accepted, checked and kept, and change nothing on a host.

    Args:
        reason: Why, one sentence.
        names: Dotted below the module.
    """
    return tuple(Entry(name, "accepted without effect", reason) for name in names)


def refused(reason: str, *names: str, instead: str, error: str = "") -> tuple[Entry, ...]:
    """Names that raise `NotImplementedError` when they are used.

    Args:
        reason: Why, one sentence.
        names: Dotted below the module.
        instead: What to use in their place.
        error: The published error that is raised in place of `NotImplementedError`, as a dotted
            path (``popdist_onnx.popart_exception``).
    """
    return tuple(Entry(name, "refused", reason, instead, error) for name in names)


def with_offered(
    modules: str, below: str, *groups: tuple[Entry, ...]
) -> tuple[tuple[Entry, ...], ...]:
    """Groups of names, and a group of all names of a table of modules that are in none of them.

    Args:
        modules: The module that has the table: ``MODULES``, from the path of a module to what it
            ``homes``, and ``ROOT_NAMES``, names of the root.
        below: The part of the table that is meant: names below this path, without the path.
        groups: What `works`, `without_effect` and `refused` return.
    """
    table = import_module(modules)
    start = f"{below}." if below else ""
    names = [] if below else [*table.ROOT_NAMES]
    for path, published in table.MODULES.items():
        names += [path, *(f"{path}.{name}" for name in published.homes)]
    declared = {entry.name for group in groups for entry in group}
    own = dict.fromkeys(name[len(start) :] for name in names if name.startswith(start))
    left_out = () if below else _OTHERS
    others = [
        name
        for name in own
        if name not in declared and not f"{name}.".startswith(tuple(f"{one}." for one in left_out))
    ]
    return (*groups, works(*others))


_OTHERS = ("addons", "plugin")
"""Parts of the table of ``tensorflow.python.ipu`` that stand for other modules of the SDK."""


def surface(sdk: str, ours: str, *groups: tuple[Entry, ...]) -> Surface:
    """The list of one module.

    Args:
        sdk: The SDK's module.
        ours: The module of ours that stands for it.
        groups: What `works`, `without_effect` and `refused` return.

    Raises:
        ValueError: A name stands in it twice.
    """
    entries = tuple(entry for group in groups for entry in group)
    names = [entry.name for entry in entries]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"listed twice for {sdk}: {', '.join(twice)}")
    return Surface(sdk, ours, entries)
