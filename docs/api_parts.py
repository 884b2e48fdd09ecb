"""The generated part of docs/api-onnx.md: names that resolve on first use, by where they live."""

from __future__ import annotations

import popdist_onnx

_TITLES = {
    "training": "Training in a few lines",
    "builder": "Builder",
    "session": "Sessions, devices and data",
    "optimizers": "Optimizers",
    "types": "Options and types",
    "errors": "Errors",
    "prefixes": "Prefixes of names",
}


def onnx_names() -> str:
    """A heading and a reference for everything that `popdist_onnx` publishes."""
    homes = popdist_onnx._HOMES  # noqa: SLF001 - the one list of its public names
    lines = []
    for family, title in _TITLES.items():
        lines += [f"## {title}", ""]
        for home, names in homes.items():
            if home.partition(".")[0] == family:
                lines += [f"::: popdist_onnx.{home}.{name}" for name in names]
        lines.append("")
    missing = {home for home in homes if home.partition(".")[0] not in _TITLES}
    if missing:
        raise KeyError(f"docs/api_parts.py has no title for {missing}")
    return "\n".join(lines).rstrip()


PARTS = {"onnx-names": onnx_names}
"""The part by the name that the page knows it by."""
