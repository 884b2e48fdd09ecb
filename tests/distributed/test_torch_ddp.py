"""DistributedDataParallel over popdist's exchange: two real ranks against one process and gloo."""

import sys
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import popdist_torch
from popdist.errors import PopdistError
from tests.distributed.jobs import LAUNCHER, run_command, run_job
from tests.popdist_torch.reference import flat

EXACT = 1e-14
RANKS, ROWS, STEPS = 2, 4, 10


class Net(nn.Module):
    """Layers of very different sizes; one is larger than a slice of the exchange."""

    def __init__(self, kind="plain"):
        super().__init__()
        torch.manual_seed(1)
        self.words = nn.Embedding(30, 5, sparse=kind == "sparse")
        self.first, self.wide = nn.Linear(5, 800), nn.Linear(800, 800)
        self.left, self.right = nn.Linear(800, 3), nn.Linear(800, 3)
        self.frozen = nn.Linear(800, 800).requires_grad_(requires_grad=False)
        self.branches = kind == "branches"

    def forward(self, x):
        hidden = torch.tanh(self.first(self.words(x).mean(1)))
        hidden = torch.tanh(self.frozen(self.wide(hidden)))
        if self.branches:  # one on each rank: words of a row are as odd as the rank
            return self.right(hidden) if x[0, 0] % RANKS else self.left(hidden)
        return self.left(hidden) - self.right(hidden)


CASES = {
    "plain": {},
    "small buckets": {"bucket_cap_mb": 0.01},
    "views": {"gradient_as_bucket_view": True, "bucket_cap_mb": 1},
    "static": {"static_graph": True},
    "branches": {"find_unused_parameters": True},
    "accumulated": {},
    "sparse": {},
    "compiled": {},
}


def rows(step, rank):
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randint(0, 15, (RANKS, ROWS, 4), generator=generator) * RANKS
    y = torch.randint(0, 3, (RANKS, ROWS), generator=generator)
    return x[rank] + rank, y[rank]


def train(model, of_step, make_optimizer=None):
    """Trains on the batches of each step: the gradients are their mean."""
    make_optimizer = make_optimizer or partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    optimizer = make_optimizer(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        batches = of_step(step)
        for index, (x, y) in enumerate(batches):
            waits = index < len(batches) - 1 and hasattr(model, "no_sync")
            with model.no_sync() if waits else nullcontext():
                (nn.functional.cross_entropy(model(x), y) / len(batches)).backward()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and parameter.grad is None:  # a branch that is not used
                    parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    return flat(model)


def halves(x, y):
    return [(x[: ROWS // 2], y[: ROWS // 2]), (x[ROWS // 2 :], y[ROWS // 2 :])]


def connected():
    torch.distributed.init_process_group("gloo")
    return torch.distributed.get_rank()


def hooked(model, hook=popdist_torch.ddp_hook, **settings):
    wrapped = DistributedDataParallel(model, **settings)
    wrapped.register_comm_hook(None, hook)
    return wrapped


def everything():
    """What one job answers; the programs of the last part leave a group with an error."""
    rank = connected()
    return {**all_cases(rank), **with_other_types(rank), **special_programs(rank)}


@pytest.fixture(scope="module")
def answers():
    return run_job(everything, timeout=240)  # gloo may hang in a process that was forked


def all_cases(rank):
    answers = {}
    for name, settings in CASES.items():
        model = hooked(Net(name).double(), **settings)
        model = torch.compile(model, backend="eager") if name == "compiled" else model
        divide = halves if name == "accumulated" else lambda *batch: [batch]
        answers[name] = train(model, lambda step, divide=divide: divide(*rows(step, rank)))
    return answers


def require_one_process(answers, name, atol=EXACT):
    """Both ranks have the weights of one process that trains on the rows of both."""
    first, second = (answer[name] for answer in answers)
    np.testing.assert_array_equal(first, second)
    alone = Net("branches" if name == "branches" else "plain").double()
    expected = train(alone, lambda step: [rows(step, rank) for rank in range(RANKS)])
    np.testing.assert_allclose(first, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_one_process(answers, name):
    require_one_process(answers, name)


def with_other_types(rank):
    """What gradients of other types come to, with popdist's exchange and with torch's own."""
    answers = {}
    small_steps = partial(torch.optim.Adam, lr=0.01)
    compress, wrap = default_hooks.fp16_compress_hook, default_hooks.fp16_compress_wrapper
    for name, dtype, ours, theirs in (
        ("float32", torch.float32, popdist_torch.ddp_hook, default_hooks.allreduce_hook),
        ("float16 sent", torch.float32, wrap(popdist_torch.ddp_hook), compress),
        ("float16", torch.float16, popdist_torch.ddp_hook, default_hooks.allreduce_hook),
        ("bfloat16", torch.bfloat16, popdist_torch.ddp_hook, default_hooks.allreduce_hook),
    ):
        for label, hook in (("ours", ours), ("theirs", theirs)):
            model = hooked(Net().to(dtype), hook)
            weights = train(model, lambda step: [rows(step, rank)], small_steps)
            answers[f"{name}: {label}"] = weights.astype(np.float64)
    return answers


@pytest.mark.parametrize("name", ["float32", "float16 sent", "float16", "bfloat16"])
def test_other_types_are_exchanged_as_torch_does(answers, name):
    first, second = answers
    np.testing.assert_array_equal(first[f"{name}: ours"], second[f"{name}: ours"])
    # A sum of two numbers is rounded once, whoever adds them.
    np.testing.assert_array_equal(first[f"{name}: ours"], first[f"{name}: theirs"])


def message_of(call):
    try:
        call()
    except PopdistError as error:
        return str(error)
    return "none"


def special_programs(rank):
    answers = {}
    # Two models in one backward pass, as of a network and its critic.
    one, two = hooked(Net().double()), hooked(Net().double(), bucket_cap_mb=1)
    optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        x, y = rows(step, rank)
        nn.functional.cross_entropy(one(x) * two(x), y).backward()
        optimizer.step()
    answers["two models"] = np.concatenate([flat(one), flat(two)])
    # One process has fewer batches.
    for label, hook in (("ours", popdist_torch.ddp_hook), ("theirs", default_hooks.allreduce_hook)):
        model = hooked(Net().double(), hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.join():
            for step in range(3 + 2 * rank):
                optimizer.zero_grad()
                x, y = rows(step, rank)
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        answers[f"joined: {label}"] = flat(model)
    # The weights of one process change between updates.
    model = hooked(Net().double())

    def parted():
        for step in range(STEPS):
            train_once(model, rows(step, rank))
            if step == 2 and rank == 1:
                with torch.no_grad():
                    model.module.left.bias[0] += 1e-3

    answers["parted"] = message_of(parted)
    groups = [torch.distributed.new_group([member]) for member in range(RANKS)]
    model = DistributedDataParallel(Net().double(), process_group=groups[rank])
    model.register_comm_hook(groups[rank], popdist_torch.ddp_hook)
    answers["group of one"] = message_of(lambda: train_once(model, rows(0, rank)))
    model = DistributedDataParallel(Net().double())
    model.register_comm_hook("no group", popdist_torch.ddp_hook)
    answers["no group"] = message_of(lambda: train_once(model, rows(0, rank)))
    return answers


def train_once(model, batch):
    model.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(0.1 * parameter.grad)


def test_two_models_train_in_one_backward_pass(answers):
    one, two = Net().double(), Net().double()
    optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        for x, y in (rows(step, rank) for rank in range(RANKS)):
            (nn.functional.cross_entropy(one(x) * two(x), y) / RANKS).backward()
        optimizer.step()
    expected = np.concatenate([flat(one), flat(two)])
    np.testing.assert_array_equal(answers[0]["two models"], answers[1]["two models"])
    np.testing.assert_allclose(answers[0]["two models"], expected, rtol=0, atol=EXACT)


def test_a_process_with_fewer_batches_may_join(answers):
    for answer in answers:
        np.testing.assert_array_equal(answer["joined: ours"], answers[0]["joined: theirs"])


def test_weights_that_differ_between_processes_are_an_error_on_all_of_them(answers):
    for answer in answers:
        assert answer["parted"].startswith("[PD007]")
        assert "values of" in answer["parted"]


def test_what_cannot_be_exchanged_is_rejected(answers):
    for answer in answers:
        assert "[PD370]" in answer["group of one"]
        assert "1 processes in the group, 2 in the job" in answer["group of one"]
        assert "the state of the hook is not a process group" in answer["no group"]


UNCHANGED = """
import sys
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.distributed.init_process_group("gloo")
torch.manual_seed(3)
data = TensorDataset(torch.randn(16, 5), torch.randn(16, 2))
for sampler in (DistributedSampler(data), None):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, 4, sampler=sampler):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    told = model.module.weight.sum().item(), len(model._comm_hooks), "popdist_torch" in sys.modules
    print("trained", *told, flush=True)
torch.distributed.destroy_process_group()
"""


def test_poprun_gives_an_unchanged_program_the_exchange(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(UNCHANGED)

    def output_of(*options):
        # A warm process would have imported torch before.
        words = [*LAUNCHER, "-np", "2", *options, sys.executable, program]
        code, output = run_command(words, timeout=240)
        assert code == 0, output
        return output, [line for line in output.splitlines() if line.startswith("trained ")]

    said, theirs = output_of()
    assert len(theirs) == 4
    assert all(line.endswith(" 0 False") for line in theirs)
    assert "[PD326]" not in said
    said, ours = output_of("--ddp=popdist")
    assert ours == [line.replace("0 False", "1 True") for line in theirs]
    assert "[PD326]" in said  # of the model whose rows are not divided
