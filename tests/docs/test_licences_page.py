"""The page of licences has a row for each package that an extra of users asks for."""

import re
import sys

import pytest

from tests.distributed.jobs import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = (ROOT / "docs" / "licences.md").read_text()
EXTRAS = sorted(set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)))
OTHERS = {"zoo", "docs", "dev", "all"}
ASKED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_the_page_has_all_extras_of_users():
    assert set(EXTRAS) == ASKED.keys() - OTHERS


@pytest.mark.parametrize("extra", EXTRAS)
def test_each_package_of_an_extra_has_a_licence(extra):
    names = {re.match(r"[\w.-]+", one)[0] for one in ASKED[extra]} - {"tensorflow"}
    rows = dict(re.findall(rf"^\| `{extra}` \| ([\w.-]+) \| (.+) \|$", PAGE, re.MULTILINE))
    assert rows.keys() == names
    assert "not installed here" not in rows.values()
