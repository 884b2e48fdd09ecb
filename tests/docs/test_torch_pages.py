"""The programs in the pages about the PyTorch adapter run as they are printed."""

import re

import pytest

from tests.distributed.jobs import ROOT


@pytest.mark.parametrize("page", ["torch", "torch-options", "torch-data", "torch-optimizers"])
def test_the_programs_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / f"{page}.md").read_text()
    program = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    # A page's blocks continue each other.
    exec(compile(program, f"docs/{page}.md", "exec"), {"__name__": "page"})  # noqa: S102
