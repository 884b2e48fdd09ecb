import pytest
from hypothesis import given
from hypothesis import strategies as st

from popdist.exchange import Item, plan

SIZES = {"float32": 4, "float16": 2, "float64": 8}

items = st.lists(
    st.builds(
        lambda dtype, elements, index: Item(f"item{index}", elements, dtype, SIZES[dtype]),
        st.sampled_from(sorted(SIZES)),
        st.integers(0, 50),
        st.integers(0, 1000),
    ),
    max_size=12,
)
slice_bytes = st.integers(8, 200)


@given(items, slice_bytes)
def test_items_lie_back_to_back_in_the_arena_of_their_type(items, slice_bytes):
    layout = plan(items, slice_bytes=slice_bytes)
    for index, arena in enumerate(layout.arenas):
        inside = [(s, i) for s, i in zip(layout.slots, items, strict=True) if s.arena == index]
        assert {item.dtype for _, item in inside} == {arena.dtype}
        ends = [0]
        for slot, item in inside:
            assert (slot.start, slot.stop) == (ends[-1], ends[-1] + item.elements)
            ends.append(slot.stop)
        assert ends[-1] == arena.elements


@given(items, slice_bytes)
def test_slices_tile_every_arena_and_keep_to_their_size(items, slice_bytes):
    layout = plan(items, slice_bytes=slice_bytes)
    for index, arena in enumerate(layout.arenas):
        slices = [part for part in layout.slices if part.arena == index]
        covered = [element for part in slices for element in range(part.start, part.stop)]
        assert covered == list(range(arena.elements))
        assert all(0 < (s.stop - s.start) * SIZES[arena.dtype] <= slice_bytes for s in slices)


@given(items, slice_bytes, st.sets(st.integers(0, 14), min_size=1))
def test_no_slice_reaches_over_an_end(items, slice_bytes, ends):
    """So what is complete up to an end is sent without anything after it."""
    layout = plan(items, slice_bytes=slice_bytes, ends=ends)
    for index, arena in enumerate(layout.arenas):
        slices = [part for part in layout.slices if part.arena == index]
        covered = [element for part in slices for element in range(part.start, part.stop)]
        assert covered == list(range(arena.elements))
        assert all(0 < (s.stop - s.start) * SIZES[arena.dtype] <= slice_bytes for s in slices)
    for part in layout.slices:
        assert not any(part.items[0] <= end < part.items[-1] for end in ends)


def test_slices_between_two_ends_are_equal():
    layout = plan(
        [Item("a", 7, "float32", 4), Item("b", 2, "float32", 4)], slice_bytes=20, ends={0}
    )
    assert [(s.start, s.stop) for s in layout.slices] == [(0, 3), (3, 7), (7, 9)]


@given(items, slice_bytes)
def test_a_slice_waits_for_exactly_the_items_that_lie_in_it(items, slice_bytes):
    layout = plan(items, slice_bytes=slice_bytes)
    for part in layout.slices:
        overlapping = [
            index
            for index, slot in enumerate(layout.slots)
            if slot.arena == part.arena and max(slot.start, part.start) < min(slot.stop, part.stop)
        ]
        assert list(part.items) == overlapping


@given(items, slice_bytes, st.integers(1, 200), st.integers(1, 200))
def test_tails_are_small_and_large_items_lie_alone(items, slice_bytes, tail_bytes, zero_copy_bytes):
    layout = plan(
        items, slice_bytes=slice_bytes, tail_bytes=tail_bytes, zero_copy_bytes=zero_copy_bytes
    )
    seen = []
    for index, arena in enumerate(layout.arenas):
        members = [i for s, i in zip(layout.slots, items, strict=True) if s.arena == index]
        seen += members
        sizes = [item.elements * item.itemsize for item in members]
        assert arena.elements == sum(item.elements for item in members)
        assert arena.zero_copy == any(size >= zero_copy_bytes for size in sizes)
        assert not arena.zero_copy or len(members) == 1
        parts = [part for part in layout.slices if part.arena == index]
        covered = [element for part in parts for element in range(part.start, part.stop)]
        assert covered == list(range(arena.elements))
        if parts and not arena.zero_copy:
            last = (parts[-1].stop - parts[-1].start) * SIZES[arena.dtype]
            assert last <= max(tail_bytes, SIZES[arena.dtype])
    assert sorted(seen, key=id) == sorted(items, key=id)


def test_early_items_fill_early_slices():
    layout = plan([Item("a", 4, "float32", 4), Item("b", 4, "float32", 4)], slice_bytes=16)
    assert [part.items for part in layout.slices] == [(0,), (1,)]


def test_slices_ignore_the_borders_of_items():
    layout = plan([Item("a", 3, "float32", 4), Item("b", 5, "float32", 4)], slice_bytes=16)
    assert [(s.start, s.stop, s.items) for s in layout.slices] == [(0, 4, (0, 1)), (4, 8, (1,))]


def test_a_slice_must_hold_an_element():
    with pytest.raises(ValueError, match="3 bytes"):
        plan([Item("a", 1, "float32", 4)], slice_bytes=3)
