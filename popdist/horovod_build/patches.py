"""Our changes to the source of Horovod, which are patch files beside this module.

The head of each file says why, and for which versions; `select` chooses the patches of a build. An
edit replaces a text that must occur exactly once in the file, so an unexpected source is an error
and is never patched in part. ``patch -p1`` and ``git apply`` take these files too.

Measurements showed that the generated flatbuffers headers, and TensorFlow's ``mpi_ops.cc`` up to
TensorFlow 2.21, need no patch.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HOROVOD = "0.28.1"
"""The release that the patches are for, and that is built."""

_FIELD = re.compile(r"^([A-Z][\w ]*): (.*(?:\n .*)*)", re.MULTILINE)
_PART = re.compile(r"^@@ .*@@.*\n", re.MULTILINE)
_RELEASE = re.compile(r"\d+(?:\.\d+)*")


def release(version: str) -> tuple[int, ...]:
    """The numbers at the start of a version, without trailing zeros.

    For ``"2.13.0+cpu"`` the numbers are ``(2, 13)``. Local parts (``+cpu``) and pre-release marks
    are ignored. The `packaging` distribution is not used, because it may be missing, and this
    package must then report so.
    """
    match = _RELEASE.match(version)
    numbers = [int(number) for number in match.group().split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


@dataclass(frozen=True)
class VersionRange:
    """Versions from one on, up to but without another.

    Attributes:
        at_least: The first version inside; None for no lower end.
        below: The first version outside again; None for no upper end.
    """

    at_least: str | None = None
    below: str | None = None

    def __contains__(self, version: str) -> bool:
        numbers = release(version)
        if self.at_least is not None and numbers < release(self.at_least):
            return False
        return self.below is None or numbers < release(self.below)

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Reads what `str` writes.

        Args:
            text: Such as ``">= 2.1, < 2.13"``, or ``"any version"``.
        """
        ends = dict(end.split() for end in text.split(", ") if text != str(ANY))
        return cls(ends.get(">="), ends.get("<"))

    def __str__(self) -> str:
        ends = [
            f">= {self.at_least}" if self.at_least is not None else "",
            f"< {self.below}" if self.below is not None else "",
        ]
        return ", ".join(end for end in ends if end) or "any version"


ANY = VersionRange()
"""Every version."""


@dataclass(frozen=True)
class Edit:
    """One replacement in one file.

    Attributes:
        path: The file, relative to the source's root.
        old: Text that occurs exactly once in it.
        new: The replacement.
    """

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Target:
    """The properties of a build that patches depend on.

    Attributes:
        python: Version of the interpreter.
        torch: Version of PyTorch; None where its binding is left out.
        tensorflow: Version of TensorFlow; None where its binding is left out.
        nccl: Whether the GPU operations are built.
        open_mpi: Version of Open MPI; None where the MPI is another.
    """

    python: str
    torch: str | None
    tensorflow: str | None
    nccl: bool
    open_mpi: str | None


@dataclass(frozen=True)
class Patch:
    """One change, for one reason.

    Attributes:
        name: Short name.
        why: The reason, one or two sentences.
        edits: The replacements.
        python: Versions of Python it is for.
        torch: Versions of PyTorch it is for; None where it does not depend on PyTorch.
        tensorflow: Versions of TensorFlow it is for; None where it does not depend on it.
        nccl: Builds it is for: with NCCL, without, or (None) both.
        open_mpi: Versions of Open MPI it is for; None where it does not depend on it.
        upstream: Where it was reported, if it was.
    """

    name: str
    why: str
    edits: tuple[Edit, ...]
    python: VersionRange = ANY
    torch: VersionRange | None = None
    tensorflow: VersionRange | None = None
    nccl: bool | None = None
    open_mpi: VersionRange | None = None
    upstream: str | None = None

    def applies(self, target: Target) -> bool:
        """Whether a build takes this patch."""
        return (
            target.python in self.python
            and _covers(self.torch, target.torch)
            and _covers(self.tensorflow, target.tensorflow)
            and self.nccl in (None, target.nccl)
            and _covers(self.open_mpi, target.open_mpi)
        )

    @property
    def condition(self) -> str:
        """The conditions in words."""
        parts = [
            f"{name} {versions}"
            for name, versions in (
                ("Python", None if self.python == ANY else self.python),
                ("PyTorch", self.torch),
                ("TensorFlow", self.tensorflow),
                ("Open MPI", self.open_mpi),
            )
            if versions is not None
        ]
        if self.nccl is not None:
            parts.append("with NCCL" if self.nccl else "without NCCL")
        return "; ".join(parts) or "every build"


def _covers(versions: VersionRange | None, built: str | None) -> bool:
    return versions is None or (built is not None and built in versions)


def read(text: str, name: str) -> Patch:
    """Reads a patch file.

    Args:
        text: Lines with a name and a value, an empty line, and a unified diff. The line numbers of
            the diff are not used: the old lines of each part, with those around them, occur once.
        name: The name of the patch.

    Returns:
        The patch.
    """
    head, _, diff = text.partition("\n\n")
    fields = dict(_FIELD.findall(head))

    def versions(key: str) -> VersionRange | None:
        return VersionRange.parse(fields[key]) if key in fields else None

    return Patch(
        name,
        why=" ".join(fields["Why"].split()),
        edits=tuple(_edits(diff)),
        python=versions("Python") or ANY,
        torch=versions("PyTorch"),
        tensorflow=versions("TensorFlow"),
        nccl=fields["NCCL"] == "with" if "NCCL" in fields else None,
        open_mpi=versions("Open MPI"),
        upstream=fields.get("Upstream"),
    )


def _edits(diff: str) -> Iterator[Edit]:
    """The parts of a unified diff."""
    for file in diff.split("--- a/")[1:]:
        path, *parts = _PART.split(file)
        for part in parts:
            lines = part.splitlines(keepends=True)
            yield Edit(
                path.partition("\n")[0],
                "".join(line[1:] for line in lines if line[0] in " -"),
                "".join(line[1:] for line in lines if line[0] in " +"),
            )


PATCHES = tuple(
    read(file.read_text(encoding="utf-8"), file.stem.partition("-")[2])
    for file in sorted(Path(__file__).parent.glob(f"horovod-{HOROVOD}/*.patch"))
)
"""All patches, in the order in which they are applied."""


def select(target: Target, patches: tuple[Patch, ...] = PATCHES) -> tuple[Patch, ...]:
    """The patches that a build takes."""
    return tuple(patch for patch in patches if patch.applies(target))


def digest(patches: tuple[Patch, ...]) -> str:
    """A fingerprint (16 hexadecimal digits) of the edits; reasons and names are not part of it."""
    edits = [asdict(edit) for patch in patches for edit in patch.edits]
    return hashlib.sha256(json.dumps(edits, sort_keys=True).encode()).hexdigest()[:16]
