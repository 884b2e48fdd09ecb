"""What a type checker says of calls of `popdist.run`: mypy's own words."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HEAD = """
import popdist
def f(a: int, b: str = 'x') -> float: return 1.0
def g() -> str: return ''
"""


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("reveal_type(popdist.run(g))", "list[str]"),
        ("reveal_type(popdist.run(f, args=(1, 'y')))", "list[float]"),
        ("reveal_type(popdist.run(f, args=(1,)))", "list[float]"),
        ("reveal_type(popdist.run(f, args=[1]))", "list[float]"),
        ("reveal_type(popdist.run(f, kwargs={'a': 1}))", "list[float]"),
        ("popdist.run(f, args=('no', 'y'))", "has incompatible type"),
        ("popdist.run(f, args=(1, 2))", "has incompatible type"),
        ("popdist.run(f)", "has incompatible type"),
        ("popdist.run(g, args=(1,))", "has incompatible type"),
    ],
)
def test_calls(call, said, tmp_path):
    from mypy import api

    program = tmp_path / "program.py"
    program.write_text(HEAD + call)
    cache = ROOT / "build" / "types"
    out, errors, _ = api.run(
        ["--strict", "--follow-imports=silent", f"--cache-dir={cache}", str(program)]
    )
    assert said in out.replace("builtins.", ""), out + errors
