"""No option is declared without something that obeys it."""

import re
from pathlib import Path

import pytest

import popdist.poprun
from popdist.poprun.options.table import OPTIONS

ROOT = Path(popdist.poprun.__file__).parent
# Records of options hold values for others to read; that alone is no effect.
PASSED_ON = [ROOT / "options/requests.py", ROOT / "options/table.py", ROOT / "options/types.py"]
SOURCES = [path for path in ROOT.rglob("*.py") if path not in PASSED_ON]
TEXT = "\n".join(path.read_text() for path in SOURCES)
REQUESTS = (ROOT / "options/requests.py").read_text()


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_something_reads_it(option):
    field = option.name.replace("-", "_")
    if option.ipu_only:
        return  # it is checked, and `remarks` says that it has no effect
    read = rf'\["{re.escape(option.name)}"\]|\.{field}\b|"{re.escape(option.name)}"'
    # A record may answer for its own fields.
    own = rf"self\.{field}\b"
    assert re.search(read, TEXT) or re.search(own, REQUESTS)
