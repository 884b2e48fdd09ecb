"""Text about the options, made from their table: ``--help`` and the page in the documentation."""

from __future__ import annotations

from popdist.poprun.command.options import OPTIONS
from popdist.poprun.command.options.kinds import FLAG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from popdist.poprun.command.options.option import Option

USAGE = "poprun [options] program [program args]"

_COLUMN = 36
_WIDTH = 100


def help_text() -> str:
    """What ``--help`` prints.

    Returns:
        The options in groups, with their defaults.
    """
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
        "Booleans take yes, no, true, false, on, off, 1 or 0. Both '--option value' and",
        "'--option=value' work, and a name may be cut as long as it stays unique. All that follows",
        "the program belongs to the program.",
        "",
        "poprun doctor looks at this machine; poprun partitions shows its partitions. Programs of",
        "these names are started with 'poprun -- doctor'.",
    ]
    return "\n".join(lines)


def options_table() -> str:
    """The options as a Markdown table.

    Returns:
        One row per option, grouped.
    """
    rows = ["| Option | Values | Default | What it does | Since |", "|---|---|---|---|---|"]
    for group, options in _groups().items():
        rows.append(f"| **{group}** | | | | |")
        rows += [
            f"| `{_spelling(option)}` | {_cell(option.kind.accepted)} "
            f"| {_cell(_default(option) or '-')} | {_cell(option.help)} | {option.since} |"
            for option in options
        ]
    return "\n".join(rows)


def _cell(text: str) -> str:
    """A text of which Markdown takes no ``<part>`` for HTML, which a page would not show."""
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
    return f"{names} {option.kind.metavar}".rstrip()


def _default(option: Option) -> str:
    if option.kind is FLAG:
        return ""
    if option.shown_default:
        return option.shown_default
    if isinstance(option.default, bool):
        return "yes" if option.default else "no"
    return "" if option.default is None else str(option.default)
