"""Compiled models train as one process on the global batch does, and exchange early."""

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters

import popdist
import popdist.poptorch
import popdist_torch as poptorch
from tests.distributed.jobs import run_job

WIDTH = 1100  # a layer's weights are larger than the smallest piece of a compiled backward pass
CALLS, ITERATIONS, ACCUMULATION, REPLICAS, MICRO_BATCH = 3, 2, 2, 4, 3
KINDS = ["whole", "part", "in place", "option"]
# In double precision; compiled here by a backend that keeps the order of operations.
EXACT = 1e-14


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 4)
        self.seen = nn.Buffer(torch.zeros(8))

    def forward(self, x, y):
        hidden = torch.tanh(self.first(x))
        self.seen += hidden.detach().sum(0)
        return hidden, nn.functional.cross_entropy(self.last(hidden), y)


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))

    def forward(self, x, y):
        return nn.functional.mse_loss(self.layers(x), y)


def batches(call):
    """The global batch of one call: rows by iteration, accumulation and replica."""
    generator = torch.Generator().manual_seed(call)
    shape = (ITERATIONS, ACCUMULATION, REPLICAS, MICRO_BATCH)
    x = torch.randn(*shape, 5, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 4, shape, generator=generator)


def train(kind):
    torch.manual_seed(3)
    model = Net().double()
    options = popdist.poptorch.Options().randomSeed(1).deviceIterations(ITERATIONS)
    options.Training.gradientAccumulation(ACCUMULATION)
    options.broadcastBuffers(broadcast_buffers=False)
    wrapped = model
    if kind == "whole":
        wrapped = torch.compile(model, backend="aot_eager")
    elif kind == "part":
        model.first = torch.compile(model.first, backend="aot_eager")
    elif kind == "in place":
        model.compile(backend="aot_eager")
    else:
        options.Jit.torchCompile(backend="aot_eager")
    torch._dynamo.reset()
    counters.clear()
    training = poptorch.trainingModel(wrapped, options, torch.optim.SGD(model.parameters(), lr=0.5))
    mine = slice(2 * popdist.getInstanceIndex(), 2 * popdist.getInstanceIndex() + 2)
    for call in range(CALLS):
        x, y = (part[:, :, mine].flatten(0, 3) for part in batches(call))
        training(x, y)
    graphs = counters["stats"]["unique_graphs"]
    forward = popdist.poptorch.Options().deviceIterations(3)
    forward.broadcastBuffers(broadcast_buffers=False)
    inference = poptorch.inferenceModel(wrapped, forward)
    x, y = (part[:, 0].reshape(24, *part.shape[4:])[:6] for part in batches(9))
    output = [inference(x, y)[0] for _ in range(2)][1]
    training.destroy()
    weights = {n.replace("_orig_mod.", ""): p.tolist() for n, p in model.named_parameters()}
    return {
        "weights": weights,
        "seen": model.seen.tolist(),
        "graphs": graphs,
        "output": output.tolist(),
    }


def overlap():
    """The order of what leaves and of the pieces of a compiled backward pass."""
    import horovod.torch

    events = []
    send = horovod.torch.grouped_allreduce_async_

    def sending(tensor, **kwargs):
        events.append("sent")
        return send(tensor, **kwargs)

    def backward(graph, _inputs):
        def run(*args):
            events.append("piece")
            return graph(*args)

        return run

    horovod.torch.grouped_allreduce_async_ = sending
    model = Deep()
    model.compile(backend=aot_autograd(fw_compiler=lambda graph, _: graph, bw_compiler=backward))
    training = poptorch.trainingModel(model, popdist.poptorch.Options().randomSeed(1))
    data = torch.ones(4, WIDTH)
    for _ in range(3):
        events.clear()
        training(data, data)
    return events


def job():
    popdist.init()
    return {kind: train(kind) for kind in KINDS} | {"events": overlap()}


@pytest.fixture(scope="module")
def answers():
    return run_job(job, instances=2, replicas=REPLICAS)


@pytest.fixture(scope="module")
def reference():
    """Plain torch: one process, one backward pass per global batch, no popdist and no compiler."""
    torch.manual_seed(3)
    model = Net().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for call in range(CALLS):
        for x, y in zip(*batches(call), strict=True):
            optimizer.zero_grad()
            model(x.flatten(0, 2), y.flatten())[1].backward()
            optimizer.step()
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_model_trains_as_one_process_does(answers, reference, kind):
    first, second = (answer[kind] for answer in answers)
    assert first["weights"] == second["weights"]
    assert first["graphs"] == second["graphs"] == 1
    for name, expected in reference.named_parameters():
        seen = torch.tensor(first["weights"][name], dtype=torch.float64)
        torch.testing.assert_close(seen, expected.detach(), rtol=0, atol=EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_each_replica_keeps_its_buffers_and_inference_runs_the_weights(answers, reference, kind):
    # Each instance brings back its first replica's buffer: sums over different rows.
    assert answers[0][kind]["seen"] != answers[1][kind]["seen"]
    x, y = (part[:, 0].reshape(24, *part.shape[4:])[:6] for part in batches(9))
    expected = reference(x, y)[0].detach()
    for answer in answers:
        seen = torch.tensor(answer[kind]["output"], dtype=torch.float64)
        torch.testing.assert_close(seen, expected[: len(seen)], rtol=0, atol=EXACT)


def test_gradients_leave_between_the_pieces_of_a_compiled_backward_pass(answers):
    for answer in answers:
        events = answer["events"]
        assert events.count("piece") >= 2
        last = len(events) - 1 - events[::-1].index("piece")
        assert events[:last].count("sent") >= 2
