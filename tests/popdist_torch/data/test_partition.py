import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from popdist_torch.data.partition import share, weave
from popdist_torch.options import Placement


def processes(locals_):
    first = 0
    for index, local in enumerate(locals_):
        yield Placement(
            first_replica=first,
            local_replicas=local,
            total_replicas=sum(locals_),
            process_id=index,
            num_processes=len(locals_),
        )
        first += local


replicas = st.lists(st.integers(1, 4), min_size=1, max_size=5)


@given(replicas, st.integers(1, 6), st.integers(1, 10), st.integers(0, 40))
def test_whole_batches_are_divided_without_gap_or_overlap(locals_, each, batches, extra):
    global_batch = each * sum(locals_)
    extra %= global_batch
    length = batches * global_batch + extra
    shares = [share(length, each, here, drop_last=True) for here in processes(locals_)]
    for epoch in range(3):
        read = [p for part in shares for p in part.positions(epoch)]
        assert len(read) == batches * global_batch
        assert read == list(range(read[0], read[0] + len(read)))
        assert read[0] == (extra if epoch % 2 else 0)
        assert read[-1] < length
    # Everybody takes the same number of steps, each of its own replicas' samples.
    steps = {len(p) / (each * n) for p, n in zip(shares, locals_, strict=True)}
    assert steps == {batches}


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.integers(0, 200))
def test_without_dropping_everything_is_read_once_or_refused(count, local, each, length):
    try:
        shares = [share(length, each, here, drop_last=False) for here in processes([local] * count)]
    except AssertionError:
        sizes = [length // count + (p < length % count) for p in range(count)]
        assert len({-(-size // (each * local)) for size in sizes}) == 2
    else:
        assert [p for part in shares for p in part.positions(1)] == list(range(length))
        assert len({-(-len(part) // (each * local)) for part in shares}) == 1


def test_leftovers_are_counted_exactly():
    """The original takes 199 modulo the process's own 50 and gets 49."""
    part = share(199, 50, next(processes([1, 1])), drop_last=True)
    assert (len(part), part.leftover) == (50, 99)


def test_a_set_below_one_global_batch_is_an_error_with_the_numbers():
    with pytest.raises(AssertionError, match="PD302") as caught:
        share(99, 50, next(processes([1, 1])), drop_last=True)
    assert "99 samples" in str(caught.value)
    assert "= 100" in str(caught.value)


def test_unequal_replicas_need_drop_last():
    with pytest.raises(AssertionError, match="drop_last"):
        share(100, 1, next(processes([2, 1])), drop_last=False)


@given(replicas, st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(0, 40))
def test_interleaved_updates_have_the_same_samples_in_every_layout(
    locals_, micro_batch, steps, batches, extra
):
    total = sum(locals_)
    global_batch = micro_batch * steps * total
    length = batches * global_batch + extra % global_batch

    def read(layout, epoch):
        """Positions by [step, replica, sample of the micro-batch], as a job of this layout sees."""
        parts = []
        for here in processes(layout):
            part = weave(length, micro_batch, steps, here)
            positions = np.array(part.positions(epoch))
            assert len(part) == positions.size
            parts.append(positions.reshape(batches * steps, here.local_replicas, micro_batch))
        return np.concatenate(parts, axis=1)

    for epoch in range(2):
        alone = read([total], epoch)
        assert (read(locals_, epoch) == alone).all()
        first = extra % global_batch if epoch else 0
        assert alone.ravel().tolist() == list(range(first, first + batches * global_batch))
