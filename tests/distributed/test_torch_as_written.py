"""Ways in which what trains could differ from what is written: each is right, or an error.

Every row is a program of its own. It runs on two instances with different data, and in plain torch
in one process on the global batch, in double precision. Right means: the same weights on both
instances, bit for bit, and those of the one process. Otherwise both instances raise the code of the
row.
"""

import copy

import numpy as np
import pytest
import torch
import torch.nn.utils.prune
from torch import nn
from torch.utils.checkpoint import checkpoint

import popdist
import popdist.poptorch
import popdist_torch as poptorch
import popdist_torch.horovod as hvd
from popdist.errors import PopdistError
from tests.distributed.jobs import run_job
from tests.distributed.torch_loops import warnings_of_popdist
from tests.popdist_torch import reference

CALLS, ROWS = 4, 6
EXACT = 1e-12
F = nn.functional


class Program:
    """One program: a module, an optimizer, and what happens between calls.

    The same object is run by popdist and by a plain loop, so nothing in it knows of either.
    """

    rate = 0.1
    accumulation = 2
    dtype = torch.float64
    options = staticmethod(popdist.poptorch.Options)

    def __init__(self):
        torch.manual_seed(5)
        self.model = self.build().to(self.dtype)
        self.optimizer = self.make_optimizer(self.trained())

    def build(self):
        return Net()

    def trained(self):
        return self.model.parameters()

    def make_optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=self.rate, momentum=0.9)

    def after(self, call, training=None):
        """Notes the executor, or None in the plain loop; then what the program does."""
        self.call, self.training = call, training
        self.between()

    def between(self):
        """What happens after each call."""

    def weights(self):
        return reference.flat(self.model)

    def batch(self, call):
        generator = torch.Generator().manual_seed(call)
        x = torch.randn(2, ROWS, 3, generator=generator, dtype=torch.float64).to(self.dtype)
        return x, x[..., :2] * 2 + 0.5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def scores(self, x):
        return self.last(torch.tanh(self.first(x)))

    def forward(self, x, y):
        return F.mse_loss(self.scores(x), y)


class Captured(Program):
    """W1: forward calls its own submodule by a name that it has captured."""

    def build(self):
        net = Net()

        class Wrapper(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = net

            def forward(self, x, y):
                return F.mse_loss(net.scores(x), y)

        return Wrapper()


class NoPart(Program):
    """What forward reaches is no part of the module; the optimizer has its parameters."""

    def build(self):
        self.net = net = Net().to(self.dtype)

        class Loss(nn.Module):
            def forward(self, x, y):
                return F.mse_loss(net.scores(x), y)

        return Loss()

    def trained(self):
        return self.net.parameters()

    def weights(self):
        return reference.flat(self.net)


class InAList(NoPart):
    def build(self):
        self.layers = layers = [nn.Linear(3, 4).to(self.dtype), nn.Linear(4, 2).to(self.dtype)]
        self.net = nn.ModuleList(layers)

        class Listed(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = layers  # a plain list: no part of the module

            def forward(self, x, y):
                return F.mse_loss(self.layers[1](torch.tanh(self.layers[0](x))), y)

        return Listed()


class Views(Program):
    """Parameters are views of one flat tensor, through which forward reads them."""

    def build(self):
        net = Net().to(self.dtype)
        flat = torch.cat([p.detach().flatten() for p in net.parameters()])
        start = 0
        for parameter in net.parameters():
            stop = start + parameter.numel()
            parameter.data = flat[start:stop].view(parameter.shape)
            start = stop

        class Decayed(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = net

            def forward(self, x, y):
                return F.mse_loss(net.scores(x) * (1 + flat.square().mean()), y)

        return Decayed()


class Tied(Program):
    def build(self):
        class TiedNet(Net):
            def __init__(self):
                super().__init__()
                self.other = nn.Linear(3, 4, bias=False)
                self.other.weight = self.first.weight

            def scores(self, x):
                return self.last(torch.tanh(self.first(x)) + self.other(x))

        return TiedNet()


class SparseBuffer(Program):
    """Multiplies by a sparse buffer, beside a layer that works in place."""

    def build(self):
        class Graph(Net):
            def __init__(self):
                super().__init__()
                places = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])
                edges = torch.sparse_coo_tensor(
                    places, torch.arange(1.0, 5.0), (3, 3), check_invariants=True
                )
                self.register_buffer("edges", edges)
                self.between = nn.Hardtanh(0.4, 0.6, inplace=True)

            def scores(self, x):
                hidden = self.between(self.first(torch.mm(self.edges, x.T).T))
                return self.last(hidden)

        return Graph()


class Functional(Program):
    def build(self):
        class Called(Net):
            def forward(self, x, y):
                named = {name: p * 1.5 for name, p in self.last.named_parameters()}
                hidden = torch.tanh(self.first(x))
                return F.mse_loss(torch.func.functional_call(self.last, named, (hidden,)), y)

        return Called()


class InnerLoss(Program):
    """torch.func computes with a loss of its own; it is no loss of the model."""

    def build(self):
        class Meta(Net):
            def forward(self, x, y):
                def inner(weight):
                    return F.mse_loss(weight, torch.ones_like(weight))

                step = torch.func.grad(inner)(self.first.weight[:2])
                return F.mse_loss(self.scores(x) + x @ step.T, y)

        return Meta()


class Checkpointed(Program):
    def build(self):
        class Twice(Net):
            def scores(self, x):
                return self.last(checkpoint(self.hidden, x, use_reentrant=False))

            def hidden(self, x):
                return torch.tanh(self.first(x))

        return Twice()


class ReentrantShared(Program):
    def build(self):
        class Shared(Net):
            def scores(self, x):
                x = x.requires_grad_()
                one = checkpoint(self.first, x, use_reentrant=True)
                return self.last(
                    torch.tanh(one + checkpoint(self.first, 2 * x, use_reentrant=True))
                )

        return Shared()


class Sparse(Program):
    def make_optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=self.rate)

    def build(self):
        class Words(Net):
            def __init__(self):
                super().__init__()
                self.words = nn.Embedding(7, 4, sparse=True)

            def scores(self, x):
                index = (x[:, 0].abs() * 3).long().clamp(max=6)
                return self.last(torch.tanh(self.first(x) + self.words(index)))

        return Words()


class SparseRows(Sparse):
    """An optimizer that refuses dense gradients, and leaves alone the rows that no replica has."""

    def trained(self):
        self.model.first.requires_grad_(requires_grad=False)
        self.model.last.requires_grad_(requires_grad=False)
        return self.model.words.parameters()

    def make_optimizer(self, parameters):
        return torch.optim.SparseAdam(parameters, lr=self.rate)


class Complex(Program):
    def build(self):
        class Rotated(Net):
            def __init__(self):
                super().__init__()
                self.turn = nn.Parameter(torch.randn(4, dtype=torch.complex128))

            def scores(self, x):
                return self.last((torch.tanh(self.first(x)) * self.turn).abs())

        return Rotated()

    def weights(self):
        parts = [torch.view_as_real(p) if p.is_complex() else p for p in self.model.parameters()]
        return torch.cat([p.detach().flatten() for p in parts]).double().numpy()


class Hooked(Program):
    """A hook of a parameter sees each micro-batch's gradient, not one that was divided already."""

    def __init__(self):
        super().__init__()
        self.model.first.weight.register_hook(lambda gradient: gradient * 3)
        self.model.last.bias.register_hook(torch.zeros_like)


class HookOfActivation(Program):
    """A hook of an activation that multiplies, and one that acts as in one process."""

    bounded = staticmethod(lambda gradient: gradient.clamp(-0.002, 0.002))

    def build(self):
        bounded = self.bounded

        class Bounded(Net):
            def scores(self, x):
                # In plain torch no factor is known, and the hook gets what it gets.
                hidden = self.first(x)
                hidden.register_hook(poptorch.global_batch_hook(bounded))
                hidden = torch.tanh(hidden)
                hidden.register_hook(lambda gradient: gradient * 0.5)
                return self.last(hidden)

        return Bounded()


class SteppedHook(Program):
    """A step hook of the optimizer sees the sums: clipping there is global clipping."""

    def make_optimizer(self, parameters):
        parameters = list(parameters)
        optimizer = super().make_optimizer(parameters)
        optimizer.register_step_pre_hook(
            lambda *_: nn.utils.clip_grad_norm_(parameters, 0.01) and None
        )
        return optimizer


class AfterAccumulation(Program):
    def __init__(self):
        super().__init__()
        self.model.first.weight.register_post_accumulate_grad_hook(
            lambda parameter: parameter.grad.clamp_(-0.01, 0.01)
        )


class ValidatedInInferenceMode(Program):
    """The program's own module, and a copy that follows it, run in inference mode between calls."""

    def __init__(self):
        super().__init__()
        self.average, self.losses = copy.deepcopy(self.model), []
        self.average.requires_grad_(requires_grad=False)

    def between(self):
        x, y = self.batch(50)
        with torch.inference_mode():
            self.losses.append(float(self.model(x.flatten(0, 1), y.flatten(0, 1))))
            for old, new in zip(self.average.parameters(), self.model.parameters(), strict=True):
                old.lerp_(new, 0.3)

    def weights(self):
        return np.concatenate([super().weights(), reference.flat(self.average), self.losses])


class HooksOfTheOptimizer(Program):
    """They run once each, and see the mean over all rows."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def make_optimizer(self, parameters):
        parameters = list(parameters)
        optimizer = super().make_optimizer(parameters)
        optimizer.register_step_post_hook(
            lambda *_: self.seen.append(float(sum(p.grad.abs().sum() for p in parameters)))
        )
        optimizer.register_load_state_dict_post_hook(lambda *_: self.seen.append(100.0))
        return optimizer

    def between(self):
        if self.call == 1:
            self.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))

    def weights(self):
        return np.concatenate([super().weights(), self.seen])


class Frozen(Program):
    """requires_grad is switched while training runs."""

    def __init__(self):
        super().__init__()
        self.model.first.requires_grad_(requires_grad=False)

    def make_optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=self.rate)

    def between(self):
        self.model.first.requires_grad_(requires_grad=self.call == 0)
        self.model.last.requires_grad_(requires_grad=self.call != 1)


class Grown(Program):
    """A layer and its parameters are added while training runs."""

    def build(self):
        class Growing(Net):
            def __init__(self):
                super().__init__()
                self.added = None

            def scores(self, x):
                return super().scores(x) + (0 if self.added is None else self.added(x))

        return Growing()

    def between(self):
        if self.call == 1:
            torch.manual_seed(9)
            self.model.added = nn.Linear(3, 2).to(self.dtype)
            self.optimizer.add_param_group({"params": list(self.model.added.parameters())})


class Scheduled(Program):
    """W4: a scheduler steps, and nobody calls setOptimizer."""

    def __init__(self):
        super().__init__()
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)

    def between(self):
        self.scheduler.step()


class ScheduledOnOne(Scheduled):
    def between(self):
        if popdist.getInstanceIndex() == 0:
            self.scheduler.step()


class LoadedInBetween(Program):
    def __init__(self):
        super().__init__()
        self.first = copy.deepcopy(self.model.state_dict())

    def between(self):
        if self.call == 1:
            (self.training or self.model).load_state_dict(self.first)


class LoadedOnOne(LoadedInBetween):
    def between(self):
        if popdist.getInstanceIndex() == 0:
            super().between()


class OtherValuesLoaded(LoadedInBetween):
    def between(self):
        if self.call == 1:
            name = "last.bias"
            self.first[name] = self.first[name] + popdist.getInstanceIndex()
            super().between()


class OtherState(Program):
    def between(self):
        if self.call == 1:
            state = self.optimizer.state_dict()
            state["state"][0]["momentum_buffer"] += popdist.getInstanceIndex()
            self.optimizer.load_state_dict(state)


class Averaged(Program):
    """A copy follows the weights (EMA): it reads them after every call."""

    def __init__(self):
        super().__init__()
        self.average = torch.optim.swa_utils.AveragedModel(
            self.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.7)
        )

    def between(self):
        self.average.update_parameters(self.model)

    def weights(self):
        return np.concatenate([super().weights(), reference.flat(self.average)])


class OnMeta(Program):
    def build(self):
        with torch.device("meta"):
            return Net()


class MetaTooEarly(OnMeta):
    """The optimizer was built before the module had values: it has none of its parameters."""

    def __init__(self):
        super().__init__()
        self.model.to_empty(device="cpu")
        for parameter in self.model.parameters():
            nn.init.constant_(parameter, 0.1)


class MetaFirst(Program):
    def build(self):
        with torch.device("meta"):
            net = Net()
        net.to_empty(device="cpu")
        for parameter in net.parameters():
            nn.init.normal_(parameter)
        return net


class Lazy(Program):
    def build(self):
        class LazyNet(Net):
            def __init__(self):
                super().__init__()
                self.first = nn.LazyLinear(4)

        return LazyNet()


class TiedInBetween(Program):
    def build(self):
        class Two(Net):
            def __init__(self):
                super().__init__()
                self.other = nn.Linear(3, 4, bias=False)

            def scores(self, x):
                return self.last(torch.tanh(self.first(x) + self.other(x)))

        return Two()

    def between(self):
        if self.call == 1:
            self.model.other.weight = self.model.first.weight


class LayerReplaced(Program):
    def between(self):
        if self.call == 1:
            torch.manual_seed(8)
            self.model.last = nn.Linear(4, 2).to(self.dtype)
            self.optimizer = self.make_optimizer(self.model.parameters())
            if self.training is not None:
                self.training.setOptimizer(self.optimizer)


class Pruned(Program):
    """A layer gets a mask, a buffer, while training runs."""

    def between(self):
        if self.call == 1:
            nn.utils.prune.l1_unstructured(self.model.first, "weight", 0.3)


class GroupAddedLater(Program):
    def trained(self):
        return self.model.first.parameters()

    def between(self):
        if self.call == 1:
            self.optimizer.add_param_group({"params": list(self.model.last.parameters())})


class NoiseOfOneSeed(Program):
    """Updates draw random numbers, from streams that are alike."""

    def make_optimizer(self, parameters):
        optimizer = super().make_optimizer(parameters)
        optimizer.register_step_post_hook(self.add_noise)
        return optimizer

    @torch.no_grad()
    def add_noise(self, *_):
        noise = torch.randn(2, dtype=self.dtype, generator=self.generator())
        self.model.last.bias.add_(noise, alpha=0.01)

    def generator(self):
        return torch.Generator().manual_seed(3)


class NoiseOfManySeeds(NoiseOfOneSeed):
    def generator(self):
        return torch.Generator().manual_seed(popdist.getInstanceIndex())


class WrittenByForward(Program):
    """Weights follow what a replica sees."""

    def build(self):
        class Written(Net):
            def scores(self, x):
                self.first.weight.data.mul_(1 + 0.01 * x.mean().item())
                return super().scores(x)

        return Written()


class BufferOfOneInstance(Program):
    def build(self):
        class Centred(Net):
            def __init__(self):
                super().__init__()
                self.register_buffer("center", torch.zeros(4))

            def scores(self, x):
                hidden = torch.tanh(self.first(x))
                self.center = 0.9 * self.center + 0.1 * hidden.detach().mean(0)
                return self.last(hidden - self.center)

        return Centred()


class SynchronisedNorm(Program):
    def build(self):
        return nn.SyncBatchNorm.convert_sync_batchnorm(WithNorm())


class NormalizedTogether(Program):
    """A micro-batch is one update's rows of both instances, as in one process."""

    accumulation = 1

    def build(self):
        return poptorch.SyncBatchNorm.convert_sync_batchnorm(WithNorm())

    def weights(self):
        norm = self.model.norm
        return np.concatenate([super().weights(), norm.running_mean, norm.running_var])


class Shortened(Program):
    def build(self):
        net = Net()
        net.words = nn.Embedding(3, 3, max_norm=0.5)
        net.scores = lambda x: net.last(net.first(net.words(x.argmax(-1))))
        return net


class WithNorm(Net):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def scores(self, x):
        return self.last(self.norm(self.first(x)))


class HookThatClips(Program):
    def __init__(self):
        super().__init__()
        self.model.first.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))


class Bounded(torch.autograd.Function):
    @staticmethod
    def forward(_context, x):
        return x * 1

    @staticmethod
    def backward(_context, gradient):
        return gradient.clamp(-1e-3, 1e-3)


class DistributedTwice(Program):
    def make_optimizer(self, parameters):
        import popdist_torch.horovod as hvd

        hvd.init()
        return hvd.DistributedOptimizer(super().make_optimizer(parameters))


class FullyFrozen(Program):
    """Nothing is trained: calls compute outputs."""

    def __init__(self):
        super().__init__()
        self.model.requires_grad_(requires_grad=False)


class PlainOptions(Program):
    """W3: PopTorch's own options find the job, too."""

    options = staticmethod(poptorch.Options)


class LoopInPlace(Program):
    """W5: the body of a loop changes what it gets; the loss still sees what was there before."""

    def build(self):
        class Looped(Net):
            def scores(self, x):
                if poptorch.isRunningOnIpu():
                    return super().scores(x + poptorch.for_loop(3, self.grow, [x])[0])
                return super().scores(x + 8 * x)

            def grow(self, x):
                x *= 2
                return x

        return Looped()


class SavedValueChanged(Program):
    """A module changes what the gradient of the one before it needs; torch itself refuses that."""

    def build(self):
        class Clamped(Net):
            def __init__(self):
                super().__init__()
                clamps = [nn.Hardtanh(0.4, 0.6, inplace=inplace) for inplace in (False, True)]
                self.clamps = nn.ModuleList(clamps)

            def scores(self, x):
                clamp = self.clamps[int(poptorch.isRunningOnIpu())]
                return self.last(clamp(torch.sigmoid(self.first(x))))

        return Clamped()


class Memory(Program):
    """A buffer keeps what forward writes, for later calls, without the way back to it."""

    accumulation = 1

    def build(self):
        class Remembering(Net):
            def __init__(self):
                super().__init__()
                self.register_buffer("memory", torch.zeros(3))

            def scores(self, x):
                scores = super().scores(x + self.memory)
                on_ipu = poptorch.isRunningOnIpu()
                written = self.first.weight if on_ipu else self.first.weight.detach()
                self.memory.copy_(written.mean(0))
                return scores

        return Remembering()


class OnDevice(Program):
    """Tensors that forward creates on the IPU."""

    def build(self):
        class Scaled(Net):
            def scores(self, x):
                device = "ipu:0" if poptorch.isRunningOnIpu() else "cpu"
                factors = torch.linspace(0.5, 1.5, 2, dtype=x.dtype, device=device)
                mask = torch.ones(2, 2, dtype=x.dtype, device=torch.device(device)).tril()
                return super().scores(x) * factors @ mask.to(device)

        return Scaled()


class PlainTensor(Program):
    """W8: a tensor that is no buffer is a constant; what forward does to it is forgotten."""

    def build(self):
        class Counting(Net):
            def __init__(self):
                super().__init__()
                self.count = torch.ones(1, dtype=torch.float64)

            def scores(self, x):
                if not poptorch.isRunningOnIpu():
                    return super().scores(2 * x)
                self.count += 1
                return super().scores(self.count * x)

        return Counting()


RIGHT = [
    PlainOptions,
    LoopInPlace,
    SavedValueChanged,
    Memory,
    OnDevice,
    PlainTensor,
    Captured,
    NoPart,
    InAList,
    Views,
    Tied,
    Functional,
    SparseBuffer,
    InnerLoss,
    Checkpointed,
    Sparse,
    SparseRows,
    Complex,
    Hooked,
    HookOfActivation,
    SteppedHook,
    ValidatedInInferenceMode,
    HooksOfTheOptimizer,
    Frozen,
    Grown,
    Scheduled,
    LoadedInBetween,
    Averaged,
    MetaFirst,
    TiedInBetween,
    LayerReplaced,
    Pruned,
    GroupAddedLater,
    NoiseOfOneSeed,
    FullyFrozen,
    NormalizedTogether,
]
REFUSED = {
    ReentrantShared: "PD022",
    AfterAccumulation: "PD312",
    OnMeta: "PD310",
    Lazy: "PD310",
    MetaTooEarly: "PD310",
    DistributedTwice: "PD306",
    # These would part the instances' models.
    ScheduledOnOne: "PD311",
    OtherValuesLoaded: "PD311",
    OtherState: "PD311",
    LoadedOnOne: "PD311",
    NoiseOfManySeeds: "PD007",
    WrittenByForward: "PD007",
    BufferOfOneInstance: "PD007",
    # These would train something else in silence.
    SynchronisedNorm: "PD315",
    HookThatClips: "PD314",
    Shortened: "PD007",
}


def train(kind):
    """Trains a program with popdist, on this instance's rows."""
    program = kind()
    made = options(program.options, program.accumulation)
    training = poptorch.trainingModel(program.model, made, program.optimizer)
    for call in range(CALLS):
        x, y = program.batch(call)
        here = popdist.getInstanceIndex()
        training(x[here], y[here])
        program.after(call, training)
    return program.weights()


def options(kind=popdist.poptorch.Options, accumulation=2):
    made = kind()
    made.Training.gradientAccumulation(accumulation)
    return made


def train_plainly(kind):
    """Trains it in plain torch, on the rows of both instances at once."""
    hvd.init()  # which normalizing over processes asks
    program = kind()
    for call in range(CALLS):
        x, y = program.batch(call)
        program.optimizer.zero_grad()
        loss = program.model(x.flatten(0, 1), y.flatten(0, 1))
        if loss.requires_grad:
            loss.backward()
        program.optimizer.step()
        program.after(call)
    return program.weights()


def rows_of(way):
    """Batches of a training program, by the way in which they are read."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(48, 3, generator=generator, dtype=torch.float64)
    data = torch.utils.data.TensorDataset(x, x[:, :2] * 2)
    apart = torch.utils.data.DistributedSampler(data, 2, popdist.getInstanceIndex())
    return {
        "torch loader": lambda: torch.utils.data.DataLoader(data, ROWS),
        "undivided loader": lambda: poptorch.DataLoader(
            options(), data, ROWS // 2, auto_distributed_partitioning=False
        ),
        "loader": lambda: poptorch.DataLoader(options(), data, ROWS // 2),
        "sampler": lambda: torch.utils.data.DataLoader(data, ROWS, sampler=apart),
        "one batch over and over": lambda: [data[:ROWS]] * 3,
        "no loader": lambda: [data[:ROWS], data[ROWS : 2 * ROWS]],
    }[way]()


SAME_ROWS = {
    "torch loader": True,
    "undivided loader": True,
    "loader": False,
    "sampler": False,
    "one batch over and over": False,
    "no loader": False,
}


def warned(way):
    """What a training program says that reads in this way."""
    program = Program()
    training = poptorch.trainingModel(program.model, options(), program.optimizer)
    with warnings_of_popdist() as said:
        for x, y in rows_of(way):
            training(x, y)
    return said


def epochs():
    """The rows of two epochs, and of the second one where the loader was resumed in between."""
    data = torch.utils.data.TensorDataset(torch.arange(50))
    loader = poptorch.DataLoader(options().randomSeed(4), data, 2, shuffle=True)
    first = [row for (rows,) in loader for row in rows.tolist()]
    resumed = poptorch.DataLoader(options().randomSeed(4), data, 2, shuffle=True)
    resumed.load_state_dict(loader.state_dict())
    second = [[row for (rows,) in one for row in rows.tolist()] for one in (loader, resumed)]
    return {"size": len(loader.dataset), "first": first, "second": second}


LOSSES = {
    "plus a term": lambda loss, weight: loss + weight.square().sum(),
    "times a factor": lambda loss, _: 3 * loss,
    "unchanged": lambda loss, _: loss,
    "marked": lambda loss, weight: poptorch.identity_loss(loss + weight.sum(), "none"),
    "beside a number": lambda loss, _: (loss, loss.detach() * 100),
}
UNMARKED = {"plus a term": True, "times a factor": True, "unchanged": False, "marked": False}
UNMARKED["beside a number"] = False


def warned_of_loss(way):
    """What is said where forward returns something made of the loss."""

    class Returning(Net):
        def forward(self, x, y):
            return LOSSES[way](F.mse_loss(self.scores(x), y), self.first.weight)

    with warnings_of_popdist() as said:
        alone = poptorch.Options()
        alone.Distributed.disable()
        poptorch.trainingModel(Returning(), alone)(torch.ones(2, 3), torch.ones(2, 2))
    return said


def masked_mean(scores, y):
    kept = (scores.detach()[:, 0] > 0).to(scores)
    return (((scores - y) ** 2).mean(1) * kept).sum() / kept.sum().clamp(min=1)


def train_all():
    answer = {f"warned, {way}": warned(way) for way in SAME_ROWS} | {"epochs": epochs()}
    for kind in RIGHT:
        answer[kind.__name__] = train(kind)
    for kind in REFUSED:
        with pytest.raises(PopdistError) as caught:
            train(kind)
        answer[kind.__name__] = caught.value.code
    return answer


@pytest.fixture(scope="module")
def answers():
    return run_job(train_all, instances=2, timeout=240)


@pytest.mark.parametrize("kind", RIGHT)
def test_what_is_written_is_what_trains(answers, kind):
    first, second = (answer[kind.__name__] for answer in answers)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, train_plainly(kind), rtol=0, atol=EXACT)
    start = reference.flat(kind().model) if kind in (Grown, Averaged) else kind().weights()
    size = min(len(start), len(first))
    moved = np.abs(first[:size] - start[:size]).max()
    assert (moved > 1e-3) == (kind is not FullyFrozen)


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_right_is_an_error_on_every_instance(answers, kind):
    assert [answer[kind.__name__] for answer in answers] == [REFUSED[kind]] * 2


@pytest.mark.parametrize("way", SAME_ROWS)
def test_a_loader_that_gives_all_instances_the_same_rows_is_named_once(answers, way):
    first, second = (answer[f"warned, {way}"] for answer in answers)
    assert second == []
    assert len(first) == SAME_ROWS[way]
    for warning in first:
        assert "[PD326]" in warning
        assert "DataLoader(TensorDataset of 48 samples, batch_size=6, sampler=" in warning
        assert "poptorch.DataLoader(options, ...)" in warning


def test_a_loader_knows_its_part_and_resumes_with_the_next_epoch(answers):
    """W6 and W9: 48 of 50 rows are whole global batches."""
    seen = [answer["epochs"] for answer in answers]
    assert len({row for one in seen for row in one["first"]}) == 48
    for one in seen:
        assert one["size"] == len(one["first"]) == 24
        went_on, resumed = one["second"]
        assert resumed == went_on
        assert len(resumed) == 24


@pytest.mark.parametrize("way", LOSSES)
def test_a_value_that_is_returned_in_place_of_the_loss_is_named(way):
    said = warned_of_loss(way)
    assert len(said) == UNMARKED[way]
    for warning in said:
        assert "[PD316]" in warning
        assert "identity_loss" in warning


def clamp(model):
    with torch.no_grad():
        model.first.weight.clamp_(-0.1, 0.1)


def replace_memory(model):
    model.first.weight.data = model.first.weight.data * 0.5


CHANGES = {
    "clamped": (lambda model, _: clamp(model), True),
    "in other memory": (lambda model, _: replace_memory(model), True),
    "clamped and copied": (lambda m, training: (clamp(m), training.copyWeightsToDevice()), False),
    "loaded": (lambda model, training: training.load_state_dict(model.state_dict()), False),
    "read": (lambda model, _: [parameter.sum() for parameter in model.parameters()], False),
    "frozen": (lambda model, _: model.first.requires_grad_(requires_grad=False), False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_that_the_device_does_not_get_are_named_once(change):
    function, wrong = CHANGES[change]
    alone = poptorch.Options()
    alone.Distributed.disable()
    model = Net()
    training = poptorch.trainingModel(model, alone)
    inference = poptorch.inferenceModel(model, alone.clone())
    with warnings_of_popdist() as said:
        for _ in range(3):
            training(torch.ones(2, 3), torch.ones(2, 2))
            function(model, training)
            inference(torch.ones(2, 3), torch.ones(2, 2))
    assert len(said) == wrong
    for warning in said:
        assert "[PD329]" in warning
        assert "first.weight" in warning
        assert "copyWeightsToDevice()" in warning
