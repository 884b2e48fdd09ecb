"""The programs in the pages about builder, optimizers and passes run as they are printed."""

import re

import numpy as np
import pytest

from tests.distributed.jobs import ROOT, run_job


@pytest.mark.parametrize("page", ["onnx-builder", "onnx-optimizers", "onnx-passes"])
def test_the_programs_run(page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    program = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    assert "assert" in program
    # A page's blocks continue each other.
    exec(compile(program, f"docs/{page}.md", "exec"), {"__name__": "page"})  # noqa: S102


def distributed_page():
    """Runs on every instance: the page about training, its last function included."""
    text = (ROOT / "docs" / "onnx.md").read_text()
    program = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    names = {"__name__": "page"}
    exec(compile(program, "docs/onnx.md", "exec"), names)  # noqa: S102
    trained = names["distributed"](names["model"], names["samples"], names["classes"])
    return {"weights": trained}


def test_the_page_about_training_runs_on_two_instances():
    first, second = run_job(distributed_page)
    np.testing.assert_array_equal(first["weights"], second["weights"])
    assert np.abs(first["weights"]).max() > 0
