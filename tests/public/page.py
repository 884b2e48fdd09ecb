"""Writes ``docs/programs.md`` from the manifests and the recorded results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.public import manifest

if TYPE_CHECKING:
    from tests.public.manifest import Program

ROOT = Path(__file__).resolve().parents[2]
SEEN = Path(__file__).parent / "seen"
PAGE = ROOT / "docs" / "programs.md"
GOOD = ("trains", "trains alone", "runs")

_HEAD = """# Public programs

This page lists public programs that were written for the IPU SDK, PopDist, Horovod, Lightning or
torch's DistributedDataParallel, and the result of each, unchanged, on this project.
`make test-public SOURCES=folder` runs them and writes the page.
Each program runs on a tiny configuration (few layers, generated data, no download) in one process
and as a job of two instances under `poprun --sdk-names`.

| Verdict | Meaning |
|---|---|
| trains | both runs succeed, and the instances' parameters change, stay finite and end bit-equal |
| trains alone | the run in one process trains; the data cannot be divided, as published |
| runs | both runs end with exit code 0; the program does not train |
| stops | a run ends with an error, which the last column shows |
| differs | both runs end with exit code 0, but the instances differ |
| not run | the last column has the reason |

A program that sets no seed cannot start from equal weights in two instances. The runner seeds such
a program from outside, as the last column shows. A program without an option for a tiny run is
shortened from outside: it gets fewer rows of data, or Keras ends its training after some steps.
Loaders start at most two processes.

"One process" is the result of `poprun --compare-alone=2` ([what it does](compare.md)): whether two
instances train like one process that has the batches of both. The number is the distance between
the gradients of the first update, in parts of their size. A `-` means that the two cannot be
compared. "Check" is what `popdist-sdk check` predicts from the source alone.

To repeat the runs, clone each repository at its tag into `folder/OWNER/REPOSITORY/TAG`:

<!-- not run: it needs the internet, and takes an hour -->
```console
$ git clone -b v3.4.1 https://github.com/graphcore/examples folder/graphcore/examples/v3.4.1
$ make test-public SOURCES=folder
```

With `ONLY="nlp/bert vision/vit"`, only programs are run whose name has one of these words;
`python -m tests.public --missing folder` lists folders with code for the SDK that have no row.
Packages that a program pins are installed in environments in `build/public`, in the nearest version
that this Python and this PyTorch support. Modules such as wandb are replaced by stand-ins.
"""


def recorded(name: str) -> dict[str, Any]:
    """The records of a manifest by the keys of programs."""
    path = SEEN / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def keep(name: str, records: dict[str, Any]) -> None:
    """Writes the records of a manifest, without the values of single updates."""
    short = {
        key: {fact: value for fact, value in record.items() if fact != "runs"}
        for key, record in records.items()
    }
    (SEEN / f"{name}.json").write_text(json.dumps(short, indent=1, sort_keys=True) + "\n")


def text() -> str:
    """The page."""
    lines = [_HEAD]
    for file in manifest.read_all():
        seen = recorded(file.name)
        lines += [f"## {file.title}", ""]
        for source in dict.fromkeys((one.repository, one.tag) for one in file.programs):
            programs = [one for one in file.programs if (one.repository, one.tag) == source]
            verdicts = [seen.get(one.key, {}).get("verdict", "not run") for one in programs]
            counts = {word: verdicts.count(word) for word in dict.fromkeys(verdicts)}
            total = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
            lines += [
                f"### {source[0]}, {source[1]}",
                "",
                f"{len(programs)} programs: {total}. {_agreement(programs, seen)}",
                "",
            ]
            lines += ["| Program | Verdict | One process | Check | Reason or remark |"]
            lines += ["|---|---|---|---|---|"]
            lines += [_row(program, seen.get(program.key, {})) for program in programs]
            lines.append("")
    return "\n".join(lines)


def _agreement(programs: list[Program], seen: dict[str, Any]) -> str:
    """How often the check of the sources was right."""
    run = [seen[one.key] for one in programs if one.command and one.key in seen]
    right = [one for one in run if (one["predicted"] == "fine") == (one["verdict"] in GOOD)]
    return f"The check predicted {len(right)} of {len(run)} results."


def _row(program: Program, record: dict[str, Any]) -> str:
    shortened = program.rows is not None or program.steps is not None
    acts = {"seeds": program.seed is not None, "shortens": shortened}
    words = " and ".join(word for word, is_done in acts.items() if is_done)
    seeded = f"the runner {words} it" if words else ""
    pending = "no result yet" if program.command and not record else ""
    compared = record.get("compared")
    differs = "" if compared is None or compared["equal"] else program.differs
    remarks = (pending, record.get("reason") or program.reason, seeded, differs)
    reason = "; ".join(filter(None, remarks))
    cells = [
        f"`{program.name}`",
        record.get("verdict", "not run"),
        _compared(compared),
        record.get("predicted", ""),
        reason.replace("|", "/").replace("<", "&lt;"),
    ]
    return f"| {' | '.join(cells)} |"


def _compared(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    if found["equal"] is None:
        return "-"
    return f"{'equal' if found['equal'] else 'different'}, {found['distance']:.0e}"


if __name__ == "__main__":
    PAGE.write_text(text())
