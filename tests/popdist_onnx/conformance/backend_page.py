"""Runs ONNX's whole backend suite and writes its page: ``make test-backend``."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnxruntime

from tests.popdist_onnx.conformance.backend_reasons import FORWARD, GRADIENT, SETTINGS
from tests.popdist_onnx.conformance.backend_suite import all_cases, forward, gradients, reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.popdist_onnx.conformance.backend_suite import Verdict

PAGE = Path(__file__).parents[3] / "docs" / "onnx-backend-suite.md"

_HEAD = """# ONNX's backend suite

The package `onnx` has files with inputs and outputs to test runtimes with: each operator at its
newest version in all its forms, and networks of older opsets. This page has the counts of popdist's
verdicts. `make test-backend` runs all cases and writes it; `make test` runs a quarter of them.

**Forward**: the graph that a session would run gives what the suite says, within the tolerance of
the case. Cases that ONNX Runtime itself does not pass, and popdist neither, are not judged.

**Gradient**: for each floating-point input, the slope of a weighed sum of all outputs along a
random direction is its central difference. The judge is ONNX's evaluator in double precision; where
its loss differs, ONNX Runtime in double, then in single precision. Whole numbers (axes, shapes,
labels) are stated in the file, as exporters write them. The inputs of the last table only set
something.
"""

_MEANING = {
    "same": "equal to the suite, or to differences",
    "zero": "no gradient flows, and differences are zero",
    "refused": "an error with a code names what is not supported",
    "no rule": "an error (PD522) names the operators without a gradient rule",
    "differs": "another result",
    "crash": "an error without a code",
    "no judge": "neither evaluator nor ONNX Runtime computes the file",
    "unjudged": "ONNX Runtime does not pass the case",
    "no float": "no floating-point input and output, or text among the inputs",
    "not finite": "the case has results that are not finite",
}


def _counts(found: Mapping[str, Verdict]) -> list[str]:
    counts = Counter(verdict.word for verdict in found.values())
    rows = [
        f"| {word} | {counts[word]:,} | {_MEANING[word]} |" for word in _MEANING if counts[word]
    ]
    return ["| Verdict | Cases | Meaning |", "|---|---:|---|", *rows]


def _reasons(found: Mapping[str, Verdict], table: Sequence[tuple[str, str, str]]) -> list[str]:
    rows = ["| Cases | Number | Verdict | Reason |", "|---|---:|---|---|"]
    for patterns, word, why in table:
        chosen = [one for one in all_cases() if reason(one, [(patterns, word, why)])]
        words = sorted({found[one.name].word for one in chosen})
        names = ", ".join(f"`{one}`" for one in patterns.split())
        rows.append(f"| {names} | {len(chosen)} | {', '.join(words)} | {why} |")
    return rows


def main() -> None:
    """Runs all cases and writes the page."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    cases = all_cases()
    write(
        {case.name: forward(case) for case in cases},
        {case.name: gradients(case) for case in cases},
    )


def write(forwards: Mapping[str, Verdict], slopes: Mapping[str, Verdict]) -> None:
    """Writes the page from the verdicts by case, and prints those that nobody expects."""
    settings = [
        f"| `{name}` | {', '.join(map(str, places))} | {what} |"
        for name, (places, what) in SETTINGS.items()
    ]
    lines = [
        _HEAD,
        f"Measured on {datetime.now(timezone.utc):%Y-%m-%d}: {len(forwards):,} cases,",
        f"onnx {onnx.__version__}, ONNX Runtime {onnxruntime.__version__}.",
        "\n## Forward\n",
        *_counts(forwards),
        "",
        *_reasons(forwards, FORWARD),
        "\n## Gradient\n",
        *_counts(slopes),
        "",
        *_reasons(slopes, GRADIENT),
        "\nInputs of which no gradient is compared:\n",
        "| Operator | Inputs | What they are |",
        "|---|---|---|",
        *settings,
    ]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for what, found, table in (("forward", forwards, FORWARD), ("gradient", slopes, GRADIENT)):
        fine = ("same", "unjudged", "zero", "no float", "not finite")
        for case in all_cases():
            verdict, known = found[case.name], reason(case, table)
            if verdict.word not in (*fine, *(known[0].split(", ") if known else ())):
                print(f"{what} of {case.name}: {verdict.word}: {verdict.detail}")  # noqa: T201


if __name__ == "__main__":
    main()
