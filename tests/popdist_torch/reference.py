"""Plain torch doing what a job of many replicas must come to: one process, no popdist.

Every global replica is a deep copy of the model with buffers and a random state of its own. Per
update, each copy takes the master's weights, runs its micro-batches and hands over its gradients.
"""

import copy

import torch


def train(model, batches, make_optimizer, *, reduction="mean", stream_seeds=None, clip=None):
    """Trains in place.

    Args:
        model: Module whose forward(x, y) returns (output, loss).
        batches: x [D, A, R, mb, ...] and y [D, A, R, mb].
        make_optimizer: Parameters -> optimizer.
        reduction: "mean" divides gradients by A * R.
        stream_seeds: One seed per replica for its random numbers.
        clip: Largest norm of all gradients.

    Returns:
        The replicas' copies, and losses [D, A, R].
    """
    x, y = batches
    iterations, accumulation, replicas = x.shape[:3]
    copies = [copy.deepcopy(model) for _ in range(replicas)]
    states = [torch.Generator().manual_seed(s).get_state() for s in stream_seeds or range(replicas)]
    optimizer = make_optimizer(model.parameters())
    losses = torch.zeros(iterations, accumulation, replicas, dtype=x.dtype)
    host_state = torch.get_rng_state()
    for d in range(iterations):
        optimizer.zero_grad()
        for r, twin in enumerate(copies):
            _take_weights(twin, model)
            torch.set_rng_state(states[r])
            for a in range(accumulation):
                _, loss = twin(x[d, a, r], y[d, a, r])
                loss.backward()
                losses[d, a, r] = loss.detach()
            states[r] = torch.get_rng_state()
            _hand_over_gradients(twin, model)
        if reduction == "mean":
            _divide_gradients(model, accumulation * replicas)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    torch.set_rng_state(host_state)
    return copies, losses


@torch.no_grad()
def _take_weights(twin, model):
    twin.zero_grad()
    for mine, master in zip(twin.parameters(), model.parameters(), strict=True):
        mine.copy_(master)


def _hand_over_gradients(twin, model):
    for mine, master in zip(twin.parameters(), model.parameters(), strict=True):
        if mine.grad is not None:
            summed = mine.grad if master.grad is None else master.grad + mine.grad
            master.grad = summed.clone()


def _divide_gradients(model, divisor):
    for master in model.parameters():
        if master.grad is not None:
            master.grad /= divisor


def flat(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).double().cpu().numpy()


def running_statistics(module):
    return torch.cat(
        [b.detach().double().reshape(-1) for b in module.buffers()] or [torch.zeros(0)]
    ).numpy()
