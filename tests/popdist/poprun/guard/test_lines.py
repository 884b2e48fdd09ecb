"""Whole lines, whatever the reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popdist.poprun.guard.output import LONGEST, LineCutter

TEXT = st.text(alphabet="aé漢\r\n", max_size=40).map(str.encode)


def cut(text, sizes, tag=b""):
    cutter = LineCutter(tag)
    units = []
    for size in [*sizes, len(text) + 1]:
        units.append(cutter.feed(text[:size]))
        text = text[size:]
    return units, cutter.flush()


@given(TEXT, st.lists(st.integers(1, 6), max_size=20))
def test_nothing_is_lost_or_reordered(text, sizes):
    units, rest = cut(text, sizes)
    assert b"".join(units) + rest == text


@given(TEXT, st.lists(st.integers(1, 6), max_size=20))
def test_only_whole_units_come_out(text, sizes):
    units, _ = cut(text, sizes)
    assert all(unit.endswith((b"\n", b"\r")) for unit in units if unit)


@given(st.lists(st.text(alphabet="aé漢", min_size=1, max_size=5), max_size=8), st.data())
def test_every_line_is_tagged_once(lines, data):
    text = "".join(line + "\n" for line in lines).encode()
    units, rest = cut(text, data.draw(st.lists(st.integers(1, 6), max_size=20)), b"[1,0]:")
    assert (b"".join(units) + rest).decode() == "".join(f"[1,0]:{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("reads", "shown"),
    [
        ([b"\r 10%", b"\r 20%\n"], b"\rT 10%\rT 20%\n"),
        ([b"10%\r", b"20%\r", b"\n"], b"T10%\rT20%\r\n"),
        ([b"a\r\n"], b"Ta\r\n"),
        ([b"no end"], b"Tno end\n"),
    ],
)
def test_progress_bars_and_ends(reads, shown):
    cutter = LineCutter(b"T")
    assert b"".join([*[cutter.feed(read) for read in reads], cutter.flush()]) == shown


def test_a_line_that_never_ends_does_not_grow_for_ever():
    cutter = LineCutter()
    assert len(cutter.feed(b"x" * (LONGEST + 1))) == LONGEST + 1
    assert not cutter.pending
