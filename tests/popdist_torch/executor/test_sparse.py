"""Models that hold or make sparse tensors, such as the edges of a graph, against plain torch."""

import pytest
import torch
from torch import nn

import popdist_torch as poptorch
from popdist_torch.agreement import buffer_facts

EDGES = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])


def adjacency(layout):
    values = torch.tensor([1.0, 2.0, 3.0, 0.5], dtype=torch.float64)
    made = torch.sparse_coo_tensor(EDGES, values, (3, 3), check_invariants=True)
    return made.to_sparse_csr() if layout == "csr" else made


class Network(nn.Module):
    def __init__(self, layout, *, held=True, inplace=False, between=nn.Identity):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(3, 4).double(), nn.Linear(4, 2).double()
        self.between = nn.Sequential(between(), nn.Hardtanh(0.2, 0.8, inplace=inplace))
        self.register_buffer("edges", adjacency(layout) if held else None)
        self.layout = layout

    def forward(self, x, y):
        edges = adjacency(self.layout) if self.edges is None else self.edges
        hidden = self.between(self.first(torch.mm(edges, x)))
        scores = self.last(torch.mm(edges, hidden))
        return scores, nn.functional.cross_entropy(scores, y)


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"held": False},
        {"inplace": True},
        {"inplace": True, "between": nn.Sigmoid},
        {"inplace": True, "between": nn.Sigmoid, "held": False},
    ],
    ids=str,
)
def test_they_train_as_in_torch(layout, settings):
    reference = Network(layout, **{**settings, "inplace": False})
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.3)
    trained = Network(layout, **settings)
    training = poptorch.trainingModel(
        trained, optimizer=poptorch.optim.SGD(trained.parameters(), lr=0.3)
    )
    for _ in range(3):
        x, y = torch.randn(3, 3, dtype=torch.float64), torch.randint(0, 2, (3,))
        scores, loss = training(x, y)
        optimizer.zero_grad()
        expected = reference(x, y)
        expected[1].backward()
        optimizer.step()
        torch.testing.assert_close((scores, loss), tuple(part.detach() for part in expected))
    training.copyWeightsToHost()
    for ours, theirs in zip(trained.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_statements_of_them_hold_their_indices_and_their_values(layout):
    first, same = (buffer_facts([("edges", adjacency(layout))]) for _ in range(2))
    moved = adjacency("coo").t()
    moved = moved.to_sparse_csr() if layout == "csr" else moved
    grown = adjacency(layout) * 2
    assert first == same
    assert len({str(first), *(str(buffer_facts([("edges", one)])) for one in (moved, grown))}) == 3


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_checkpoint_holds_them(tmp_path, layout, sharded):
    x, y = torch.ones(3, 3, dtype=torch.float64), torch.tensor([0, 1, 1])

    def training_of(factor):
        model = Network(layout)
        model.edges = model.edges * factor
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        return poptorch.trainingModel(model, optimizer=optimizer)

    first, second = training_of(1), training_of(2)
    first(x, y)
    poptorch.Checkpoint(tmp_path / "run", sharded=sharded, model=first).save()
    poptorch.Checkpoint(tmp_path / "run", model=second).load()
    torch.testing.assert_close(second(x, y), first(x, y), rtol=0, atol=0)
