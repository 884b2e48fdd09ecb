"""Writes the generated parts of the documentation, or checks that they are up to date.

A generated part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``; this file knows
the names. Run ``python docs/generate.py`` after a change to a table in the code.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from api_parts import PARTS as API_PARTS  # beside this script
from benchmark_tables import (  # beside this script
    aims_table,
    ddp_gains,
    keras_gains,
    phases_table,
    pictures,
)
from build_tables import PARTS as BUILD_PARTS  # beside this script
from check_tables import PARTS as CHECK_PARTS  # beside this script
from error_texts import texts  # beside this script
from growth_tables import PARTS as GROWTH_PARTS  # beside this script
from operator_tables import (  # beside this script
    conformance_table,
    excluded_attributes_list,
    gradients_table,
    graphcore_table,
    session_options_table,
    stored_options_list,
)
from optimizer_tables import scalars_table, settings_table  # beside this script
from remedies import FAMILIES  # beside this script
from sdk_tables import PARTS as SDK_PARTS  # beside this script
from torch_tables import PARTS as TORCH_PARTS  # beside this script

from popdist import errors
from popdist.contract import VARIABLES
from popdist.poprun.options.help import options_table
from popdist.poprun.output.result_json import FIELDS
from popdist_onnx import errors as onnx_errors
from popdist_tf import errors as tensorflow_errors
from popdist_torch import errors as torch_errors

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])

_PART = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def environment_table() -> str:
    """The variables of the contract."""
    rows = ["| Variable | Values | Meaning |", "|---|---|---|"]
    rows += [f"| `{v.name}` | {v.accepted} | {v.meaning} |" for v in VARIABLES]
    return "\n".join(rows)


def codes_table() -> str:
    """The error codes, each with its cause and what to do."""
    meanings = errors.CODES | torch_errors.CODES | tensorflow_errors.CODES | onnx_errors.CODES
    lines = []
    for family, remedies in FAMILIES.items():
        lines += [f"## {family}", ""]
        for code, (cause, fix) in remedies.items():
            lines += [f"### {code}: {meanings[code]}", "", cause, "", f"**What to do.** {fix}", ""]
            if said := [f"- `{text}`" for text in texts().get(code, []) if _readable(text)]:
                lines += ["Messages:", "", *said, ""]
    lines += ["## Retired codes", "", "| Code | Now |", "|---|---|"]
    lines += [f"| {old} | {_linked(new, meanings)} |" for old, new in errors.RETIRED.items()]
    return "\n".join(lines).rstrip()


def _linked(code: str, meanings: dict[str, str]) -> str:
    if code not in meanings:
        return code
    words = re.sub(r"[^\w\s-]", "", f"{code}: {meanings[code]}".lower())
    return f"[{code}](#{'-'.join(words.split())})"


def _readable(text: str) -> bool:
    return len(text.replace("...", "").split()) > 1 and "`" not in text


def result_table() -> str:
    """The fields of the launcher's result."""
    rows = ["| Field | Holds | Meaning |", "|---|---|---|"]
    rows += [f"| `{field.path}` | {field.kind} | {field.meaning} |" for field in FIELDS]
    return "\n".join(rows)


def fault_matrix() -> str:
    """What can fail, where, and how the job ended; from the record of the tests."""
    path = ROOT / "tests" / "distributed" / "faults.json"
    rows: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in json.loads(path.read_text()):
        rows.setdefault((row["place"], row["what"], row["hosts"]), []).append(row)
    lines = [
        "| Place | What happens | Hosts | Open MPI | Code | poprun says | Alive | Left | Seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (place, what, hosts), found in rows.items():
        first = found[0]
        said = re.sub(r"PID \d+", "PID n", first["said"]).removeprefix("poprun: ")
        said = re.sub(r"10\.77\.\d+\.\d+", "node2", said).partition(": <folder>")[0]
        codes = {"killed" if row["code"] < 0 else str(row["code"]): None for row in found}
        counts = [max(row[name] for row in found) for name in ("survivors", "leftovers")]
        seconds = max(row["seconds"] for row in found)
        versions = ", ".join(sorted(row["open_mpi"] for row in found))
        code = ", ".join(codes)
        cells = [place, what, hosts, versions, code, f"`{said}`" if said else "-", *counts, seconds]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def fuzzed_lines() -> str:
    """What became of drawn command lines; from the record of the tests."""
    path = ROOT / "tests" / "distributed" / "fuzz.json"
    seen: dict[str, Any] = json.loads(path.read_text())
    return (
        f"Of {seen['lines']:,} command lines, environments and values that were drawn at random, "
        f"{seen['run']:,} were run for real: {seen['jobs']:,} of them started a job. "
        f"{len(seen['wrong'])} ended in a traceback, with another exit code than the program's or "
        "that of a refusal, or left a file."
    )


PARTS = {
    "poprun-options": options_table,
    "environment": environment_table,
    "error-codes": codes_table,
    "result-fields": result_table,
    "onnx-conformance": conformance_table,
    "onnx-conformance-attributes": excluded_attributes_list,
    "graphcore-operators": graphcore_table,
    "onnx-gradients": gradients_table,
    "session-options": session_options_table,
    "stored-session-options": stored_options_list,
    "optimizer-settings": settings_table,
    "optimizer-scalars": scalars_table,
    "benchmark-aims": aims_table,
    "benchmark-pictures": pictures,
    "ddp-gains": ddp_gains,
    "keras-gains": keras_gains,
    "launch-phases": phases_table,
    "fault-matrix": fault_matrix,
    "fuzzed-lines": fuzzed_lines,
    **BUILD_PARTS,
    **CHECK_PARTS,
    **GROWTH_PARTS,
    **TORCH_PARTS,
    **SDK_PARTS,
    **API_PARTS,
}


def filled(text: str) -> str:
    """A page with its generated parts as they should be.

    Args:
        text: The page.

    Returns:
        The page, rewritten.
    """
    return _PART.sub(lambda part: f"{part[1]}{PARTS[part['name']]()}\n{part[3]}", text)


def main(arguments: list[str]) -> int:
    """Rewrites the pages, or with ``--check`` names those that are out of date.

    Args:
        arguments: The command line.

    Returns:
        1 where a page was out of date and was not to be rewritten, else 0.
    """
    stale = False
    for page in PAGES:
        before = page.read_text()
        after = filled(before)
        if after != before:
            stale = True
            print(page.relative_to(ROOT))
            if "--check" not in arguments:
                page.write_text(after)
    return int(stale and "--check" in arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
