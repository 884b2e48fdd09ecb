"""The page of examples shows every program of the folder, and tests run each of them."""

import re

import pytest

from tests.distributed.jobs import ROOT

PAGE = (ROOT / "docs" / "gallery.md").read_text()
PROGRAMS = sorted(
    path.name
    for path in (ROOT / "examples").glob("*.py")
    if "poprun " in path.read_text().split('"""')[1]  # others are their modules
)


def test_each_program_is_shown_with_a_command():
    shown = set(re.findall(r"\]\(\.\./examples/(\w+\.py)\)", PAGE))
    started = set(
        re.findall(r"examples/(\w+\.py)", "".join(re.findall(r"^\$ .*$", PAGE, re.MULTILINE)))
    )
    assert shown == started == set(PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_test_that_the_page_names_runs_the_program(program):
    blocks = re.findall(
        r"not run: (tests/[\w/]+\.py) runs.*?\n```console\n(.*?)```", PAGE, re.DOTALL
    )
    (test,) = [test for test, commands in blocks if f"examples/{program}" in commands]
    assert program.removesuffix(".py") in (ROOT / test).read_text()
