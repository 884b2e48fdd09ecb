"""The page about common mistakes shows the messages that poprun really prints."""

import re
import shlex
from html import unescape

import pytest

from tests.distributed.jobs import LAUNCHER, ROOT, run_command

SECTION = (
    (ROOT / "docs" / "mistakes.md").read_text().partition("## poprun\n")[2].partition("\n## ")[0]
)
ROWS = [
    (mistake, code, unescape(message))
    for mistake, code, message in re.findall(
        r"^\| [^`|]*`([^`]+)`[^|]*\| (PD\d{3}): ([^|]+?) \|", SECTION, re.MULTILINE
    )
    if mistake.startswith(("-", "poprun"))
]


@pytest.mark.parametrize(("mistake", "code", "message"), ROWS, ids=[row[0] for row in ROWS])
def test_poprun_says_what_the_page_says(tmp_path, mistake, code, message):
    if "file is not executable" in SECTION.partition(mistake)[2].partition("|")[0]:
        (tmp_path / "train.py").write_text("")
    words = shlex.split(mistake.removeprefix("poprun"))
    if not mistake.startswith("poprun"):
        words.append("true")
    exit_code, output = run_command([*LAUNCHER, *words], cwd=tmp_path)
    assert exit_code in (1, 2)
    assert f"[{code}] {message}" in output


def test_the_rows_are_found():
    assert len(ROWS) >= 15
