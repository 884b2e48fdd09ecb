import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from popdist_torch.data.prefetch_worker import rebatched


@given(st.lists(st.integers(1, 7), max_size=12), st.integers(1, 10), st.booleans())
def test_rows_keep_their_order_and_come_in_full_batches(sizes, size, keep_rest):
    rows = torch.arange(sum(sizes))
    batches = [{"x": part, "y": (2 * part,)} for part in rows.split(sizes)] if sizes else []
    joined = [
        [torch.cat([p["x"] for p in parts]), torch.cat([p["y"][0] for p in parts])]
        for parts in rebatched(batches, size, keep_rest=keep_rest)
    ]
    count, rest = divmod(len(rows), size)
    assert [len(x) for x, _ in joined] == [size] * count + [rest] * (rest > 0 and keep_rest)
    kept = len(rows) if keep_rest else count * size
    assert [v for x, _ in joined for v in x.tolist()] == list(range(kept))
    assert all(torch.equal(2 * x, y) for x, y in joined)


@pytest.mark.parametrize(
    "batch", [[torch.ones(2), "a"], [torch.ones(2), torch.ones(3)], [torch.tensor(1)], ["a"]]
)
def test_only_tensors_with_equal_rows_can_be_joined(batch):
    with pytest.raises(AssertionError, match="can be joined only"):
        list(rebatched([batch], 2, keep_rest=True))
