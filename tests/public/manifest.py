"""The manifests: the public programs, and how each starts on a tiny configuration."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
MANIFESTS = HERE / "manifests"
SUITES = MANIFESTS / "suites.toml"


@dataclass(frozen=True)
class Program:
    """One program of a public repository.

    Attributes:
        name: The folder of the program, and its file where a folder has several.
        repository: Owner and name.
        tag: The tag or branch.
        command: The words after ``python``; empty for a program that is not run.
        folder: The working directory, by default ``name``.
        beside: Other folders and files of the repository that the program reads.
        path: Folders of the repository that hold packages which the program imports; a user would
            install them.
        environment: A key of the manifest's environments.
        prepare: Commands of `tests.public.data`, which are run in the folder before each run.
        alone: More words for the run with one instance.
        job: More words for the run with two instances.
        poprun: More options of poprun.
        variables: Environment variables.
        seed: Seeds torch, numpy and ``poptorch.Options`` from outside, for a program that sets no
            seed; None for a program that sets its own.
        rows: The number of rows of the training data of Keras that the program gets; None for all.
        steps: The steps after which a training of Keras ends; None for the program's own.
        differs: Why two instances train another model than one process with their batch, or why the
            two cannot be compared; empty if they must be equal.
        trains: Whether a run makes weight updates.
        divides: Whether the program can be divided over instances: whole graphs and an
            ``IterableDataset`` cannot, as published. Otherwise it is run in one process only.
        limit: Seconds for one run.
        reason: Why the program is not run, or a remark.
    """

    name: str
    repository: str
    tag: str
    command: tuple[str, ...] = ()
    folder: str = ""
    beside: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    environment: str = ""
    prepare: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    job: tuple[str, ...] = ()
    poprun: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    seed: int | None = None
    rows: int | None = None
    steps: int | None = None
    differs: str = ""
    trains: bool = True
    divides: bool = True
    limit: int = 300
    reason: str = ""

    @property
    def key(self) -> str:
        """The name of the program's record."""
        return f"{self.repository}@{self.tag}/{self.name}"

    @property
    def place(self) -> str:
        """The folder in which the program starts, in the repository."""
        return self.folder or self.name.partition(" ")[0]


@dataclass(frozen=True)
class Manifest:
    """One file of programs.

    Attributes:
        name: The file's name, such as ``pytorch``.
        title: Its heading on the page.
        environments: The packages of each environment, on top of the project's own.
        programs: The programs.
    """

    name: str
    title: str
    environments: dict[str, tuple[str, ...]]
    programs: tuple[Program, ...]


def read(path: Path) -> Manifest:
    """Reads one manifest.

    Args:
        path: A TOML file with ``title``, ``[environments]``, ``[[sources]]`` (``repository``,
            ``tag``) and ``[[sources.programs]]`` (the attributes of `Program`). A row with ``as``
            has the attributes of the row with that key, which stands before it, and its own.

    Returns:
        The manifest.
    """
    content = content_of(path)
    programs: list[Program] = []
    for source in content["sources"]:
        place = {key: source[key] for key in ("repository", "tag")}
        for row in map(with_tuples, source["programs"]):
            base = row.pop("as", None)
            known = {program.key: program for program in programs}
            programs.append(
                replace(known[base], **place, **row) if base else Program(**place, **row)
            )
    keys = [program.key for program in programs]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise ValueError(f"{path}: two entries of {', '.join(twice)}")
    environments = {name: tuple(rows) for name, rows in content.get("environments", {}).items()}
    if unknown := {program.environment for program in programs} - {"", *environments}:
        raise ValueError(f"{path}: no environment {', '.join(sorted(unknown))}")
    return Manifest(path.stem, content["title"], environments, tuple(programs))


def content_of(path: Path) -> dict[str, Any]:
    """What a TOML file has; ``{runner}`` stands for this folder."""
    return tomllib.loads(path.read_text(encoding="utf-8").replace("{runner}", str(HERE)))


def with_tuples(row: dict[str, Any]) -> dict[str, Any]:
    """A row with tuples in place of lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


def read_all() -> list[Manifest]:
    """All manifests of programs."""
    return [read(path) for path in sorted(MANIFESTS.glob("*.toml")) if path != SUITES]
