"""The programs in the pages about builder, optimizers and passes run as they are printed."""

import re

import pytest

from tests.distributed.jobs import ROOT


@pytest.mark.parametrize("page", ["onnx-builder", "onnx-optimizers", "onnx-passes"])
def test_the_programs_run(page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    program = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    assert "assert" in program
    # A page's blocks continue each other.
    exec(compile(program, f"docs/{page}.md", "exec"), {"__name__": "page"})  # noqa: S102
