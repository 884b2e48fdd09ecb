import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from popdist_torch.executor.replicas import RandomStreams, ReplicaBuffers, restore, stream_seed
from popdist_torch.executor.weights import Weights

CPU = torch.device("cpu")


@given(st.integers(0, 2**63), st.lists(st.integers(0, 2**20), min_size=2, unique=True))
def test_no_two_replicas_share_a_stream(seed, replicas):
    # Torch seeds its CPU generator with these 32 bits.
    low = [stream_seed(seed, replica) & 0xFFFFFFFF for replica in replicas]
    assert len(set(low)) == len(low)


def test_neighbouring_seeds_do_not_give_the_streams_of_neighbouring_replicas():
    streams = [{stream_seed(seed, replica) for replica in range(64)} for seed in range(64)]
    assert len(set.union(*streams)) == 64 * 64


def draw(streams, replica):
    with streams.of(replica):
        return torch.rand(3).tolist()


def test_a_replica_draws_the_same_wherever_it_runs():
    together = RandomStreams(5, range(4), CPU)
    alone = RandomStreams(5, [2], CPU)
    first = draw(together, 2)
    draw(together, 0)
    assert [first, draw(together, 2)] == [draw(alone, 0), draw(alone, 0)]


def test_the_hosts_stream_goes_on_undisturbed():
    torch.manual_seed(1)
    expected = [torch.rand(2).tolist(), torch.rand(2).tolist()]
    torch.manual_seed(1)
    seen = [torch.rand(2).tolist()]
    draw(RandomStreams(5, range(2), CPU), 1)
    seen.append(torch.rand(2).tolist())
    assert seen == expected


def test_the_hosts_stream_comes_back_after_an_error():
    streams = RandomStreams(5, range(1), CPU)
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), streams.of(0):
        raise ZeroDivisionError
    assert torch.equal(torch.get_rng_state(), before)


def test_streams_resume_from_their_state():
    streams = RandomStreams(5, range(2), CPU)
    draw(streams, 1)
    kept = streams.state
    ahead = draw(streams, 1)
    streams.state = kept
    assert draw(streams, 1) == ahead


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("unset", None)


def test_each_replica_changes_its_own_buffers():
    module = nn.Sequential(Counter(), nn.BatchNorm1d(2))
    buffers = ReplicaBuffers(module, 2)
    buffers.use(1)
    module[0].count += 1  # in place
    module[1].running_mean = torch.full((2,), 7.0)  # anew
    buffers.use(0)
    assert module[0].count.item() == 0
    assert module[1].running_mean.tolist() == [0, 0]
    buffers.use(1)
    assert module[0].count.item() == 1
    assert module[1].running_mean.tolist() == [7, 7]
    assert module.state_dict()["1.running_mean"].tolist() == [7, 7]


@pytest.mark.parametrize("change", ["in place", "anew"])
def test_buffers_that_a_model_changes_cannot_be_broadcast(change):
    module = Counter()
    buffers = ReplicaBuffers(module, 2)
    if change == "anew":
        module.count = module.count + 1
    else:
        module.count += 1
    with pytest.raises(RuntimeError, match="does not support broadcasting buffers"):
        buffers.require_unchanged(broadcast=True)


@pytest.mark.parametrize(("replicas", "broadcast"), [(1, True), (2, False)])
def test_other_models_may_change_their_buffers(replicas, broadcast):
    module = Counter()
    buffers = ReplicaBuffers(module, replicas)
    module.count += 1
    buffers.require_unchanged(broadcast=broadcast)


def test_buffers_that_stay_the_same_are_no_error():
    buffers = ReplicaBuffers(Counter(), 2)
    buffers.use(1)
    buffers.require_unchanged(broadcast=True)


def test_statistics_of_norms_are_exempt():
    module = nn.BatchNorm1d(2)
    buffers = ReplicaBuffers(module, 2)
    module(torch.randn(4, 2))
    buffers.require_unchanged(broadcast=True)


def test_a_checkpoint_of_another_kind_of_device_gives_the_hosts_streams():
    saved = RandomStreams(5, range(2), CPU)
    ahead = [draw(saved, replica) for replica in range(2)]
    other = torch.arange(16, dtype=torch.uint8)  # as long as the state of a GPU
    first = RandomStreams(5, range(2), CPU).state
    rows = [{"stream": [*stream, other], "buffers": []} for stream in first]
    restored = RandomStreams(6, range(2), CPU)
    restore(restored, ReplicaBuffers(nn.Linear(1, 1), 2), rows)
    assert [draw(restored, replica) for replica in range(2)] == ahead
    # A GPU's stream of this process stays where the file has none.
    mine = RandomStreams(6, range(2), CPU)
    mine.state = [(*stream, other) for stream in mine.state]
    restore(
        mine, ReplicaBuffers(nn.Linear(1, 1), 2), [{**r, "stream": r["stream"][:1]} for r in rows]
    )
    assert all(torch.equal(state[1], other) for state in mine.state)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(mine.state, first, strict=True))


def test_memory_that_a_program_shares_with_parameters_is_noticed():
    flat = torch.arange(6.0)
    model = nn.Linear(2, 2)
    model.weight.data = flat[:4].view(2, 2)
    weights = Weights(torch.device("meta"), in_place=False)
    for name, parameter in model.named_parameters():
        weights.add(name, parameter)
    assert [weights.names[index] for index in weights._aliased] == ["weight"]
    kept = model.state_dict()["bias"]
    again = Weights(torch.device("meta"), in_place=False)
    again.add("bias", model.bias)
    assert again._aliased == [0]
    assert kept.shape == (2,)
