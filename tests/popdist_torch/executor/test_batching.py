import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import popdist_torch as poptorch
from popdist_torch.executor.batching import Batching
from popdist_torch.executor.inputs import collect

counts = st.integers(1, 4)


@given(counts, counts, counts, counts)
def test_rows_are_dealt_with_the_replica_changing_fastest(d, a, r, mb):
    """Against the published layout: the rows seen as an array [D, A, R, mb]."""
    batching = Batching(iterations=d, accumulation=a, replicas=r)
    rows = torch.arange(d * a * r * mb)
    expected = rows.view(d, a, r, mb)
    arguments = collect((rows,), {}, batching, torch.device("cpu"))
    for i in range(d):
        for j in range(a):
            for k in range(r):
                (seen,), _ = arguments.micro_batch(batching.part(i, j, k), batching)
                assert torch.equal(seen, expected[i, j, k])


def test_the_worked_case_of_the_documentation():
    batching = Batching(iterations=2, accumulation=3, replicas=2)
    arguments = collect((torch.arange(24),), {}, batching, torch.device("cpu"))
    seen = []
    for d in range(2):
        for a in range(3):
            (rows,), _ = arguments.micro_batch(batching.part(d, a, 0), batching)
            seen += rows.tolist()
    assert seen[:7] == [0, 1, 4, 5, 8, 9, 12]


def test_arguments_have_micro_batches_of_their_own():
    batching = Batching(iterations=1, accumulation=2, replicas=1)
    arguments = collect(
        (torch.arange(4),), {"y": torch.arange(2), "n": 5, "none": None}, batching, "cpu"
    )
    (x,), named = arguments.micro_batch(1, batching)
    assert (x.tolist(), named["y"].tolist()) == ([2, 3], [1])
    assert (named["n"], named["none"]) == (5, None)


@pytest.mark.parametrize("shape", [(5,), (3, 6), ()])
def test_rows_that_do_not_divide_are_an_error_with_the_numbers(shape):
    batching = Batching(iterations=2, accumulation=1, replicas=1)
    with pytest.raises(AssertionError, match="Invalid batch dimension") as caught:
        collect((torch.zeros(shape),), {}, batching, torch.device("cpu"))
    assert "a multiple of 2 = 2 device iterations x 1 accumulation steps" in str(caught.value)


def test_a_scalar_counts_as_one_row():
    batching = Batching(iterations=1, accumulation=1, replicas=1)
    arguments = collect((torch.tensor(3.0),), {}, batching, torch.device("cpu"))
    (x,), _ = arguments.micro_batch(0, batching)
    assert x.dim() == 0


def test_the_counts_come_from_the_options():
    options = poptorch.Options().deviceIterations(2).replicationFactor(4)
    options.Training.gradientAccumulation(3)
    assert Batching.of(options) == Batching(iterations=2, accumulation=3, replicas=4)
    assert Batching.of(options).parts == 24


@pytest.mark.parametrize(
    ("kind", "rows"), [("Consecutive", [0, 0, 1, 1]), ("Orthogonal", [0, 1, 0, 1])]
)
def test_replicas_of_a_group_read_the_same_rows(kind, rows):
    options = poptorch.Options().replicationFactor(4)
    options.inputReplicaGrouping(2, poptorch.CommGroupType[kind])
    batching = Batching.of(options)
    assert batching.parts == 2
    assert [batching.part(0, 0, replica) for replica in range(4)] == rows
    loader = poptorch.DataLoader(options.clone(), torch.arange(40), batch_size=3)
    assert loader.combinedBatchSize == 6

    class Double(torch.nn.Module):
        def forward(self, x):
            return 2 * x

    doubled = poptorch.inferenceModel(Double(), options)(torch.arange(2))
    assert doubled.tolist() == [2 * row for row in rows]
    with pytest.raises(AssertionError, match="divides the replicas"):
        Batching.of(poptorch.Options().inputReplicaGrouping(2))


def test_grouped_replicas_train_on_the_mean_of_their_groups():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x):
            return torch.nn.functional.mse_loss(self.layer(x), x[:, :1])

    torch.manual_seed(0)
    grouped, plain, x = Net().double(), Net().double(), torch.randn(12, 2).double()
    plain.load_state_dict(grouped.state_dict())
    for model, grouping in ((grouped, 2), (plain, 1)):
        options = poptorch.Options().replicationFactor(2 * grouping).deviceIterations(3)
        options.inputReplicaGrouping(grouping).Training.gradientAccumulation(2)
        poptorch.trainingModel(model, options)(x)
    assert torch.allclose(grouped.layer.weight, plain.layer.weight, rtol=0, atol=1e-15)
