"""Plain loops in a process that no launcher started: everything works, and nothing is exchanged."""

import copy

import pytest
import torch
from torch import nn

import popdist_torch.horovod as hvd
from popdist.errors import PopdistError


@pytest.fixture(autouse=True)
def _started():
    hvd.init()


def test_a_process_alone_is_rank_0_of_1():
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (0, 1, 0, 1)
    assert hvd.local_batch_size(7) == 7
    assert hvd.average_metrics({"loss": 2.0}, weight=3) == {"loss": 2.0}
    assert sorted(hvd.DistributedSampler(range(5))) == list(range(5))
    assert hvd.pin_device().type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_other_names_are_horovods_own():
    import horovod.torch

    assert hvd.allreduce_async is horovod.torch.allreduce_async
    assert hvd.allgather.__doc__ == horovod.torch.allgather.__doc__
    with pytest.raises(AttributeError):
        _ = hvd.no_such_name


def test_collectives_return_what_this_process_has():
    mine = torch.arange(6.0).view(3, 2).requires_grad_()
    splits = torch.tensor([3], dtype=torch.int32)
    sent, received = hvd.alltoall(mine, splits=splits)
    assert received.tolist() == [3]
    for result in (
        *(hvd.allgather(mine), hvd.broadcast(mine, 0), hvd.reducescatter(mine), sent),
        *(hvd.alltoall(mine), hvd.allreduce(mine), *hvd.grouped_allgather([mine, mine])),
    ):
        assert torch.equal(result, mine)
        assert result is not mine
        assert result.requires_grad
    scaled = hvd.grouped_allreduce([mine], op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    assert torch.equal(scaled[0], mine * 1.5)
    value = torch.ones(2)
    assert hvd.allreduce_(value, prescale_factor=2.0) is value
    assert value.tolist() == [2.0, 2.0]


def test_steps_are_those_of_the_optimizer_itself():
    torch.manual_seed(1)
    model = nn.Linear(3, 2)
    twin = copy.deepcopy(model)
    plain = torch.optim.Adam(twin.parameters(), lr=0.1)
    ours = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.1), model.named_parameters()
    )
    assert isinstance(ours, torch.optim.Adam)
    hvd.broadcast_parameters(model)
    hvd.broadcast_optimizer_state(ours)
    for net, optimizer in ((model, ours), (twin, plain)):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            net(torch.ones(1, 3)).square().sum().backward()
            optimizer.step()
    ours.synchronize()
    with ours.skip_synchronize():
        ours.step()
    plain.step()
    assert torch.equal(model.weight, twin.weight)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (lambda m: [("a", m.weight)], "not named"),
        (lambda m: [("a", m.weight), ("a", m.bias)], "named twice: "),
        (lambda m: m, "(?s)takes names with parameters.*Linear.*named_parameters"),
        (lambda m: m.parameters(), "(?s)takes names with parameters.*Parameter"),
    ],
)
def test_names_must_fit_the_optimizer(names, told):
    from popdist_torch.horovod.optimizer import named

    model = nn.Linear(2, 2)
    with pytest.raises(PopdistError, match=told):
        named(torch.optim.SGD(model.parameters(), lr=0.1), names(model))


WRONG = {
    "operation": lambda: hvd.allreduce(torch.ones(2), op="sum"),
    "operation of the optimizer": lambda: hvd.DistributedOptimizer(
        torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), op="sum"
    ),
    "root": lambda: hvd.broadcast(torch.ones(2), root_rank=5),
    "root of parameters": lambda: hvd.broadcast_parameters(nn.Linear(1, 1), root_rank=5),
    "root of a state": lambda: hvd.broadcast_optimizer_state(
        torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), root_rank=-1
    ),
    "name": lambda: hvd.broadcast_parameters({"epoch": 3}),
    "splits": lambda: hvd.alltoall(torch.ones(2), splits=torch.tensor([7])),
    "type": lambda: hvd.allreduce(torch.ones(2, dtype=torch.bfloat16)),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused_at_every_size(name):
    kind = ValueError if name == "type" else PopdistError
    with pytest.raises(kind):
        WRONG[name]()


@pytest.mark.parametrize(
    "call",
    [
        hvd.rank,
        hvd.size,
        lambda: hvd.allreduce(torch.ones(2)),
        lambda: hvd.broadcast_parameters(nn.Linear(1, 1)),
        lambda: hvd.average_metrics({"loss": 1.0}),
    ],
)
def test_calls_before_init_are_refused_at_every_size(call, monkeypatch):
    monkeypatch.setattr("popdist.backend._backend", None)
    with pytest.raises(PopdistError, match="Horovod has not been started"):
        call()


@pytest.mark.parametrize("size", [0, -2])
def test_batches_have_samples(size):
    with pytest.raises(PopdistError, match="cannot be divided"):
        hvd.local_batch_size(size)


def test_a_state_that_is_no_tensor_is_named():
    from popdist_torch.horovod.sharing import _described

    with pytest.raises(PopdistError, match="epoch cannot be broadcast"):
        _described("epoch", 3)


def test_compressions_that_do_not_exist_are_refused():
    with pytest.raises(PopdistError, match="compressed"):
        hvd.DistributedOptimizer(
            torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), compression=int
        )
