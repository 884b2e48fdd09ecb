"""The generated parts of the pages of the API: names that resolve on first use."""

from __future__ import annotations

import ast
from pathlib import Path

import popdist_onnx
from popdist_tf.ipu import tree

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


def tensorflow_names() -> str:
    """A heading for each published module, and a reference for what is not described above it."""
    described: set[tuple[str, str]] = set()
    lines = []
    for path, module in tree.MODULES.items():
        homes = [
            home for home in module.homes.values() if home not in described and _is_text(*home)
        ]
        described |= set(homes)
        if homes:
            references = [f"::: popdist_tf.{home}.{name}" for home, name in dict.fromkeys(homes)]
            lines += [f"## `ipu.{path}`", "", module.about, "", *references, ""]
    return "\n".join(lines).rstrip()


def _is_text(home: str, name: str) -> bool:
    """Whether a name is a function or class of ours, and no constant or name of TensorFlow's."""
    source = Path(tree.__file__).parents[1] / f"{home.replace('.', '/')}.py"
    kinds = (ast.FunctionDef, ast.ClassDef)
    return any(isinstance(one, kinds) and one.name == name for one in _body(source))


def _body(source: Path) -> list[ast.stmt]:
    return ast.parse(source.read_text()).body


PARTS = {"onnx-names": onnx_names, "tensorflow-names": tensorflow_names}
"""The parts by the names that the pages know them by."""
