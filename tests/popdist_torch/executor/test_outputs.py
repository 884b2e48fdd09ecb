from collections import namedtuple

import pytest
import torch

from popdist_torch.executor.batching import Batching
from popdist_torch.executor.outputs import Outputs
from popdist_torch.options import OutputMode

D, A, R = 4, 3, 2
BATCHING = Batching(iterations=D, accumulation=A, replicas=R)


def run(mode, make, *, period=1, batching=BATCHING):
    outputs = Outputs(mode, period, batching, frozenset())
    for d in range(batching.iterations):
        for a in range(batching.accumulation):
            for r in range(batching.replicas):
                outputs.add(make(d, a, r), d, a, r)
    return outputs.joined()


def number(d, a, r):
    return torch.tensor(100.0 * d + 10 * a + r)


def rows(d, a, r):
    return number(d, a, r).expand(5, 7)


@pytest.mark.parametrize(
    ("mode", "period", "expected"),
    [
        (OutputMode.Final, 1, [320.0, 321.0]),
        (
            OutputMode.All,
            1,
            [100.0 * d + 10 * a + r for d in range(D) for a in range(A) for r in range(R)],
        ),
        (
            OutputMode.EveryN,
            2,
            [100.0 * d + 10 * a + r for d in (1, 3) for a in range(A) for r in range(R)],
        ),
        (OutputMode.EveryN, 3, [200.0 + 10 * a + r for a in range(A) for r in range(R)]),
        (OutputMode.Sum, 1, [1920.0, 1932.0]),
    ],
)
def test_modes(mode, period, expected):
    assert run(mode, number, period=period).tolist() == expected
    joined = run(mode, rows, period=period)
    assert joined.shape == (5 * len(expected), 7)
    assert joined[::5, 0].tolist() == expected


@pytest.mark.parametrize("mode", [OutputMode.Final, OutputMode.Sum])
def test_one_replica_keeps_a_scalar_a_scalar(mode):
    one = Batching(iterations=2, accumulation=1, replicas=1)
    assert run(mode, number, batching=one).shape == ()


def test_the_nesting_of_the_model_is_kept():
    Pair = namedtuple("Pair", "loss extra")  # noqa: PYI024 - as programs write them
    joined = run(
        OutputMode.Final, lambda *i: {"a": [number(*i), "text"], "b": Pair(rows(*i), None)}
    )
    assert joined["a"][0].shape == (R,)
    assert joined["a"][1] == "text"
    assert isinstance(joined["b"], Pair)
    assert joined["b"].extra is None


def test_a_second_backward_pass_is_an_error():
    with pytest.raises(RuntimeError, match="does not require grad"):
        run(OutputMode.Final, number).backward()


@pytest.mark.parametrize("mode", [OutputMode.Final, OutputMode.All, OutputMode.Sum])
def test_what_a_model_returned_loads_from_a_checkpoint(tmp_path, mode):
    loss = run(mode, number)
    torch.save({"epoch": 3, "loss": loss}, tmp_path / "checkpoint.pt")
    loaded = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert loaded["loss"].tolist() == loss.tolist()


def test_outputs_do_not_follow_tensors_that_later_steps_change():
    weight = torch.zeros(3)
    outputs = Outputs(OutputMode.All, 1, BATCHING, frozenset({weight.untyped_storage().data_ptr()}))
    for d in range(2):
        outputs.add(weight[1:], d, 0, 0)
        weight += 1
    assert outputs.joined().tolist() == [0, 0, 1, 1]
