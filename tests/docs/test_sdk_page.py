"""The program in the page about the SDK's names runs, and the page's listing is what is printed."""

import re

import pytest

from popdist.sdk.cli import main
from tests.distributed.jobs import ROOT

PAGE = (ROOT / "docs" / "sdk-names.md").read_text()


def test_the_program_runs(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    exec(compile(program, "docs/sdk-names.md", "exec"), {"__name__": "page"})  # noqa: S102


def test_the_listing_is_what_is_printed(tmp_path, monkeypatch, capsys):
    lines = {3: "import poptorch", 9: "opts = poptorch.Options()", 10: "opts.deviceIteration(2)"}
    lines |= {1: "import torch", 24: 'state = torch.load("state.pt")'}
    text = "\n".join(lines.get(number, "") for number in range(1, 25))
    (tmp_path / "train.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main(["check", "train.py"]) == 1
    assert f"$ popdist-sdk check train.py\n{capsys.readouterr().out}```" in PAGE


@pytest.mark.parametrize("word", ["enable", "disable", "status", "check"])
def test_every_command_is_named(word):
    assert f"popdist-sdk {word}" in PAGE
