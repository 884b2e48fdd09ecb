"""`replicaGrouping`: the groups, and what cannot be grouped."""

import copy

import pytest
import torch
from torch import nn

import popdist_torch as poptorch
from popdist_torch import CommGroupType, VariableRetrievalMode
from popdist_torch.errors import Error, OptimizerError
from popdist_torch.executor.groups import Grouping

ONE, EACH = VariableRetrievalMode.OnePerGroup, VariableRetrievalMode.AllReplicas


class Scaled(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.scale = nn.Parameter(torch.arange(1.0, rows + 1))

    def forward(self, x):
        return poptorch.identity_loss(self.scale * x, reduction="sum")


def training(rows, optimizer=torch.optim.SGD, **settings):
    model = Scaled(rows)
    options = poptorch.Options().replicationFactor(4)
    made = optimizer(model.parameters(), lr=0.5, **settings)
    return poptorch.trainingModel(model, options, made)


@pytest.mark.parametrize(
    ("kind", "shards", "expected"),
    [
        ("All", 0, [0, 0, 0, 0, 0, 0]),
        ("Consecutive", 2, [0, 0, 1, 1, 2, 2]),
        ("Consecutive", 3, [0, 0, 0, 1, 1, 1]),
        ("Orthogonal", 2, [0, 1, 2, 0, 1, 2]),
        ("Orthogonal", 3, [0, 1, 0, 1, 0, 1]),
        ("NoGrouping", 0, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_groups_of_six_replicas(kind, shards, expected):
    assert list(Grouping.of(CommGroupType[kind], shards, ONE, 6).group_of) == expected


@pytest.mark.parametrize("by_name", [False, True])
def test_a_group_learns_from_its_own_rows(by_name):
    model = training(4)
    if by_name:  # as libraries do
        model.per_replica_params["scale"] = (CommGroupType.NoGrouping, 0, ONE)
    else:
        model.scale.replicaGrouping(CommGroupType.NoGrouping, 0, ONE)
    assert dict(model.per_replica_params) == {"scale": (CommGroupType.NoGrouping, 0, ONE)}
    model(torch.tensor([1.0, 10.0, 100.0, 1000.0]))
    # The gradient of s * x is x; a mean divides it by all four replicas: w - 0.5 x / 4.
    assert model.scale.tolist() == [1 - 0.125, 2 - 1.25, 3 - 12.5, 4 - 125]


def test_values_of_each_replica():
    model = training(2)
    model.scale.replicaGrouping(CommGroupType.Consecutive, 2, EACH)
    assert model.scale.tolist() == [1, 1, 2, 2]
    model(torch.tensor([1.0, 3.0, 5.0, 7.0]))
    assert model.state_dict()["scale"].tolist() == [0.5, 0.5, 0.5, 0.5]  # 1 - 4/8 and 2 - 12/8
    model.load_state_dict({"scale": torch.tensor([4.0, 4.0, 8.0, 8.0])})
    model(torch.zeros(4))
    assert model.scale.tolist() == [4, 4, 8, 8]
    with pytest.raises(Error, match=r"PD317.*one group have different values"):
        model.load_state_dict({"scale": torch.tensor([4.0, 5.0, 8.0, 8.0])})


def test_parameters_are_plain_afterwards():
    model = training(4)
    model.scale.replicaGrouping(CommGroupType.NoGrouping, 0, ONE)
    copied = copy.deepcopy(model.scale)
    assert (type(copied), vars(copied)) == (nn.Parameter, {})
    model(torch.ones(4))
    model.destroy()
    assert type(model.model.scale) is nn.Parameter
    assert not vars(model.model.scale)


@pytest.mark.parametrize(
    ("rows", "arguments", "text"),
    [
        (4, (CommGroupType.Consecutive, 3, ONE), "groups of 3 replicas; the job has 4"),
        (4, (CommGroupType.Orthogonal, 0, ONE), "groups of 0 replicas"),
        (3, (CommGroupType.NoGrouping, 0, ONE), r"shape \[3\].*4 versions"),
        (4, ("NoGrouping", 0, ONE), "CommGroupType, shards, VariableRetrievalMode"),
    ],
)
def test_impossible_groups(rows, arguments, text):
    with pytest.raises(Error, match=f"(?s)PD317.*{text}"):
        training(rows).scale.replicaGrouping(*arguments)


@pytest.mark.parametrize(
    ("name", "grouping"), [("weight", (CommGroupType.NoGrouping, 0, ONE)), ("scale", (0, ONE))]
)
def test_names_and_arguments_of_groups_are_checked(name, grouping):
    with pytest.raises(Error, match="PD317"):
        training(4).per_replica_params[name] = grouping


def test_groups_are_fixed_by_the_first_call():
    model = training(4)
    model.scale.replicaGrouping(CommGroupType.NoGrouping, 0, ONE)
    model(torch.ones(4))
    with pytest.raises(Error, match=r"PD317.*compiled already"):
        model.scale.replicaGrouping(CommGroupType.All, 0, ONE)


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (poptorch.optim.LAMB, {}),
        (torch.optim.Adafactor, {}),
        (poptorch.optim.Adam, {"max_grad_norm": 1.0}),
    ],
    ids=["LAMB", "Adafactor", "clipped Adam"],
)
def test_optimizers_that_mix_versions_are_refused(optimizer, settings):
    model = training(4, optimizer, **settings)
    model.scale.replicaGrouping(CommGroupType.NoGrouping, 0, ONE)
    with pytest.raises(OptimizerError, match="PD318"):
        model(torch.ones(4))


def test_options_of_another_number_of_replicas_are_refused():
    model = training(4)
    model.scale.replicaGrouping(CommGroupType.NoGrouping, 0, ONE)
    model(torch.ones(4))
    alone = poptorch.inferenceModel(model.model, poptorch.Options().replicationFactor(2))
    with pytest.raises(Error, match=r"PD317.*another number of replicas"):
        alone(torch.ones(2))
