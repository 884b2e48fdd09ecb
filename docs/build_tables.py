"""A generated part of the page about Horovod's build: its patches."""

from __future__ import annotations

from popdist.horovod_build.patches import PATCHES


def patches_table() -> str:
    """Each patch, with its builds and its reason."""
    rows = ["| Patch | For | Why |", "|---|---|---|"]
    for patch in PATCHES:
        reported = f" ([reported]({patch.upstream}))" if patch.upstream else ""
        rows.append(f"| `{patch.name}` | {patch.condition} | {patch.why}{reported} |")
    return "\n".join(rows)


PARTS = {"horovod-patches": patches_table}
