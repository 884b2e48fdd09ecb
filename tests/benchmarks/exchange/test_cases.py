import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.exchange.cases import KIB, MIB, Case, cases, readable
from benchmarks.harness import Effort


def test_a_full_run_goes_from_4_kib_to_64_mib_in_steps_of_4():
    for buffers in ("reused", "fresh"):
        sizes = [c.size for c in cases(Effort()) if c.buffers == buffers and c.tensors == 1]
        assert sizes == [4 * KIB * 4**step for step in range(8)]
        assert sizes[-1] == 64 * MIB


def test_a_quick_run_is_a_part_of_the_full_one_that_has_the_aims():
    quick = cases(Effort(quick=True))
    assert set(quick) < set(cases(Effort()))
    kinds = {Case(64 * MIB, 1, "fresh"), Case(64 * MIB, 1, "written"), Case(64 * MIB, 16)}
    assert {Case(64 * MIB), *kinds} <= set(quick)


def test_memory_is_written_once_before_a_sample_so_a_sample_is_one_exchange():
    assert {c.calls for c in cases(Effort()) if c.buffers == "written"} == {1}


@given(st.integers(1, 2**28), st.integers(1, 64))
def test_small_exchanges_are_repeated_within_a_sample(elements, tensors):
    case = Case(4 * elements * tensors, tensors)
    assert 1 <= case.calls <= 16
    assert case.calls == 1 or case.calls * case.size <= MIB


@pytest.mark.parametrize(("size", "tensors"), [(0, 1), (6, 1), (8, 3), (4, 0)])
def test_bytes_that_do_not_divide_are_a_mistake(size, tensors):
    with pytest.raises(ValueError, match="cannot be divided"):
        Case(size, tensors)


@given(st.integers(1, 2**40))
def test_readable_sizes_are_exact(size):
    number, unit = readable(size).split()
    assert int(number) * {"B": 1, "KiB": KIB, "MiB": MIB}[unit] == size


def test_labels_say_size_and_memory():
    assert Case(64 * MIB).label == "64 MiB, reused"
    assert Case(64 * MIB, 16, "fresh").label == "16 x 4 MiB, fresh"
