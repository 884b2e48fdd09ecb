"""Indices and classes of 32 bits, which torch takes in 64 bits only, against torch with 64 bits."""

import copy

import pytest
import torch
from torch import nn

import popdist_torch as poptorch

ROWS = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
INDEX = torch.tensor([0, 2, 1, 2, 0, 3])

OPERATIONS = {
    "scatter_add": lambda x, i: x.new_zeros(4, 4).scatter_add_(0, i[:, None].expand_as(x), x),
    "torch.scatter_add": lambda x, i: torch.scatter_add(x * 0, 0, i[:, None].expand_as(x), x),
    "scatter_reduce": lambda x, i: (x * 0).scatter_reduce(0, i[:, None].expand_as(x), x, "sum"),
    "scatter": lambda x, i: torch.scatter(x, 0, index=i[:4, None], src=-x[:4, :1]),
    "gather": lambda x, i: x.gather(1, i[:, None]),
    "take": lambda x, i: x.take(i),
    "take_along_dim": lambda x, i: torch.take_along_dim(x, indices=i[:, None], dim=1),
    "index_copy": lambda x, i: x.index_copy(0, i[:2], x[:2] * 2),
    "index_fill": lambda x, i: x.index_fill(0, i, 2.0),
    "one_hot": lambda x, i: x * nn.functional.one_hot(i, 4),
    "cross_entropy": nn.functional.cross_entropy,
    "nll_loss": lambda x, i: nn.functional.nll_loss(x.log_softmax(1), target=i),
    "multi_margin_loss": nn.functional.multi_margin_loss,
}


class Model(nn.Module):
    def __init__(self, operation):
        super().__init__()
        self.operation = operation
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x, index):
        result = self.operation(x * self.scale, index)
        return result, poptorch.identity_loss(result.square().sum(), "none")


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_take_indices_of_32_bits(name):
    model = Model(OPERATIONS[name])
    plain = copy.deepcopy(model)
    expected, loss = plain(ROWS, INDEX)
    seen, _ = poptorch.inferenceModel(copy.deepcopy(model))(ROWS, INDEX.int())
    torch.testing.assert_close(seen, expected.detach())
    loss.backward()
    torch.optim.SGD(plain.parameters(), lr=0.01).step()
    training = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
    training(ROWS, INDEX.int())
    torch.testing.assert_close(model.scale, plain.scale)


def test_whole_numbers_that_are_no_indices_keep_their_type():
    class Counts(nn.Module):
        def forward(self, counts, index):
            return counts.scatter_add(0, index, counts)

    counts = torch.tensor([1, 2, 3], dtype=torch.int32)
    seen = poptorch.inferenceModel(Counts())(counts, torch.tensor([0, 0, 1], dtype=torch.int32))
    assert seen.dtype == torch.int32
    assert seen.tolist() == [4, 5, 3]
