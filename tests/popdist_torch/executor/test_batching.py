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
