"""The page about the SDK's names leaves no command out; its blocks run with those of all pages."""

import pytest

from tests.distributed.jobs import ROOT

PAGE = (ROOT / "docs" / "sdk-names.md").read_text()


@pytest.mark.parametrize("word", ["enable", "disable", "status", "check"])
def test_every_command_is_named(word):
    assert f"popdist-sdk {word}" in PAGE
