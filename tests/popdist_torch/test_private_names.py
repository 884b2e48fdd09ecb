"""PopTorch's private names that public libraries use, as those libraries use them."""

import pytest
import torch
from torch import nn

import popdist_torch as poptorch
from popdist_torch._impl import isDispatchTracing, rewrapModelIfNecessary, unwrapModelIfNecessary


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.seen = []

    def forward(self, x):
        assert poptorch.poptorch_core.isCompilingWithDispatcher() == isDispatchTracing()
        self.seen.append(isDispatchTracing())
        return poptorch.identity_loss(self.layer(x), reduction="mean")


def test_a_model_is_unwrapped_and_wrapped_again():
    net = Net()
    training = poptorch.trainingModel(net)
    training(torch.ones(4, 2))
    unwrapModelIfNecessary(net)
    assert type(net) is Net
    assert {type(p) for p in net.parameters()} == {nn.Parameter}
    trained = net.layer.weight.clone()
    poptorch.inferenceModel(net)(torch.ones(1, 2))
    rewrapModelIfNecessary(net)
    training(torch.ones(4, 2))
    # The gradient of the mean of wx is 1 for x = 1, and the default rate is 0.01.
    torch.testing.assert_close(net.layer.weight, trained - 0.01)
    assert set(net.seen) == {True}
    assert not isDispatchTracing()


def test_what_is_not_wrapped_does_not_change():
    net = Net()
    unwrapModelIfNecessary(net)
    rewrapModelIfNecessary(net)
    assert type(net.layer.weight) is nn.Parameter


def test_modules_are_attributes():
    assert poptorch._poplar_executor.PoplarExecutor is poptorch.PoplarExecutor
    assert poptorch.poptorch_core.Error is poptorch.Error
    parts = [[torch.zeros(1), torch.ones(2, 3)], [torch.ones(2), torch.ones(1, 3)]]
    joined = list(poptorch._utils.combine_batch_tensors_gen(parts))
    assert [tuple(tensor.shape) for tensor in joined] == [(3,), (3, 3)]


def test_options_and_loaders():
    options = poptorch.Options().replicationFactor(2)
    assert options._popart is options._Popart
    assert isinstance(options._execution_strategy, poptorch.PipelinedExecution)
    data = torch.utils.data.TensorDataset(torch.zeros(8, 1))
    options.checkIsFrozen()
    loader = poptorch.DataLoader(options, data, batch_size=2)
    assert loader._combined_batch_size == 4
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        options.checkIsFrozen("deviceIterations")
    assert poptorch.Block("b1")._user_id == "b1"


def test_an_ipu_is_there_where_the_user_says_so(monkeypatch):
    assert not poptorch.ipuHardwareIsAvailable()
    with pytest.raises(NotImplementedError, match="--ipu-version 2"):
        poptorch.ipuHardwareVersion()
    monkeypatch.setenv("POPDIST_IPU_VERSION", "2")
    assert poptorch.ipuHardwareIsAvailable(4)
    assert poptorch.ipuHardwareVersion() == 2


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "LAMB"])
def test_none_is_the_default_of_each_argument(name):
    kind = getattr(poptorch.optim, name)
    parameter = [nn.Parameter(torch.zeros(2))]
    plain = kind(parameter, lr=0.1)
    names = {*plain.defaults, *plain.acting, *plain.only_stored}
    taken = {"lr": 0.1}
    for argument in names - {"lr"}:
        try:
            kind(parameter, lr=0.1, **{argument: None})
        except TypeError:
            continue  # torch keeps it beside its arguments
        taken[argument] = None
    assert len(taken) > 4
    given = kind(parameter, **taken)
    assert given.defaults == plain.defaults
    assert given.loss_scaling == 1
    assert given.variable_attrs.isConstant("weight_decay")


def test_names_of_members_are_accepted():
    options = poptorch.Options().outputMode("All")
    assert options.output_mode == poptorch.OutputMode.All
    with pytest.raises(ValueError, match="OutputMode"):
        options.outputMode("every")
    options.Training.accumulationAndReplicationReductionType("Sum")
    kind = options.Training.accumulation_and_replication_reduction_type
    assert kind == poptorch.ReductionType.Sum


def test_a_loader_does_what_the_name_of_a_member_says():
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    options = poptorch.Options().deviceIterations(2)
    options.Distributed.configureProcessId(1, 2)
    taken = {}
    for name in ("Contiguous", "Interleaved"):
        loader = poptorch.DataLoader(options, data, batch_size=1, mode="Sync", partition=name)
        assert loader._accessor is None  # no process of its own reads ahead
        taken[name] = [batch[0].tolist() for batch in loader]
    assert taken["Contiguous"] == [[4, 5], [6, 7]]
    assert taken["Interleaved"] != taken["Contiguous"]
