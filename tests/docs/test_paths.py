"""Files and folders that the pages name are there."""

import re

import pytest

from tests.docs.blocks import PAGES, ROOT

_PATH = re.compile(
    r"`((?:popdist|popdist_torch|popdist_tf|popdist_onnx|tests|docs|benchmarks|examples|constraints)"
    r"/[\w./*-]*)`"
)
ROOT_PAGES = [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]


# The page of public suites names the suites' own files.
OWN_PAGES = [page for page in (*PAGES, *ROOT_PAGES) if page.stem != "public-tests"]


@pytest.mark.parametrize("page", OWN_PAGES, ids=lambda page: page.stem)
def test_the_paths_of_a_page_exist(page):
    named = _PATH.findall(page.read_text())
    assert [path for path in named if not list(ROOT.glob(path.rstrip("/")))] == []
