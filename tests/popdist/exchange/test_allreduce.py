"""The executor against a stand-in that records what Horovod would be asked."""

import pytest
import torch

from popdist.errors import BackendError
from popdist.exchange import Exchange, Item, allocate, plan, views


class Doubling:
    """As if one other instance had submitted the same tensors."""

    Sum = object()

    def __init__(self):
        self.submitted = []
        self.waiting = {}

    def grouped_allreduce_async_(self, tensors, *, op, name):
        assert op is self.Sum
        (tensor,) = tensors
        self.submitted.append(name)
        self.waiting[name] = tensor
        return name

    def synchronize(self, handle):
        self.waiting.pop(handle).mul_(2)


class Broken(Doubling):
    def synchronize(self, handle):
        raise RuntimeError(f"Horovod has been shut down before {handle}")


def exchange(sizes, horovod, *, dtype="float32", slice_bytes=16, fill=None):
    itemsize = torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    items = [Item(f"item{i}", n, dtype, itemsize) for i, n in enumerate(sizes)]
    layout = plan(items, slice_bytes=slice_bytes)
    arenas = allocate(layout)
    shared = Exchange(layout, arenas, horovod, fill=fill)
    return shared, views(layout, arenas, [(n,) for n in sizes])


def test_arenas_hold_sums_after_a_round():
    shared, (first, second) = exchange([3, 6], Doubling())
    for _ in range(2):
        first.fill_(1)
        second.copy_(torch.arange(6))
        shared.begin()
        shared.finish()
        assert first.tolist() == [2, 2, 2]
        assert second.tolist() == [0, 2, 4, 6, 8, 10]


def test_a_slice_leaves_when_its_last_item_is_ready_and_not_before():
    horovod = Doubling()
    shared, _ = exchange([3, 3, 4], horovod)  # slices: items 0 and 1; 1 and 2; 2
    shared.begin()
    shared.ready(1)
    assert horovod.submitted == []
    shared.ready(0)
    assert horovod.submitted == ["popdist.0"]
    shared.finish()
    assert sorted(horovod.submitted) == ["popdist.0", "popdist.1", "popdist.2"]


def test_names_are_the_same_in_every_round():
    horovod = Doubling()
    shared, _ = exchange([9], horovod)
    for _ in range(2):
        shared.begin()
        shared.finish()
    assert horovod.submitted[:3] == horovod.submitted[3:]


def test_bfloat16_travels_as_float32_and_comes_back():
    horovod = Doubling()
    shared, (only,) = exchange([4], horovod, dtype="bfloat16")
    only.fill_(3)
    shared.begin()
    shared.ready(0)
    assert horovod.waiting["popdist.0"].dtype == torch.float32
    shared.finish()
    assert only.dtype == torch.bfloat16
    assert only.tolist() == [6, 6, 6, 6]


def test_an_item_that_is_ready_twice_is_an_error():
    shared, _ = exchange([4], Doubling())
    shared.begin()
    shared.ready(0)
    with pytest.raises(BackendError, match="PD022") as caught:
        shared.ready(0)
    assert "item0" in str(caught.value)


def test_a_lost_instance_is_named_as_the_reason():
    shared, _ = exchange([4], Broken())
    shared.begin()
    with pytest.raises(BackendError, match="PD021") as caught:
        shared.finish()
    assert "shut down" in str(caught.value)


def test_buffers_must_be_those_of_the_plan():
    layout = plan([Item("a", 4, "float32", 4)])
    with pytest.raises(BackendError, match="PD020"):
        Exchange(layout, [torch.zeros(5)], Doubling())
    with pytest.raises(BackendError, match="PD020"):
        Exchange(layout, [torch.zeros(4, dtype=torch.float64)], Doubling())


def lending(dtype):
    horovod = Doubling()
    layout = plan([Item("a", 2, dtype, 2), Item("large", 9, dtype, 2)], zero_copy_bytes=18)
    arenas = allocate(layout)
    return Exchange(layout, arenas, horovod), horovod


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_lent_memory_is_summed_where_it_is_and_let_go(dtype):
    shared, horovod = lending(str(dtype)[6:])
    for _ in range(2):
        memory = torch.arange(9, dtype=dtype)
        shared.begin()
        shared.attach(1, memory)
        shared.ready(1)
        assert len(horovod.waiting) == 1
        shared.finish()
        assert memory.tolist() == [2 * i for i in range(9)]
    shared.begin()
    with pytest.raises(BackendError, match="PD020"):
        shared.ready(1)


def test_memory_must_be_lent_as_planned():
    shared, _ = lending("float16")
    shared.begin()
    for wrong in (torch.zeros(8), torch.zeros(9), torch.zeros(3, 3, dtype=torch.float16)):
        with pytest.raises(BackendError, match="PD020"):
            shared.attach(1, wrong)
    with pytest.raises(BackendError, match="PD020"):
        shared.attach(0, torch.zeros(2, dtype=torch.float16))


def test_items_are_filled_in_before_their_slice_leaves():
    events = []
    horovod = Doubling()
    shared, _ = exchange(
        [3, 3, 4], horovod, fill=lambda items: events.append((items, len(horovod.submitted)))
    )
    shared.begin()
    shared.ready(1)
    assert events == []
    shared.ready(0)
    shared.finish()
    assert events == [((0, 1), 0), ((1, 2), 1), ((2,), 2)]
