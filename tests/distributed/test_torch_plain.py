"""Plain loops on two real ranks with different data: the weights are those of one process."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import popdist_torch.horovod as hvd
from popdist.errors import PopdistError
from tests.distributed.jobs import run_job
from tests.popdist_torch.reference import flat

EXACT = 1e-14
STEPS, ROWS, RANKS = 3, 4, 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.idle = nn.Linear(5, 7), nn.Linear(7, 3), nn.Linear(2, 2)

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.last(torch.tanh(self.first(x))), y)


class Shifted(nn.Module):
    """Autograd gives the shift's gradient the memory that the weight's is still computed from."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Linear(600, 900).weight
        self.shift = nn.Parameter(torch.zeros(600 * 900))

    def forward(self, x):
        return nn.functional.linear(x, self.weight * 1.5 + self.shift.view_as(self.weight))


class OnGpu(torch.Tensor):
    """What Horovod sees of a tensor of a GPU."""

    is_cuda = True


class Large(Net):
    """Gradients of more than a MiB, which travel where they are; some only for some data."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(5, 600), nn.Tanh(), Shifted())
        self.sometimes, self.last = nn.Linear(5, 60000), nn.Linear(900, 3)
        self.idle = nn.Linear(600, 900)

    def forward(self, x, y):
        loss = super().forward(x, y)
        return loss + self.sometimes(x).square().mean() if x[0, 0] > 0 else loss


CASES = {
    "plain": {},
    "adamw": {"optimizer": torch.optim.AdamW},
    "grads kept": {"set_to_none": False},
    "sum": {"op": "Sum"},
    "accumulation": {"passes": 2},
    "predivide": {"predivide": 2.0},
    "clipping": {"clip": 0.05},
    "closure": {"closure": True},
    "scheduler before": {"scheduler": "before"},
    "scheduler after": {"scheduler": "after"},
    "single": {"dtype": torch.float32, "tolerance": 3e-7},
    "bfloat16": {"dtype": torch.bfloat16, "tolerance": 2**-7},
    "large": {"net": Large, "tolerance": 1e-13},
    "large, grads kept": {
        "net": Large,
        "set_to_none": False,
        "predivide": 2.0,
        "passes": 2,
        "tolerance": 1e-13,
    },
    "large, bfloat16": {"net": Large, "dtype": torch.bfloat16, "tolerance": 2**-7},
    "fp16 on the wire": {"dtype": torch.float32, "compression": "fp16", "tolerance": 1e-3},
}


def data(case):
    """x [steps, passes, ranks, rows, 5] and y; every row is another."""
    shape = (STEPS, case.get("passes", 1), RANKS, ROWS)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(*shape, 5, generator=generator, dtype=torch.float64)
    return x.to(case.get("dtype", torch.float64)), torch.randint(0, 3, shape, generator=generator)


def build(case, seed=1):
    torch.manual_seed(seed)
    model = case.get("net", Net)().to(case.get("dtype", torch.float64))
    kind = case.get("optimizer", torch.optim.SGD)
    extra = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    return model, kind(model.parameters(), lr=0.1, weight_decay=0.01, **extra)


def train(case):
    """On every rank: another model at first, its own rows, and the six steps."""
    model, optimizer = build(case, seed=1 + hvd.rank())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    steps_seen = []
    optimizer.register_step_post_hook(lambda *_: steps_seen.append(1))
    scheduler = None
    if case.get("scheduler") == "before":
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    distributed = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        op=getattr(hvd, case.get("op", "Average")),
        backward_passes_per_step=case.get("passes", 1),
        gradient_predivide_factor=case.get("predivide", 1.0),
        compression=getattr(hvd.Compression, case.get("compression", "none")),
    )
    distributed.load_state_dict(distributed.state_dict())
    if case.get("scheduler") == "after":
        scheduler = torch.optim.lr_scheduler.StepLR(distributed, 1, 0.5)
    x, y = data(case)
    for step in range(STEPS):

        def passes(step=step):
            distributed.zero_grad(set_to_none=case.get("set_to_none", True))
            for part in range(case.get("passes", 1)):
                loss = model(x[step, part, hvd.rank()], y[step, part, hvd.rank()])
                loss.backward()
            return loss

        if case.get("closure"):
            distributed.step(passes)
        else:
            passes()
            if "clip" in case:
                distributed.synchronize()
                nn.utils.clip_grad_norm_(model.parameters(), case["clip"])
                with distributed.skip_synchronize():
                    distributed.step()
            else:
                distributed.step()
        if scheduler:
            scheduler.step()
    return model, len(steps_seen)


def train_all():
    hvd.init()
    answer = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, case in CASES.items():
            model, steps = train(case)
            answer[f"{name}/weights"], answer[f"{name}/steps"] = flat(model), steps
    answer["idle"] = model.idle.weight.grad is None
    return answer


def expected(case):
    """One process, every rank's rows in turn."""
    model, optimizer = build(case)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) if "scheduler" in case else None
    x, y = data(case)
    divisor = 1 if case.get("op") == "Sum" else RANKS
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(case.get("passes", 1)):
            for rank in range(RANKS):
                (model(x[step, part, rank], y[step, part, rank]) / divisor).backward()
        if "clip" in case:
            nn.utils.clip_grad_norm_(model.parameters(), case["clip"])
        optimizer.step()
        if scheduler:
            scheduler.step()
    return flat(model)


@pytest.fixture(scope="module")
def answers():
    return run_job(train_all, instances=RANKS)


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_one_process(answers, name):
    for answer in answers:
        np.testing.assert_array_equal(answer[f"{name}/weights"], answers[0][f"{name}/weights"])
        assert answer[f"{name}/steps"] == STEPS  # hooks run once a step
    np.testing.assert_allclose(
        answers[0][f"{name}/weights"],
        expected(CASES[name]),
        rtol=0,
        atol=CASES[name].get("tolerance", EXACT),
    )


def test_parameters_that_no_rank_used_have_no_gradient(answers):
    assert all(answer["idle"] for answer in answers)


def restored_on_one_rank():
    """Metrics of the best model of each rank, where all have changed weights before."""
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    first = {name: value.clone() for name, value in model.state_dict().items()}
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        model.weight.mul_(0.5)
    averaged = hvd.average_metrics({"loss": 1.0 + hvd.rank()})
    assert averaged == {"loss": 1.5}
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    if hvd.rank() == 0:
        model.load_state_dict(first)
    return hvd.average_metrics({"loss": 1.0})


def mistakes():
    hvd.init()
    seen = {}

    def attempt(name, function):
        try:
            seen[name] = function()
        except PopdistError as error:
            seen[name] = str(error)

    def distributed(model, **kwargs):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return hvd.DistributedOptimizer(optimizer, model.named_parameters(), **kwargs)

    def first_step(model):
        optimizer = distributed(model)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    torch.manual_seed(hvd.rank())
    attempt("values", lambda: first_step(nn.Linear(2, 2)))
    attempt("shapes", lambda: first_step(nn.Linear(2, 2 + hvd.rank())))
    attempt("broadcast", lambda: hvd.broadcast_parameters(nn.Linear(2, 2 + hvd.rank())))
    attempt("twice", lambda: hvd.DistributedOptimizer(distributed(nn.Linear(1, 1))))
    attempt("adasum", lambda: distributed(nn.Linear(1, 1), op=hvd.Adasum))
    attempt("gpu", lambda: hvd.allreduce(torch.ones(2).as_subclass(OnGpu)))
    attempt("gpu, grouped", lambda: hvd.grouped_allgather([torch.ones(2).as_subclass(OnGpu)]))
    attempt("batch", lambda: hvd.local_batch_size(7))
    attempt("half", lambda: hvd.local_batch_size(8))
    metrics = {"loss": 1.0 + hvd.rank(), "right": 10.0 * hvd.rank()}
    attempt("metrics", lambda: hvd.average_metrics(metrics, weight=1 + 2 * hvd.rank()))
    attempt("names", lambda: hvd.average_metrics({f"loss {hvd.rank()}": 1.0}))
    attempt("no names", lambda: hvd.average_metrics(0.5))
    attempt("several", lambda: hvd.average_metrics({"loss": torch.ones(2)}))
    attempt("text", lambda: hvd.local_batch_size("8"))
    attempt("model", lambda: hvd.DistributedOptimizer(nn.Linear(1, 1)))
    attempt("nameless", lambda: hvd.broadcast_parameters(nn.Linear(1, 1).parameters()))
    attempt("best", restored_on_one_rank)
    attempt("order", lambda: list(hvd.DistributedSampler(range(10), seed=3)))
    mixed = {
        "flag": torch.tensor([hvd.rank() == 1]),
        "brain": torch.full((3,), float(hvd.rank()), dtype=torch.bfloat16),
        "count": torch.tensor(hvd.rank()),
        "strided": torch.zeros(2, 3).fill_(hvd.rank()).t(),
        "empty": torch.zeros(0),
    }
    hvd.broadcast_parameters(iter(mixed.items()), root_rank=1)
    seen["mixed"] = [float(value.sum()) for value in mixed.values()]
    return seen


def test_mistakes_are_named_on_every_rank():
    # The program catches the errors, and ends with the weights that they are about.
    first, second = run_job(mistakes)
    for answer in (first, second):
        assert "values of weight" in answer["values"]
        assert "broadcast_parameters" in answer["values"]
        assert "[3, 2] on instance 1" in answer["shapes"]
        assert "[3, 2] on instance 1" in answer["broadcast"]
        assert "distributed already" in answer["twice"]
        assert "Average or Sum" in answer["adasum"]
        assert "built for the host" in answer["gpu"]
        assert "--with-nccl" in answer["gpu, grouped"]
        assert "a multiple of 2" in answer["batch"]
        assert answer["half"] == 4
        assert answer["metrics"] == {"loss": 1.75, "right": 7.5}
        assert "loss 0 on instance 0" in answer["names"]
        assert '{"loss": 0.5}' in answer["no names"]
        assert "metrics are numbers by name" in answer["several"]
        assert "is a whole number" in answer["text"]
        assert "this is not an optimizer" in answer["model"]
        assert "named_parameters()" in answer["nameless"]
        assert "[PD007]" in answer["best"]
        assert "values of weight" in answer["best"]
        assert "metrics would be those of several models" in answer["best"]
        assert answer["mixed"] == [1.0, 3.0, 1.0, 6.0, 0.0]
    assert sorted(first["order"] + second["order"]) == list(range(10))
