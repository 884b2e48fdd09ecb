"""Methods of wrapped models that look inside, and those that a host refuses."""

import copy
import io

import pytest
import torch
from torch import nn

import popdist_torch as poptorch
from popdist.errors import PopdistError


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("offset", torch.zeros(2))

    def forward(self, x):
        out = self.layer(x) + self.offset
        return out, poptorch.identity_loss(out.square().mean(), reduction="none")


def test_gradients_weights_and_buffers_are_read_by_name():
    model = Net()
    before = model.layer.weight.detach().clone()
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    options.anchorTensor("grad", "Gradient___layer.weight", poptorch.OutputMode.Sum)
    options.anchorTensor("offset", "offset")
    options.anchorTensor("wrong", "Gradient___layer.wait")
    training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.5))
    with pytest.raises(poptorch.Error, match="not been compiled") as caught:
        training.getTensorNames()
    assert isinstance(caught.value, AssertionError)  # as published
    training(torch.randn(4, 3))
    assert {"layer.weight", "offset", "Gradient___layer.bias"} <= set(training.getTensorNames())
    torch.testing.assert_close(
        before - 0.5 * training.getAnchoredTensor("grad") / 2, model.layer.weight.detach()
    )
    assert training.getAnchoredTensor("offset").tolist() == [0, 0]
    with pytest.raises(poptorch.Error, match=r"did you mean 'Gradient___layer\.weight'"):
        training.getAnchoredTensor("wrong")
    with pytest.raises(poptorch.Error, match="grad, offset, wrong"):
        training.getAnchoredTensor("never named")


def test_named_buffers_reach_all_replicas_and_no_others():
    model = Net()
    options = poptorch.Options().replicationFactor(2).updatableNamedBuffers(["offset"])
    inference = poptorch.inferenceModel(model, options)
    x = torch.zeros(2, 3)
    first = inference(x)[0]
    model.offset.fill_(1)
    with torch.no_grad():
        model.layer.weight.add_(7)
    assert torch.equal(inference(x)[0], first)
    inference.copyNamedBuffersToDevice()
    assert torch.equal(inference(x)[0], first + 1)
    other = poptorch.inferenceModel(model, poptorch.Options().updatableNamedBuffers(["off"]))
    with pytest.raises(poptorch.Error, match="offset"):
        other(x)
    plain = poptorch.inferenceModel(model)
    plain(x)
    with pytest.raises(poptorch.Error, match="No named buffers marked as updatable"):
        plain.copyNamedBuffersToDevice()


def test_weights_are_copied_where_they_are_needed():
    model = Net()
    training = poptorch.trainingModel(model)
    assert not training.copyWeightsToHostIfNeeded()
    training(torch.ones(1, 3))
    assert training.copyWeightsToHostIfNeeded()
    assert not training.copyWeightsToHostIfNeeded()


def test_reading_the_weights_calls_the_method_that_copies_them():
    training = poptorch.trainingModel(Net())
    copy, counts = training.copyWeightsToHost, []
    training.copyWeightsToHost = lambda: counts.append(copy())
    for expected in (1, 2):
        training(torch.ones(1, 3))
        for _ in range(2):
            training.model.layer.weight.sum()
        assert len(counts) == expected


def test_perf_counters_have_a_moment_per_step_in_order():
    options = poptorch.Options().deviceIterations(2).replicationFactor(3)
    options.outputMode(poptorch.OutputMode.Final)
    options.Training.gradientAccumulation(2)
    training = poptorch.trainingModel(Net(), options)
    assert training.compilationTime() == 0
    assert training.getPerfCounters()["input"] == []
    training(torch.ones(12, 3))
    seen = training.getPerfCounters()
    assert [len(seen["input"]), len(seen["input"][0])] == [1, 4]
    assert [len(seen["output"]), len(seen["output"][0])] == [2, 1]
    for begun, done in (("input", "input_complete"), ("output", "output_complete")):
        for start, stop in zip(seen[begun][0], seen[done][0], strict=True):
            assert start <= stop
        assert seen[begun][0] == sorted(seen[begun][0])
    assert training.compilationTime() > 0


def test_compile_hooks_surround_each_compilation():
    seen = []
    hooks = [
        poptorch.registerPreCompileHook(lambda: seen.append("before")),
        poptorch.registerPostCompileHook(lambda: seen.append("after")),
    ]
    inference = poptorch.inferenceModel(Net())
    inference.compile(torch.ones(1, 3))
    inference(torch.ones(1, 3))
    assert seen == ["before", "after"]
    for hook in hooks:
        hook.remove()
    inference.destroy()
    inference(torch.ones(1, 3))
    assert seen == ["before", "after"]
    with pytest.raises(poptorch.Error, match="must be callable"):
        poptorch.registerPreCompileHook(None)


@pytest.mark.parametrize("name", ["save", "compileAndExport", "loadExecutable"])
def test_executables_are_refused_with_what_to_do_instead(name):
    inference = poptorch.inferenceModel(Net())
    with pytest.raises(NotImplementedError, match="state_dict"):
        getattr(inference, name)("file")
    with pytest.raises(NotImplementedError, match="getLatency"):
        inference.cycleCount()
    with pytest.raises(NotImplementedError, match="Checkpoint"):
        poptorch.load("file")
    with pytest.raises(poptorch.Error, match="no optimizer"):
        inference.setOptimizer(torch.optim.SGD(inference.model.parameters()))


def test_tools_for_modules_find_the_models_private_names():
    inference = poptorch.inferenceModel(Net())
    assert inference._modules is inference.model._modules
    assert inference._parameters is inference.model._parameters
    with pytest.raises(AttributeError, match="'Net' object has no attribute '_x'"):
        _ = inference._x
    with pytest.raises(AttributeError, match="no attribute '__x__'"):
        _ = inference.__x__
    with pytest.raises(AttributeError, match="no attribute '_modules'"):
        _ = type(inference).__new__(type(inference))._modules  # as copy makes it


def test_a_name_that_neither_model_nor_wrapper_has_is_told_what_is_near():
    inference = poptorch.inferenceModel(Net())
    with pytest.raises(AttributeError, match=r"wrapper has(.|\n)*did you mean copyWeightsToHost"):
        inference.copyWeightsToHots()
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'x'"):
        _ = inference.x


def test_unknown_names_are_told_what_is_near():
    with pytest.raises(AttributeError, match="did you mean 'trainingModel'"):
        _ = poptorch.trainingModl


class WithoutLoss(Net):
    def forward(self, x):
        return super().forward(x)[0].detach()


@pytest.mark.parametrize("how", ["whole", "part", "in place", "option"])
def test_a_compiled_module_has_to_return_its_loss(how):
    model, options = WithoutLoss(), poptorch.Options()
    wrapped = model
    if how == "whole":
        wrapped = torch.compile(model, backend="eager")
    elif how == "part":
        model.layer = torch.compile(model.layer, backend="eager")
    elif how == "in place":
        model.layer.compile(backend="eager")
    else:
        options.Jit.torchCompile(backend="eager")
    training = poptorch.trainingModel(wrapped, options)
    with pytest.raises(poptorch.Error, match=r"PD313.*does not return its loss"):
        training(torch.ones(1, 3))


def test_a_compiled_module_cannot_return_other_outputs_later():
    class Growing(Net):
        steps = 0

        def forward(self, x):
            output, loss = super().forward(x)
            self.steps += 1
            return (output, loss) if self.steps < 3 else (output, output, loss)

    model, options = Growing(), poptorch.Options()
    options.Jit.torchCompile(backend="eager")
    training = poptorch.trainingModel(model, options)
    training(torch.ones(1, 3))
    training(torch.ones(1, 3))
    with pytest.raises(poptorch.Error, match=r"PD313.*other outputs"):
        training(torch.ones(1, 3))


def test_the_option_to_compile_takes_what_torch_compile_takes():
    options = poptorch.Options()
    with pytest.raises(PopdistError, match=r"no such setting[\s\S]*bakend[\s\S]*backend"):
        options.Jit.torchCompile(bakend="eager")
    options.Jit.torchCompile(mode="default").torchCompile(enabled=False)
    assert options.Jit.compile_settings is None


def test_what_is_no_module_or_no_optimizer_is_said_at_once():
    with pytest.raises(poptorch.Error, match=r"torch\.nn\.Module"):
        poptorch.trainingModel(lambda x: x)
    with pytest.raises(AssertionError, match="not an optimizer"):
        poptorch.trainingModel(Net(), optimizer="sgd")
    with pytest.raises(poptorch.Error, match=r"forward\(x\)"):
        poptorch.inferenceModel(Net())()


def test_an_option_that_does_not_exist_is_told_what_is_near():
    with pytest.raises(AttributeError, match="did you mean 'deviceIterations'"):
        poptorch.Options().deviceIteration(2)


def test_the_wrapped_module_can_destroy_its_wrapper():
    model = Net()
    training = poptorch.trainingModel(model)
    training(torch.ones(1, 3))
    assert isinstance(model, Net)
    assert type(copy.deepcopy(model)) is Net
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    assert type(torch.load(saved, weights_only=False)) is Net
    model.destroy()
    assert type(model) is Net
    assert not training.isCompiled()
    assert not hasattr(model, "destroy")
    poptorch.trainingModel(model)(torch.ones(1, 3))


@pytest.mark.parametrize(
    ("mode", "period", "expected"),
    [
        (None, 1, [8.0]),
        (poptorch.OutputMode.Final, 1, [8.0]),
        (poptorch.OutputMode.All, 1, [1.0, 2.0, 4.0, 8.0]),
        (poptorch.OutputMode.EveryN, 2, [2.0, 8.0]),
        (poptorch.OutputMode.Sum, 1, [15.0]),
    ],
)
def test_anchored_gradients_of_several_updates(mode, period, expected):
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return poptorch.identity_loss((self.weight * x).sum(), reduction="none")

    options = poptorch.Options().deviceIterations(4)
    options.anchorTensor("grad", "Gradient___weight", mode, period)
    training = poptorch.trainingModel(Weighted(), options)
    for _ in range(2):
        training(torch.tensor([1.0, 2.0, 4.0, 8.0]))
        assert training.getAnchoredTensor("grad").tolist() == expected
    with pytest.raises(AssertionError, match="period"):
        poptorch.Options().anchorTensor("a", "b", poptorch.OutputMode.EveryN, 0)


class Divided(nn.Module):
    """A model with a gradient that the rows of a micro-batch determine, and a count of its own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2, dtype=torch.float64)
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(x.sum().abs())
        loss = (self.scale * self.layer(x)).square().mean()
        return poptorch.identity_loss(loss, reduction="none")


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("mode", ["All", "EveryN", "Final", "Sum", None])
def test_anchored_gradients_are_those_of_each_replicas_micro_batches(mode, running):
    """The published shape: replicas, and (All) accumulation steps and device iterations."""
    torch.manual_seed(3)
    model, rows = Divided(), torch.randn(2 * 3 * 2 * 4, 3, dtype=torch.float64)
    plain = copy.deepcopy(model)
    options = poptorch.Options().deviceIterations(2).replicationFactor(2)
    options.broadcastBuffers(broadcast_buffers=False)
    options.Training.gradientAccumulation(3)
    if running:
        strategy = poptorch.MeanReductionStrategy.Running
        options.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
    if mode is None:
        options.outputMode(poptorch.OutputMode.All)
    chosen = None if mode is None else poptorch.OutputMode[mode]
    for name in ("layer.weight", "scale"):
        options.anchorTensor(name, f"Gradient___{name}", chosen, 3)
    options.anchorTensor("calls", "calls", chosen, 3)
    options.anchorTensor("updated", "UpdatedVar___layer.weight")
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, loss_scaling=8.0)
    training = poptorch.trainingModel(model, options, optimizer)
    training(rows)

    expected, descent = [], torch.optim.SGD(plain.parameters(), lr=0.1)
    for update in rows.split(24):
        of_update = []
        for micro in update.split(8):
            for replica in micro.split(4):
                loss = plain(replica)
                of_update.append(torch.autograd.grad(loss, [plain.layer.weight, plain.scale]))
        expected += of_update
        descent.zero_grad()
        (sum(plain(part) for part in update.split(4)) / 6).backward()
        descent.step()
    for index, name in enumerate(("layer.weight", "scale")):
        of_each = [8 * torch.atleast_1d(one[index]) for one in expected]
        steps = [torch.cat(of_each[at : at + 2]) for at in range(0, 12, 2)]
        wanted = {
            "EveryN": torch.cat([steps[2], steps[5]]),
            "Final": steps[5],
            "Sum": sum(steps),
        }.get(mode, torch.cat(steps))
        torch.testing.assert_close(training.getAnchoredTensor(name), wanted)
    counts = torch.stack([part.sum().abs() for part in rows.split(4)]).view(6, 2).cumsum(0).float()
    seen = {"EveryN": counts[[2, 5]], "Final": counts[5], "Sum": counts.sum(0)}.get(mode, counts)
    torch.testing.assert_close(training.getAnchoredTensor("calls"), seen.flatten())
    updated = training.getAnchoredTensor("updated")[-4:]
    torch.testing.assert_close(updated, plain.layer.weight.detach().repeat(2, 1))


def test_half_precision_accumulators_take_a_running_mean():
    model = Net()
    half = poptorch.optim.AdamW(model.parameters(), lr=0.1, accum_type=torch.float16)
    options = poptorch.Options()
    training = poptorch.trainingModel(model, options, half)
    key = "meanAccumulationAndReplicationReductionStrategy"
    assert getattr(training.options.Training, key) == poptorch.MeanReductionStrategy.Running
    assert getattr(options.Training, key) == poptorch.MeanReductionStrategy.Post
    training.destroy()
    other = poptorch.trainingModel(model, None, poptorch.optim.AdamW(model.parameters(), lr=0.1))
    assert getattr(other.options.Training, key) == poptorch.MeanReductionStrategy.Post
    other(torch.ones(1, 3))
    with pytest.raises(ValueError, match=r"running mean.*already compiled"):
        other.setOptimizer(half)


@pytest.mark.parametrize("strategy", list(poptorch.MeanReductionStrategy))
def test_mean_strategies_agree_and_only_running_divides_first(strategy):
    seen, weights = [], []
    for accumulation in (1, 4):
        torch.manual_seed(1)
        model = Net().double()
        model.layer.weight.register_hook(lambda g: seen.append(g.norm().item()) or None)
        options = poptorch.Options()
        options.Training.gradientAccumulation(accumulation)
        options.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
        x = torch.ones(4, 3, dtype=torch.float64)
        poptorch.trainingModel(model, options)(x)
        weights.append(model.layer.weight.detach().clone())
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=1e-15)
    early = 4 if strategy == poptorch.MeanReductionStrategy.Running else 1
    assert seen[1] == pytest.approx(seen[0] / early)


def test_the_enumerations_are_a_module_of_their_own():
    from popdist_torch.enums import OutputMode, ReductionType

    assert OutputMode is poptorch.OutputMode is poptorch.enums.OutputMode
    assert ReductionType is poptorch.ReductionType


def test_optimizers_have_one_base():
    optimizer = poptorch.optim.SGD(Net().parameters(), lr=0.1)
    assert isinstance(optimizer, poptorch.optim.Optimizer)
    assert not isinstance(torch.optim.SGD(Net().parameters(), lr=0.1), poptorch.optim.Optimizer)


def test_a_loss_that_refuses_its_labels_says_what_it_got():
    class Classified(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x, y):
            return nn.functional.cross_entropy(self.layer(x), y)

    with pytest.raises(poptorch.Error, match="cross_entropy does not take") as caught:
        poptorch.trainingModel(Classified())(torch.ones(4, 3), torch.ones(4))
    assert "labels.long()" in str(caught.value)
    assert "(4,) torch.float32" in str(caught.value)
