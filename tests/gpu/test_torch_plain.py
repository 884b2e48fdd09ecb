"""Plain loops with the model on a GPU that two ranks share: the weights are those of one process.

The reference is plain torch in double precision on the CPU.
"""

from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import popdist_torch.horovod as hvd
from popdist.errors import PopdistError
from tests.distributed import test_torch_plain as plain
from tests.distributed.jobs import run_job
from tests.popdist_torch.reference import flat

RANKS, STEPS, ROWS = plain.RANKS, 4, 6
# Sums of a GPU are added up in another order than those of a CPU.
DOUBLE, SINGLE = 1e-13, 1e-6
TOLERANCES = {"single": SINGLE, "fp16 on the wire": 1e-3}


class Model(nn.Module):
    """A small classifier, one of whose layers may be computed again in the backward pass."""

    def __init__(self, reentrant=None, sparse=False):
        super().__init__()
        self.words = nn.Embedding(11, 6, sparse=sparse)
        self.first, self.middle, self.last = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.reentrant = reentrant

    def forward(self, x, y):
        hidden = torch.tanh(self.first(self.words(x)))
        if self.reentrant is None:
            hidden = torch.tanh(self.middle(hidden))
        else:
            hidden = checkpoint(self.again, hidden, use_reentrant=self.reentrant)
        return nn.functional.cross_entropy(self.last(hidden), y)

    def again(self, hidden):
        return torch.tanh(self.middle(hidden))


WAYS = {  # named unlike the cases of plain loops
    "recomputed": {"reentrant": False},
    "recomputed by nested passes": {"reentrant": True},
    "sparse": {"sparse": True},
    "fused": {"fused": True},
    "compiled": {"compiled": True},
    "side stream": {"stream": True},
    "autocast to bfloat16": {"cast": torch.bfloat16},
    "autocast to float16": {"cast": torch.float16},
}


def rows():
    shape = (STEPS, RANKS, ROWS)
    generator = torch.Generator().manual_seed(5)
    return tuple(torch.randint(0, high, shape, generator=generator) for high in (11, 4))


def build(way, seed=1):
    torch.manual_seed(seed)
    model = Model(way.get("reentrant"), sparse=way.get("sparse", False))
    return model.to(torch.float32 if "cast" in way else torch.float64)


def adamw(model, **settings):
    return torch.optim.AdamW(model.parameters(), lr=0.01, **settings)


def optimizer_of(model, way):
    """Where gradients are coarse, one that does not divide them by their size."""
    if "cast" in way:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return adamw(model, **({"fused": True} if way.get("fused") else {}))


def train_way(way, device):
    model = build(way, seed=1 + hvd.rank()).to(device)
    hvd.broadcast_parameters(model)
    optimizer = hvd.DistributedOptimizer(
        optimizer_of(model, way),
        model.named_parameters(),
        sparse_as_dense=way.get("sparse", False),
    )
    scaler = torch.amp.GradScaler(device.type, enabled=way.get("cast") == torch.float16)
    run = torch.compile(model) if way.get("compiled") else model
    stream = torch.cuda.Stream() if way.get("stream") else None
    x, y = (part.to(device) for part in rows())
    norms = []
    if stream is not None:
        stream.wait_stream(torch.cuda.default_stream())
    with torch.cuda.stream(stream) if stream is not None else nullcontext():
        for step in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast(device.type, way.get("cast"), enabled="cast" in way):
                loss = run(x[step, hvd.rank()], y[step, hvd.rank()])
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
            scaler.step(optimizer)
            scaler.update()
    if stream is not None:
        stream.synchronize()
    return flat(model.cpu()), norms


def expected_way(way):
    model = build(way)
    double = model.double()
    optimizer = optimizer_of(double, way)
    for x, y in zip(*rows(), strict=True):
        optimizer.zero_grad()
        for rank in range(RANKS):
            (double(x[rank], y[rank]) / RANKS).backward()
        for parameter in double.parameters():
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        nn.utils.clip_grad_norm_(double.parameters(), 0.5)
        optimizer.step()
    return flat(double)


def train_all():
    """Runs on every rank."""
    hvd.init()
    device = hvd.pin_device()
    answer = {"device": str(device)}
    build_on_host, data_on_host = plain.build, plain.data

    def build_there(case, seed=1):
        model, _ = build_on_host(case, seed)
        kind = case.get("optimizer", torch.optim.SGD)
        extra = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        model.to(device)
        return model, kind(model.parameters(), lr=0.1, weight_decay=0.01, **extra)

    plain.build = build_there
    plain.data = lambda case: tuple(part.to(device) for part in data_on_host(case))
    for name, case in plain.CASES.items():
        model, steps = plain.train(case)
        answer[f"{name}/weights"], answer[f"{name}/steps"] = flat(model.cpu()), steps
    for name, way in WAYS.items():
        with told(answer, name):
            answer[f"{name}/weights"], answer[f"{name}/norms"] = train_way(way, device)
    return answer | calls(device)


@contextmanager
def told(answer, name):
    """Keeps an error for the test of this case, so that the others have theirs."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is
        answer[f"{name}/error"] = f"{type(error).__name__}: {error}"


def calls(device):
    """Horovod's own functions, and mistakes, with tensors of the GPU."""
    seen = {}

    def attempt(name, function):
        try:
            seen[name] = function()
        except (PopdistError, RuntimeError, ValueError) as error:
            seen[name] = f"{type(error).__name__}: {error}"

    def part():
        return torch.full((3,), float(hvd.rank() + 1), device=device)

    def parted():
        """One rank changes a weight on its own."""
        torch.manual_seed(1)
        model = nn.Linear(3, 2).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        for step in range(3):
            optimizer.zero_grad()
            model(part()).sum().backward()
            optimizer.step()
            if step == 1 and hvd.rank() == 1:
                with torch.no_grad():
                    model.weight += 1

    def state():
        model = nn.Linear(3, 2).to(device)
        optimizer = adamw(model)
        for _ in range(1 + hvd.rank()):
            optimizer.zero_grad()
            model(part()).sum().backward()
            optimizer.step()
        hvd.broadcast_optimizer_state(optimizer)
        held = optimizer.state[model.weight]
        return [float(held["step"]), str(held["exp_avg"].device.type), *digest(held["exp_avg"])]

    attempt("parted", parted)
    attempt("state", state)
    attempt("metrics", lambda: hvd.average_metrics({"loss": part().mean()}))
    hvd.broadcast_parameters({"x": (x := part())}, root_rank=1)
    seen["broadcast"] = [x.tolist(), x.device.type]
    return seen


def digest(tensor):
    return tensor.double().flatten().tolist()


@pytest.fixture(scope="module")
def answers():
    return run_job(train_all, instances=RANKS, timeout=240)


@pytest.mark.parametrize("name", plain.CASES)
def test_weights_are_those_of_one_process(answers, name):
    for answer in answers:
        np.testing.assert_array_equal(answer[f"{name}/weights"], answers[0][f"{name}/weights"])
        assert answer[f"{name}/steps"] == plain.STEPS
    tolerance = TOLERANCES.get(name, max(plain.CASES[name].get("tolerance", 0), DOUBLE))
    np.testing.assert_allclose(
        answers[0][f"{name}/weights"], plain.expected(plain.CASES[name]), rtol=0, atol=tolerance
    )


@pytest.mark.parametrize("name", WAYS)
def test_ways_of_a_gpu_train_as_one_process(answers, name):
    for answer in answers:
        assert answer.get(f"{name}/error") is None
        np.testing.assert_array_equal(answer[f"{name}/weights"], answers[0][f"{name}/weights"])
        assert answer[f"{name}/norms"] == answers[0][f"{name}/norms"]
    tolerance = 5e-3 if "cast" in WAYS[name] else DOUBLE
    np.testing.assert_allclose(
        answers[0][f"{name}/weights"], expected_way(WAYS[name]), rtol=0, atol=tolerance
    )


def test_calls_and_mistakes(answers):
    for answer in answers:
        assert answer["device"].startswith("cuda")
        assert "values of weight" in answer["parted"]
        assert answer["broadcast"] == [[2.0, 2.0, 2.0], "cuda"]
        assert answer["metrics"] == {"loss": 1.5}
        assert answer["state"] == answers[0]["state"]
        assert answer["state"][:2] == [1.0, "cuda"]
