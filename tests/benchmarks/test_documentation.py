from pathlib import Path

import pytest

from benchmarks.document import _record, _summary
from benchmarks.harness import Report, Result
from benchmarks.rows import Row
from benchmarks.suite import SUITE

PAGE = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text()


@pytest.mark.parametrize("name", [benchmark.name for benchmark in SUITE])
def test_every_benchmark_is_on_the_page(name):
    assert f"| `{name}` |" in PAGE


def test_every_key_of_the_json_form_is_on_the_page():
    row = Row(name="a", unit="ms")
    keys = {*Report.__annotations__, *_record(row), *_summary(Result(benchmark="b"), None)} - {
        "results"
    }
    missing = {key for key in keys if f"`{key}`" not in PAGE}
    assert not missing
