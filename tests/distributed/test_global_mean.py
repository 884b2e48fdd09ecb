"""`global_mean` on two real ranks: each token counts alike, wherever it is."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

import popdist
from tests.distributed.jobs import run_job

EXACT = 1e-13
LEFT_OUT = -100
RANKS, UPDATES, ROWS, STEPS = 2, 3, 16, 5


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 4)
    ).double()


def batches(part=slice(None)):
    """Sequences of a global batch; the second half of the first batch has no valid token."""
    draw = torch.Generator().manual_seed(7)
    for update in range(UPDATES):
        x = torch.randn(ROWS, STEPS, 3, generator=draw).double()
        y = torch.randint(0, 4, (ROWS, STEPS), generator=draw)
        y[torch.rand(ROWS, STEPS, generator=draw) < torch.linspace(0, 0.9, ROWS)[:, None]] = (
            LEFT_OUT
        )
        if update == 0:
            y[ROWS // 2 :] = LEFT_OUT
        yield x[part], y[part]


def total(scores, y):
    flat = scores.flatten(0, 1), y.flatten()
    return F.cross_entropy(*flat, ignore_index=LEFT_OUT, reduction="sum")


def expected(decay=0.0):
    """The weights of torch in one process, with the mean over the tokens of the whole batch."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    for x, y in batches():
        optimizer.zero_grad()
        loss = total(model(x), y) / (y != LEFT_OUT).sum()
        (loss + decay * model[0].weight.square().sum()).backward()
        optimizer.step()
    return flat(model)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()


def plain_loop(passes):
    import popdist_torch.horovod as hvd

    hvd.init()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), backward_passes_per_step=passes
    )
    own = ROWS // hvd.size()
    for x, y in batches(slice(hvd.rank() * own, (hvd.rank() + 1) * own)):
        optimizer.zero_grad()
        count = (y != LEFT_OUT).sum()
        for part_x, part_y in zip(x.chunk(passes), y.chunk(passes), strict=True):
            loss = hvd.global_mean(total(model(part_x), part_y), count)
            (loss + 0.01 / passes * model[0].weight.square().sum()).backward()
        optimizer.step()
    with torch.no_grad():
        assert float(hvd.global_mean(torch.tensor(6.0), 3)) == 2.0
    return flat(model)


class Model(torch.nn.Module):
    def __init__(self, decay):
        super().__init__()
        self.layers = network()
        self.decay = decay

    def forward(self, x, y):
        import popdist_torch as poptorch

        scores = self.layers(x)
        loss = poptorch.global_mean(total(scores, y), (y != LEFT_OUT).sum())
        if not self.decay:
            return loss
        decayed = loss + self.decay * self.layers[0].weight.square().sum()
        return poptorch.identity_loss(decayed, "none")


def training_model(accumulation, decay, running=False, invariant=False):
    import popdist.poptorch
    import popdist_torch as poptorch

    options = popdist.poptorch.Options()
    options.Training.gradientAccumulation(accumulation)
    if running:
        strategy = poptorch.MeanReductionStrategy.Running
        options.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
    model = Model(decay)
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    training = poptorch.trainingModel(model, options, optimizer, placement_invariant=invariant)
    own = ROWS // popdist.getNumInstances()
    first = popdist.getInstanceIndex() * own
    for x, y in batches(slice(first, first + own)):
        training(x, y)
    return flat(model.layers)


def onnx_training():
    import popdist_onnx

    def loss(scores, y):
        valid = (y != LEFT_OUT).double()
        rows = F.cross_entropy(scores.transpose(1, 2), y.clamp(min=0), reduction="none")
        return popdist_onnx.global_mean((rows * valid).sum(), valid.sum())

    x, y = (torch.cat(one) for one in zip(*batches(), strict=True))
    replicas = popdist.getNumTotalReplicas()
    model = popdist_onnx.from_torch(network(), x[:ROWS], loss=loss, example_labels=y[:ROWS])
    settings = {"optimizer": "sgd", "learning_rate": 0.3, "accumulation": 2, "shuffle": False}
    size = ROWS // 2 // replicas
    trainer = popdist_onnx.train(
        model, x.numpy(), y.numpy(), batch_size=size, epochs=1, progress=False, **settings
    )
    names = [name for name, _ in network().named_parameters()]
    return np.concatenate([trainer.weights[name].ravel() for name in names])


TRAINING_MODELS = {
    2: [
        {"accumulation": 1, "decay": 0.01},
        {"accumulation": 4, "decay": 0.0, "invariant": True},
    ],
    4: [
        {"accumulation": 2, "decay": 0.0},
        {"accumulation": 2, "decay": 0.01, "running": True},
    ],
}


def all_trainings():
    """The weights of every training with the replicas of this job."""
    replicas = popdist.getNumTotalReplicas()
    found = {str(settings): training_model(**settings) for settings in TRAINING_MODELS[replicas]}
    if replicas == RANKS:
        found |= {f"passes {passes}": plain_loop(passes) for passes in (1, 2)}
    else:
        found["onnx"] = onnx_training()
    return found


@pytest.fixture(scope="module")
def answers():
    return {replicas: run_job(all_trainings, replicas=replicas) for replicas in TRAINING_MODELS}


@pytest.mark.parametrize("passes", [1, 2])
def test_a_plain_loop_trains_like_one_process(answers, passes):
    for answer in answers[RANKS]:
        np.testing.assert_allclose(answer[f"passes {passes}"], expected(0.01), rtol=0, atol=EXACT)


@pytest.mark.parametrize(
    ("replicas", "settings"),
    [(replicas, settings) for replicas, rows in TRAINING_MODELS.items() for settings in rows],
    ids=str,
)
def test_a_training_model_trains_like_one_process(answers, replicas, settings):
    for answer in answers[replicas]:
        wanted = expected(settings["decay"])
        np.testing.assert_allclose(answer[str(settings)], wanted, rtol=0, atol=EXACT)


def test_a_loss_of_onnx_trains_like_one_process(answers):
    for answer in answers[4]:
        # Learning rates of ONNX are in single precision.
        np.testing.assert_allclose(answer["onnx"], expected(), rtol=0, atol=1e-8)
