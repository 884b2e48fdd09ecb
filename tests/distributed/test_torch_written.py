"""What is written is what trains: plain loops that compute and change gradients.

Each program runs unchanged in one process of plain torch on the global batch, and on two real ranks
with other rows on each. The weights have to be the same.
"""

import functools
import warnings

import pytest
import torch
import torch.nn.utils.prune
from torch import nn
from torch.utils.checkpoint import checkpoint

import popdist_torch
import popdist_torch.horovod as hvd
from tests.distributed.jobs import run_job
from tests.distributed.torch_collectives import COLLECTIVES
from tests.distributed.torch_loops import RANKS, STEPS, Net, Programs, loss_of, sgd, step_once
from tests.distributed.torch_norms import NORMS

PROGRAMS = program = Programs()
PROGRAMS.update(COLLECTIVES)
PROGRAMS.update(NORMS)


@program
def clipped(world):
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model


@program
def clipped_with_declared_accumulation(world):
    model = Net()
    optimizer = world.optimizer(sgd(model), model, backward_passes_per_step=2)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(2):
            (loss_of(model, world.rows(2 * step + part)) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model


@program
def clipped_with_undeclared_accumulation(world):
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for micro in range(2 * STEPS):
        (loss_of(model, world.rows(micro)) / 2).backward()
        if micro % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad()
    return model


@program
def clipped_with_no_sync(world):
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        if world.ranks > 1:
            with optimizer.no_sync():
                (loss_of(model, world.rows(2 * step)) / 2).backward()
        else:
            (loss_of(model, world.rows(2 * step)) / 2).backward()
        (loss_of(model, world.rows(2 * step + 1)) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        optimizer.zero_grad()
    return model


@program
def sum_of_gradients_that_are_never_reset(world):
    """Gradients of earlier steps stay; a sum must not count them twice."""
    model = Net()
    optimizer = sgd(model)
    if world.ranks > 1:
        optimizer = world.optimizer(optimizer, model, op=hvd.Sum)
    for step in range(STEPS):
        scale = RANKS if world.ranks == 1 else 1  # the sum of means is the mean of all, times ranks
        (loss_of(model, world.rows(step)) * scale / 10).backward()
        optimizer.step()
    return model


@program
def two_losses_and_two_optimizers(world):
    """As a generator and its judge: each loss leaves gradients in the other's parameters."""
    model, judge = Net(), Net()
    ours, theirs = (
        world.optimizer(sgd(model), model),
        world.optimizer(torch.optim.Adam(judge.parameters(), lr=0.01), judge),
    )
    for step in range(STEPS):
        x, y = world.rows(step)
        model.zero_grad()
        nn.functional.cross_entropy(model(x) + judge(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        ours.step()
        judge.zero_grad()
        loss_of(judge, (x * 2, y)).backward()
        nn.utils.clip_grad_value_(judge.parameters(), 0.01)
        theirs.step()
    return nn.ModuleList([model, judge])


@program
def scaled_and_unscaled(world):
    """The third step overflows on one rank; all of them must leave it out."""
    model = Net(torch.float32)
    optimizer = world.optimizer(sgd(model), model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = world.rows(step, dtype=torch.float32)
        if step == 2 and world.rank == 0:
            x[0, 0] = float("inf")
        scaler.scale(loss_of(model, (x, y))).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 2.0**8
    return model


@program
def autocast(world):
    model = Net(torch.float32)
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, world.rows(step, dtype=torch.float32))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model


@program
def compiled(world):
    """Compiled once: neither hooks nor the exchange make Dynamo look again."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    run = torch.compile(model, backend="aot_eager")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(run, world.rows(step)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    return model


@program
def lbfgs_with_line_search(world):
    model = Net()
    optimizer = world.optimizer(
        torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe"), model
    )
    for step in range(STEPS):

        def closure(step=step):
            optimizer.zero_grad()
            loss = loss_of(model, world.rows(step, count=16))
            loss.backward()
            return loss

        optimizer.step(closure)
    return model


@program
def closure_that_clips(world):
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):

        def closure(step=step):
            optimizer.zero_grad()
            loss = loss_of(model, world.rows(step))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            return loss

        optimizer.step(closure)
    return model


@program
def sharpness_aware(world):
    """Weights move between two passes of a step, by the gradients of the first."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        with torch.no_grad():
            moved = [0.1 * parameter.grad for parameter in model.parameters()]
            torch._foreach_add_(list(model.parameters()), moved)
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), moved)
        optimizer.step()
    return model


def checkpointed(world, *, reentrant):
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = world.rows(step)
        hidden = checkpoint(model.first, x.requires_grad_(), use_reentrant=reentrant)
        nn.functional.cross_entropy(model.last(torch.tanh(hidden)), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model


def wholly_checkpointed(world, *, clip):
    """No gradient comes from the outer pass, so only the step ends the exchange."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = world.rows(step)
        hidden = checkpoint(model, x.requires_grad_(), use_reentrant=True)
        nn.functional.cross_entropy(hidden, y).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model


PROGRAMS["checkpointed"] = functools.partial(checkpointed, reentrant=False)
PROGRAMS["checkpointed, reentrant"] = functools.partial(checkpointed, reentrant=True)
PROGRAMS["wholly checkpointed, reentrant"] = functools.partial(wholly_checkpointed, clip=False)


@program
def sparse_embedding(world):
    model = nn.Sequential(nn.Embedding(9, 5, sparse=True, dtype=torch.float64), Net())
    torch.nn.init.uniform_(model[0].weight, generator=torch.Generator().manual_seed(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    optimizer = world.optimizer(optimizer, model, sparse_as_dense=True)
    for step in range(STEPS):
        optimizer.zero_grad()
        _, y = world.rows(step)
        loss_of(model, (y * 2 + 1, y)).backward()
        optimizer.step()
    return model


@program
def rows_for_sparse_adam(world):
    """It leaves rows alone that no process has, and refuses dense gradients."""
    model = nn.Sequential(nn.Embedding(12, 5, sparse=True, dtype=torch.float64), Net())
    torch.nn.init.uniform_(model[0].weight, generator=torch.Generator().manual_seed(2))
    sparse = torch.optim.SparseAdam(model[0].parameters(), lr=0.1)
    sparse = world.optimizer(sparse, model[0], sparse_as_dense=True)
    dense = world.optimizer(sgd(model[1]), model[1])
    for step in range(STEPS):
        model.zero_grad()
        x, y = world.rows(step)
        words = (x[:, 0].abs() * 5).long().clamp(max=11)
        for part in (slice(0, None, 2), slice(1, None, 2)):
            (loss_of(model, (words[part], y[part])) / 2).backward()
        dense.step()
        sparse.step()
        sparse.zero_grad()
    return model


@program
def complex_weights(world):
    model = Net()
    model.phase = nn.Parameter(torch.linspace(0, 1, 35, dtype=torch.complex128).view(5, 7))
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = world.rows(step)
        hidden = torch.tanh((x.to(torch.complex128) @ (model.phase * (1 + 2j))).abs())
        nn.functional.cross_entropy(model.last(hidden), y).backward()
        nn.utils.clip_grad_norm_([model.phase], 0.05)
        optimizer.step()
    model.phase = nn.Parameter(torch.view_as_real(model.phase.detach()))
    return model


@program
def per_parameter_hooks(world):
    """A hook that is linear in the gradient gives the same before and after averaging."""
    model = Net()
    model.first.weight.register_hook(lambda gradient: gradient * 0.5)
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        optimizer.step()
    return model


@program
def gradients_of_torch_func(world):
    """No backward pass runs; the program sets the gradients itself."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        x, y = world.rows(step)

        def loss(parameters, x=x, y=y):
            scores = torch.func.functional_call(model, parameters, (x,))
            return nn.functional.cross_entropy(scores, y)

        gradients = torch.func.grad(loss)(
            {name: p.detach() for name, p in model.named_parameters()}
        )
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name]
        optimizer.step()
    return model


@program
def clipped_gradients_of_autograd_grad(world):
    """Gradients that the program sets are shared before it changes them."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        gradients = torch.autograd.grad(loss_of(model, world.rows(step)), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        if world.ranks > 1:
            optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model


@program
def branches_of_single_ranks(world):
    """Some layers have a gradient on one rank only."""
    model = nn.ModuleList([Net(), Net()])
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = world.rows(step)
        if world.ranks > 1:
            loss = loss_of(model[world.rank], (x, y))
        else:
            halves = zip(x.chunk(RANKS), y.chunk(RANKS), strict=True)
            loss = sum(loss_of(m, half) for m, half in zip(model, halves, strict=True)) / RANKS
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model


def in_type(world, dtype):
    model = Net(dtype)
    optimizer = world.optimizer(torch.optim.SGD(model.parameters(), lr=0.25), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, world.rows(step, dtype=dtype)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model


PROGRAMS["float16"] = functools.partial(in_type, dtype=torch.float16)
PROGRAMS["bfloat16"] = functools.partial(in_type, dtype=torch.bfloat16)


def hooked(world, *, tensor=None, module=None, **kwargs):
    """A hook of what a layer returns, or of the layer."""
    model = Net()
    scale = RANKS if world.ranks == 1 and kwargs else 1  # sums of means
    optimizer = world.optimizer(torch.optim.SGD(model.parameters(), lr=0.2), model, **kwargs)
    if module is not None:
        model.last.register_full_backward_hook(module)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = world.rows(step)
        hidden = torch.tanh(model.first(x))
        if tensor is not None:
            hidden.register_hook(tensor)
        (nn.functional.cross_entropy(model.last(hidden), y) * scale).backward()
        optimizer.step()
    return model


def bounded(gradient):
    return gradient.clamp(-0.01, 0.01)


def bounded_input(_module, given, _out):
    return (bounded(given[0]),)


def of_global_batch(world, hook):
    """What the program registers; one process of plain torch knows the hook alone."""
    return hook if world.ranks == 1 else popdist_torch.global_batch_hook(hook)


PROGRAMS["hook of an activation that scales"] = functools.partial(
    hooked, tensor=lambda gradient: gradient * 0.3
)
PROGRAMS["hook of a layer that masks"] = functools.partial(
    hooked, module=lambda _module, given, _out: (torch.where(given[0] > 0, given[0], 0),)
)
PROGRAMS["hook of an activation that clips sums"] = functools.partial(
    hooked, tensor=bounded, op=hvd.Sum
)
PROGRAMS["hook of an activation that clips as one process"] = lambda world: hooked(
    world, tensor=of_global_batch(world, bounded)
)
PROGRAMS["hook of a layer that clips as one process"] = lambda world: hooked(
    world, module=of_global_batch(world, bounded_input)
)


class _Bounded(torch.autograd.Function):
    @staticmethod
    def forward(_context, x):
        return x * 1

    @staticmethod
    def backward(_context, gradient):
        return bounded(gradient)


class _BoundedAsOneProcess(_Bounded):
    backward = staticmethod(popdist_torch.global_batch_hook(_Bounded.backward))


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(context, gradient):
        return -0.3 * gradient * (context.saved_tensors[0] > 0)


class _Gathered(torch.autograd.Function):
    """As programs have it for torch.distributed; asked twice, it would wait for the other rank."""

    @staticmethod
    def forward(context, x, rank):
        context.rank, context.rows = rank, len(x)
        return hvd.allgather(x.detach())

    @staticmethod
    def backward(context, gradient):
        total = hvd.allreduce(gradient, op=hvd.Sum)
        return total[context.rank * context.rows :][: context.rows], None


def through_function(world, function):
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = world.rows(step)
        hidden = function(torch.tanh(model.first(x)))
        nn.functional.cross_entropy(model.last(hidden), y).backward()
        optimizer.step()
    return model


PROGRAMS["function that clips as one process"] = lambda world: through_function(
    world, (_Bounded if world.ranks == 1 else _BoundedAsOneProcess).apply
)
PROGRAMS["function that reverses"] = lambda world: through_function(world, _Reversed.apply)


@program
def gathered_by_a_function_of_the_program(world):
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, _ = world.rows(step)
        scores = model(x)
        everyone = _Gathered.apply(scores, world.rank) if world.ranks > 1 else scores
        likeness = scores @ everyone.T
        places = torch.arange(len(x)) + world.rank * len(x)
        nn.functional.cross_entropy(likeness, places).backward()
        optimizer.step()
    return model


@program
def projected_hook(world):
    """A hook that is linear, but not element by element."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    model.first.weight.register_hook(lambda gradient: gradient - gradient.mean(1, keepdim=True))
    for step in range(STEPS):
        step_once(model, optimizer, world.rows(step))
    return model


def kept(world, *, keep):
    """Gradients of the last step, which the program has kept, are added to those of this one."""
    model, before = Net(), None
    optimizer = world.optimizer(torch.optim.SGD(model.parameters(), lr=0.2), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, world.rows(step)).backward()
        now = [keep(parameter.grad) for parameter in model.parameters()]
        for parameter, old in zip(model.parameters(), before or [], strict=before is not None):
            parameter.grad = parameter.grad + 0.5 * old.view_as(parameter)
        before = now
        optimizer.step()
    return model


PROGRAMS["kept gradients"] = functools.partial(kept, keep=lambda gradient: gradient)
PROGRAMS["kept views of gradients"] = functools.partial(
    kept, keep=lambda gradient: gradient.view(-1)
)


@program
def gradients_of_two_tasks_projected(world):
    """Each task's gradients are kept while the other's are computed."""
    model = Net()
    optimizer = world.optimizer(torch.optim.SGD(model.parameters(), lr=0.2), model)
    for step in range(STEPS):
        tasks = []
        for task in range(2):
            optimizer.zero_grad()
            loss_of(model, world.rows(2 * step + task)).backward()
            tasks.append([parameter.grad for parameter in model.parameters()])
        one, other = (nn.utils.parameters_to_vector(gradients) for gradients in tasks)
        one = one - (one @ other) / (other @ other) * other
        parts = one.split([parameter.numel() for parameter in model.parameters()])
        for parameter, part in zip(model.parameters(), parts, strict=True):
            parameter.grad = part.view_as(parameter)
        optimizer.step()
    return model


@program
def memory_of_gradients_replaced(world):
    """``data`` gives a gradient other memory, which later passes add to."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        loss_of(model, world.rows(step)).backward()
        optimizer.step()
        for parameter in model.parameters():
            parameter.grad.data = parameter.grad.data * 0.5
    return model


def two_optimizers_of_one_model(world, *, width, **kwargs):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 3)).double()
    scale = RANKS if world.ranks == 1 and kwargs else 1  # sums of means
    optimizers = [
        world.optimizer(torch.optim.SGD(model.parameters(), lr=rate), model, **kwargs)
        for rate in (0.01, 0.02)
    ]
    for step in range(2 * STEPS):
        optimizers[step % 2].zero_grad()
        (loss_of(model, world.rows(step)) * scale).backward()
        optimizers[step % 2].step()
    return model


PROGRAMS["two optimizers of one model"] = functools.partial(two_optimizers_of_one_model, width=7)
PROGRAMS["two optimizers of one large model"] = functools.partial(
    two_optimizers_of_one_model, width=30_000
)
PROGRAMS["two optimizers of one model, sums"] = lambda world: two_optimizers_of_one_model(
    world, width=7, op=hvd.Sum
)
PROGRAMS["two optimizers of one large model, sums"] = lambda world: two_optimizers_of_one_model(
    world, width=30_000, op=hvd.Sum
)


class Backtracking(torch.optim.Optimizer):
    """An optimizer of the program's own, which decides by the loss."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 4.0})

    def step(self, closure):
        closure = torch.enable_grad()(closure)
        before = closure().item()
        parameters = self.param_groups[0]["params"]
        gradients = [parameter.grad.clone() for parameter in parameters]
        starts = [parameter.detach().clone() for parameter in parameters]
        rate = self.param_groups[0]["lr"]
        for _ in range(6):
            with torch.no_grad():
                for parameter, start, slope in zip(parameters, starts, gradients, strict=True):
                    parameter.copy_(start - rate * slope)
            squares = sum(float(slope.square().sum()) for slope in gradients)
            if closure().item() < before - 0.1 * rate * squares:
                break
            rate /= 3


@program
def line_search_of_the_programs_own(world):
    model = Net()
    optimizer = world.optimizer(Backtracking(model.parameters()), model)
    for step in range(STEPS):

        def closure(step=step):
            optimizer.zero_grad()
            loss = loss_of(model, world.rows(step))
            loss.backward()
            return loss

        optimizer.step(closure)
    return model


@program
def gradient_penalty(world):
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = world.rows(step)
        scores = model(x.requires_grad_())
        (slopes,) = torch.autograd.grad(scores.square().sum(), x, create_graph=True)
        penalty = slopes.square().sum(1).mean()
        (nn.functional.cross_entropy(scores, y) + penalty).backward()
        optimizer.step()
    return model


@program
def last_group_incomplete(world):
    """Each epoch ends with fewer backward passes than declared."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model, backward_passes_per_step=3)
    for micro in range(10):
        (loss_of(model, world.rows(micro)) / 3).backward()
        if micro % 5 in (2, 4):
            optimizer.step()
            optimizer.zero_grad()
    return model


@program
def compiled_training_step(world):
    """Dynamo traces the loop, so it calls the optimizer's hooks."""
    model = Net()
    optimizer = world.optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    torch._dynamo.reset()
    warnings.simplefilter("ignore", DeprecationWarning)  # of torch's own, which Dynamo calls

    @torch.compile(backend="eager")
    def train(x, y):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    for step in range(STEPS):
        train(*world.rows(step))
    return model


class _WritesItsGradient(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x)
        context.weight = weight
        return x @ weight.T

    @staticmethod
    def backward(context, gradient):
        (x,), weight = context.saved_tensors, context.weight
        own = gradient.T @ x
        weight.grad = own if weight.grad is None else weight.grad + own
        return gradient @ weight, None


@program
def gradient_that_a_function_writes(world):
    """As fused accumulation does: autograd never sees the gradient of the weight."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = world.rows(step)
        hidden = _WritesItsGradient.apply(x.requires_grad_(), model.first.weight)
        scores = model.last(torch.tanh(hidden + model.first.bias))
        nn.functional.cross_entropy(scores, y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return model


@program
def ensemble_by_vmap(world):
    """The parameters of three models are stacked, and belong to none of them."""
    models = [nn.Linear(5, 3, dtype=torch.float64) for _ in range(3)]
    torch.manual_seed(1)
    for parameter in nn.ModuleList(models).parameters():
        nn.init.normal_(parameter)
    stacked, buffers = torch.func.stack_module_state(models)
    trained = nn.ParameterDict({k.replace(".", "_"): v.detach() for k, v in stacked.items()})
    optimizer = world.optimizer(sgd(trained), trained)

    def scores(parameters, others, x):
        return torch.func.functional_call(models[0], (parameters, others), (x,))

    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = world.rows(step)
        now = {name: trained[name.replace(".", "_")] for name in stacked}
        found = torch.vmap(scores, in_dims=(0, 0, None))(now, buffers, x)
        sum(nn.functional.cross_entropy(one, y) for one in found).backward()
        optimizer.step()
    return trained


@program
def gradients_of_single_rows_clipped(world):
    """As for differential privacy: each row's gradient is bounded, and the mean trains."""
    model = Net()
    optimizer = world.optimizer(sgd(model), model)

    def loss(named, x, y):
        scores = torch.func.functional_call(model, named, (x[None],))
        return nn.functional.cross_entropy(scores, y[None])

    of_rows = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))
    for step in range(STEPS):
        x, y = world.rows(step)
        found = of_rows({name: p.detach() for name, p in model.named_parameters()}, x, y)
        norms = torch.stack([rows.flatten(1).norm(dim=1) for rows in found.values()]).norm(dim=0)
        shares = (0.1 / norms).clamp(max=1) / len(x)
        for name, parameter in model.named_parameters():
            parameter.grad = (found[name].flatten(1).T @ shares).view_as(parameter)
        optimizer.step()
    return model


@program
def spectral_norms(world):
    """Buffers follow the weights, not the data."""
    model = Net()
    nn.utils.parametrizations.spectral_norm(model.first)
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        step_once(model, optimizer, world.rows(step))
    return model


@program
def pruned_in_mid_training(world):
    model = Net()
    optimizer = world.optimizer(sgd(model), model)
    for step in range(STEPS):
        if step == 1:
            nn.utils.prune.l1_unstructured(model.first, "weight", 0.3)
        step_once(model, optimizer, world.rows(step))
    return model


@program
def meta_learning(world):
    """The gradient flows through an inner update on rows that all ranks have."""
    model = Net()
    optimizer = world.optimizer(torch.optim.Adam(model.parameters(), lr=0.01), model)
    x, y = torch.ones(2, 5, dtype=torch.float64), torch.tensor([0, 2])
    for step in range(STEPS):
        optimizer.zero_grad()
        named = dict(model.named_parameters())
        inner = nn.functional.cross_entropy(model(x), y)
        found = torch.autograd.grad(inner, list(named.values()), create_graph=True)
        fast = {name: named[name] - 0.1 * one for name, one in zip(named, found, strict=True)}
        rows, labels = world.rows(step)
        scores = torch.func.functional_call(model, fast, (rows,))
        nn.functional.cross_entropy(scores, labels).backward()
        optimizer.step()
    return model


@pytest.fixture(scope="module")
def answers():
    return run_job(run_all, instances=RANKS)


def run_all():
    return PROGRAMS.run()


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_trains_as_one_process_on_the_global_batch(answers, name):
    tolerances = {"scaled_and_unscaled": 3e-6, "autocast": 2e-3, "float16": 1e-3, "bfloat16": 1e-2}
    tolerances |= {"normalized_under_autocast": 2e-3, "normalized_far_from_zero": 1e-4}
    tolerances |= {"penalty_through_norms": 1e-9}
    PROGRAMS.compare(answers, name, tolerances.get(name, 1e-12))
