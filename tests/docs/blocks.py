"""Finds the blocks of code in the pages.

A block stands between fences. Python continues the blocks above it, and commands of a console run.
There are two exceptions:

    ```python title="train.py"      a file of that name; commands below it may use it
    <!-- not run: why -->           a comment before a block that cannot run here; its commands are
                                    still checked, word by word
"""

import re
from typing import NamedTuple

from tests.distributed.jobs import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])

_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<why>[^>]+) -->\n+)?"
    r'```(?P<language>\w*)(?: title="(?P<file>[^"]+)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
_INDENTED = re.compile(r"(?<=\n\n)    (?! *(?:[-*]|\d+\.) ).*")


class Block(NamedTuple):
    """One block of a page.

    Attributes:
        place: The page and the number of the line, as ``docs/torch.md:12``.
        language: What stands behind the fence.
        text: What stands between the fences.
        file: The name of the file that it is, or None.
        not_run: Why it does not run, or None.
    """

    place: str
    language: str
    text: str
    file: str | None = None
    not_run: str | None = None


class Command(NamedTuple):
    """A command of a console, and what the page shows of its output."""

    words: str
    output: tuple[str, ...]


def blocks_of(page):
    """The blocks of a page, in their order."""
    text = page.read_text()
    return [
        Block(
            place=f"{page.relative_to(ROOT)}:{1 + text.count(chr(10), 0, found.start('language'))}",
            language=found["language"],
            text=found["text"],
            file=found["file"],
            not_run=found["why"],
        )
        for found in _FENCE.finditer(text)
    ]


def indented(page):
    """Blocks without fences, which nothing would run."""
    return _INDENTED.findall(_FENCE.sub("", page.read_text()))


def commands_of(block):
    """The commands of a console: what follows ``$``, joined where a line ends in a backslash."""
    found = []
    for line in block.text.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], ()))
        elif line.strip():
            found[-1] = Command(found[-1].words, (*found[-1].output, line.strip()))
    return found


def shows(expected, output):
    """Whether the lines that a page shows come in an output, in this order.

    ``...`` stands for any text, and lines that the page leaves out may come in between.
    """
    lines = iter(output.splitlines())
    patterns = [re.escape(line).replace(r"\.\.\.", ".*") for line in expected]
    return all(any(re.fullmatch(p, line.strip()) for line in lines) for p in patterns)
