"""trainingModel in one process; real jobs are tested in tests/distributed."""

import copy
import io
import logging

import pytest
import torch
from torch import nn

import popdist_torch as poptorch
from popdist import metrics
from popdist_torch.executor.replicas import stream_seed
from tests.popdist_torch import reference


class Net(nn.Module):
    def __init__(self, *, dropout=0.0):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, 4)
        )
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x, y=None):
        scores = self.layers(x)
        return scores if y is None else (scores, self.loss(scores, y))


def net(**kwargs):
    torch.manual_seed(1)
    return Net(**kwargs).double()


def options(*, iterations=1, accumulation=1, replicas=1):
    made = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    made.Training.gradientAccumulation(accumulation)
    return made.randomSeed(3)


def batches(*shape):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(*shape, 3, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, 4, shape, generator=generator)


X, Y = batches(8)


def sgd(model, **kwargs):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **kwargs})


def trained(model=None, **kwargs):
    """A model, its wrapper after one step, and its weights before."""
    model = net() if model is None else model
    before = reference.flat(model)
    training = poptorch.trainingModel(model, options(**kwargs), sgd(model))
    training(X, Y)
    return model, training, before


def differ(first, second):
    return abs(first - second).max() > 1e-6


def test_a_step_is_the_reference_step():
    x, y = batches(2, 3, 2, 2)  # D, A, R, mb
    model, plain = net(dropout=0.4), net(dropout=0.4)
    training = poptorch.trainingModel(
        model, options(iterations=2, accumulation=3, replicas=2), sgd(model)
    )
    _, loss = training(x.flatten(0, 3), y.flatten(0, 3))
    copies, losses = reference.train(
        plain,
        (x, y),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        stream_seeds=[stream_seed(3, 0), stream_seed(3, 1)],
    )
    assert abs(reference.flat(model) - reference.flat(plain)).max() < 1e-14
    assert torch.allclose(loss, losses[-1, -1], atol=1e-14, rtol=0)
    assert (
        abs(reference.running_statistics(model) - reference.running_statistics(copies[0])).max()
        < 1e-14
    )


def test_without_an_optimizer_plain_descent_is_used():
    model, plain = net(), net()
    poptorch.trainingModel(model)(X, Y)
    plain(X, Y)[1].backward()
    torch.optim.SGD(plain.parameters(), lr=0.01).step()
    assert (reference.flat(model) == reference.flat(plain)).all()


def test_options_are_frozen_and_the_programs_keep_their_output_mode():
    made = options()
    training = poptorch.trainingModel(net(), made)
    with pytest.raises(AttributeError, match="frozen"):
        made.deviceIterations(2)
    assert made.defaultOutputMode()
    assert training.options.output_mode == poptorch.OutputMode.Final


# --- the program's module -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "look",
    [
        lambda m: m.layers[0].weight.detach().clone(),
        lambda m: m.state_dict()["layers.0.weight"].clone(),
        lambda m: next(m.parameters()).clone(),
        lambda m: copy.deepcopy(m).layers[0].weight.clone(),
        lambda m: m.layers[0].weight.numpy(force=True).copy(),
        lambda m: nn.utils.parameters_to_vector(m.parameters())[:18].clone(),
    ],
)
def test_every_look_at_the_module_sees_the_newest_weights(look):
    model = net()
    held = model.layers[0].weight
    before = torch.as_tensor(look(model)).flatten()
    training = poptorch.trainingModel(model, options(), sgd(model))
    training(X, Y)
    after = torch.as_tensor(look(model)).flatten()
    assert not torch.equal(before, after)
    assert torch.equal(after, held.detach().flatten())
    training(X, Y)
    assert not torch.equal(after, torch.as_tensor(look(model)).flatten())


def test_weights_are_copied_back_once_per_look_after_training(monkeypatch):
    model, training, _ = trained()
    copies = []
    original = training._executable.model.to_host
    monkeypatch.setattr(training._executable.model, "to_host", lambda: copies.append(original()))
    training(X, Y)
    training(X, Y)
    assert copies == []
    for _ in range(3):
        model.state_dict()
    assert len(copies) == 1


def test_the_modules_forward_runs_the_newest_weights():
    model, _, _ = trained()
    model.eval()
    seen = model(X)
    plain = copy.deepcopy(model)
    assert torch.equal(seen, plain(X))
    assert type(plain.layers[0].weight) is nn.Parameter


def test_host_training_is_invisible_until_it_is_copied():
    model = net()
    training = poptorch.trainingModel(model, options(), sgd(model, momentum=0))
    training(X, Y)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    training(X, Y)
    assert reference.flat(model).any()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    training.copyWeightsToDevice()
    training(X, Y)
    # Zero weights give zero gradients everywhere but in the last bias.
    assert not model.layers[0].weight.any()
    assert model.layers[4].bias.any()


def test_copying_stale_weights_to_the_device_undoes_training():
    model = net()
    before = reference.flat(model)
    training = poptorch.trainingModel(model, options(), sgd(model))
    training(X, Y)
    training.copyWeightsToDevice()
    assert (reference.flat(model) == before).all()


def test_a_saved_module_knows_nothing_of_its_wrapper():
    model, _, _ = trained()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert type(loaded.layers[0].weight) is nn.Parameter
    assert (reference.flat(loaded) == reference.flat(model)).all()


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, x):
            return nn.functional.mse_loss(self.second(torch.tanh(self.first(x))), x)

    torch.manual_seed(1)
    model = Tied().double()
    plain = copy.deepcopy(model)
    poptorch.trainingModel(model, options(), sgd(model))(X)
    plain(X).backward()
    sgd(plain).step()
    assert model.second.weight is model.first.weight
    assert (reference.flat(model) == reference.flat(plain)).all()


def test_training_flags_are_those_at_wrapping():
    model = net().eval()
    frozen_statistics = reference.running_statistics(model)
    training = poptorch.trainingModel(model, options(), sgd(model))
    model.train()
    training(X, Y)
    training.copyWeightsToHost()
    assert (reference.running_statistics(model) == frozen_statistics).all()


# --- life cycle -----------------------------------------------------------------------------------


def test_compiling_changes_nothing():
    model = net(dropout=0.5)
    optimizer = sgd(model)
    before, stream = reference.flat(model), torch.get_rng_state()
    training = poptorch.trainingModel(model, options(), optimizer)
    assert not training.isCompiled()
    training.compile(X, Y)
    assert training.isCompiled()
    assert training.isAttachedToDevice()
    assert training._executable
    assert (reference.flat(model) == before).all()
    assert optimizer.state_dict()["state"] == {}
    training(X, Y)
    other = net(dropout=0.5)
    uncompiled = poptorch.trainingModel(other, options(), sgd(other))
    uncompiled(X, Y)
    assert (reference.flat(model) == reference.flat(other)).all()
    assert len(stream) == len(torch.get_rng_state())


def test_compiling_again_only_warns(caplog):
    _, training, _ = trained()
    with caplog.at_level(logging.WARNING, logger="popdist.torch"):
        training.compile(X, Y)
    assert "compiled already" in caplog.text


def test_detaching_and_attaching():
    model, training, before = trained()
    training.detachFromDevice()
    assert not training.isAttachedToDevice()
    assert differ(reference.flat(model), before)
    with pytest.raises(RuntimeError, match="Device is not attached"):
        training.detachFromDevice()
    between = reference.flat(model)
    training(X, Y)
    assert training.isAttachedToDevice()
    assert differ(reference.flat(model), between)
    with pytest.raises(RuntimeError, match="already attached"):
        training.attachToDevice()


def _attached_again(training):
    training.detachFromDevice()
    training.attachToDevice()


@pytest.mark.parametrize("looked", [False, True])
@pytest.mark.parametrize(
    "copy_of",
    [
        lambda training: training.detachFromDevice(),
        lambda training: training.destroy(),
        _attached_again,
        lambda training: training.state_dict(),
        lambda training: training.copyWeightsToHostIfNeeded(),
        lambda training: poptorch.inferenceModel(training.model)(X),
    ],
    ids=["detach", "destroy", "attach", "state_dict", "if needed", "second model"],
)
@pytest.mark.parametrize(
    "load",
    [
        lambda model, state: model.load_state_dict(state),
        lambda model, state: [p.data.copy_(state[n]) for n, p in model.named_parameters()],
        lambda model, _state: [nn.init.constant_(p, 0.5) for p in model.parameters()],
    ],
    ids=["load_state_dict", "data", "init"],
)
def test_weights_that_the_program_loads_survive_implicit_copies(load, copy_of, looked):
    model, training, _ = trained()
    state = {name: torch.full_like(v, 0.5) for name, v in net().state_dict().items()}
    if looked:
        reference.flat(model)
    load(model, state)
    copy_of(training)
    assert (reference.flat(model) == 0.5).all()


def test_loaded_weights_are_used_after_attaching():
    model = net()
    training = poptorch.trainingModel(model, options(), sgd(model, momentum=0))
    training(X, Y)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    _attached_again(training)
    training(X, Y)
    # Zero weights give zero gradients everywhere but in the last bias.
    assert not model.layers[0].weight.any()


def test_a_model_without_trained_parameters_warns(caplog):
    model = net().requires_grad_(requires_grad=False)
    training = poptorch.trainingModel(model, options(), sgd(model))
    with caplog.at_level(logging.WARNING, "popdist.torch"):
        training(X, Y)
        training(X, Y)
    assert [record.message.count("PD351") for record in caplog.records] == [1]


def test_a_loss_without_parameters_trains_nothing_and_warns(caplog):
    """PopTorch compiles such models; plain torch leaves weights without a gradient as they are."""

    class Apart(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = nn.Linear(3, 2)

        def forward(self, x):
            return x, poptorch.identity_loss(x.square(), reduction="sum")

    model, x = Apart(), torch.arange(8.0).reshape(4, 2)
    before = copy.deepcopy(model.state_dict())
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    training = poptorch.trainingModel(model, poptorch.Options().replicationFactor(2), optimizer)
    with caplog.at_level(logging.WARNING, "popdist.torch"):
        for _ in range(2):
            _, losses = training(x.requires_grad_())
    expected = [float(part.detach().square().sum()) for part in x.split(2)]
    assert losses.tolist() == expected
    assert [record.message.count("PD351") for record in caplog.records] == [0, 1]
    assert "requires_grad=True set. This tensor will be detached" in caplog.text
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_momentum_survives_detaching():
    straight, interrupted = net(), net()
    first = poptorch.trainingModel(straight, options(), sgd(straight))
    second = poptorch.trainingModel(interrupted, options(), sgd(interrupted))
    first(X, Y)
    first(X, Y)
    second(X, Y)
    second.detachFromDevice()
    second(X, Y)
    assert (reference.flat(straight) == reference.flat(interrupted)).all()


def test_destroying_gives_the_module_back():
    model, training, before = trained()
    with pytest.raises(RuntimeError, match="Model has already been wrapped"):
        poptorch.trainingModel(model)
    training.destroy()
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
    assert differ(reference.flat(model), before)
    assert not training.isCompiled()
    training.destroy()
    poptorch.trainingModel(model, options(), sgd(model))(X[:4], Y[:4])


def test_copies_need_a_compiled_model():
    training = poptorch.trainingModel(net())
    for call in (training.copyWeightsToHost, training.copyWeightsToDevice):
        with pytest.raises(RuntimeError, match="not been compiled"):
            call()


def test_the_state_can_be_saved_and_loaded_through_the_wrapper():
    model, training, before = trained()
    kept = {name: value.clone() for name, value in training.state_dict().items()}
    training(X, Y)
    result = training.load_state_dict(kept)
    assert result.missing_keys == []
    once = reference.flat(model)
    training(X, Y)
    assert differ(once, before)
    assert differ(reference.flat(model), once)


def test_attributes_of_the_module_are_reachable():
    model, training, _ = trained()
    assert training.layers is model.layers
    assert training.model is model
    with pytest.raises(AttributeError):
        _ = training.nothing


def test_an_offline_job_compiles_and_does_not_run():
    made = options().useOfflineIpuTarget()
    training = poptorch.trainingModel(net(), made)
    training.compile(X, Y)
    assert not training.isAttachedToDevice()
    with pytest.raises(AssertionError, match="offline device"):
        training(X, Y)


# --- bad input ------------------------------------------------------------------------------------


def test_shapes_are_fixed_by_the_first_call():
    _, training, _ = trained()
    with pytest.raises(RuntimeError, match=r"for x: expected torch.Size\(\[8, 3\]\)") as caught:
        training(X[:4], Y[:4])
    assert "but got torch.Size([4, 3])" in str(caught.value)
    training.destroy()
    training(X[:4], Y[:4])


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t(X.float(), Y),
        lambda t: t(X),
    ],
)
def test_types_and_nesting_are_fixed_too(call):
    _, training, _ = trained()
    with pytest.raises(RuntimeError, match="inputs have changed"):
        call(training)


def test_arguments_that_the_model_does_not_take():
    training = poptorch.trainingModel(net())
    with pytest.raises(RuntimeError, match="cannot be called"):
        training()
    with pytest.raises(RuntimeError, match="cannot be called"):
        training(X, Y, Y)


def test_a_batch_that_does_not_divide():
    training = poptorch.trainingModel(net(), options(replicas=3))
    with pytest.raises(AssertionError, match="Invalid batch dimension"):
        training(X, Y)


def test_a_model_without_a_loss():
    training = poptorch.trainingModel(net(), options())
    with pytest.raises(RuntimeError, match="Couldn't find a loss"):
        training(X)


def test_inputs_do_not_receive_gradients():
    x = X.clone().requires_grad_()
    model = net()
    poptorch.trainingModel(model, options(), sgd(model))(x, Y)
    assert x.grad is None


def test_a_model_that_changes_a_buffer_of_several_replicas():
    class Counting(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x, y):
            self.calls += 1
            return super().forward(x, y)

    def run(made):
        model = Counting().double()
        training = poptorch.trainingModel(model, made, sgd(model))
        training(X, Y)
        training.copyWeightsToHost()
        return model.calls.item()

    with pytest.raises(RuntimeError, match="broadcasting buffers"):
        run(options(replicas=2))
    assert run(options(replicas=2).broadcastBuffers(broadcast_buffers=False)) == 1
    assert run(options(iterations=2)) == 2


def test_poprun_is_told_the_loss_of_each_call(monkeypatch):
    told = []
    monkeypatch.setattr(metrics, "is_watched", lambda: True)
    monkeypatch.setattr(metrics, "_adapters", metrics._SoFar())
    monkeypatch.setattr(metrics, "_so_far", metrics._SoFar())  # of other tests
    monkeypatch.setattr(metrics, "_LOSS_SECONDS", 0.0)
    monkeypatch.setattr(metrics, "tell_progress", lambda **facts: told.append(facts))
    model = net()
    training = poptorch.trainingModel(model, options(), sgd(model))
    losses = [float(training(X, Y)[-1]) for _ in range(3)]
    assert [facts["loss"] for facts in told if "loss" in facts] == losses
