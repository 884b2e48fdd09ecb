"""The ways to train a model: each is a function that takes one step on given data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    Step = Callable[[], None]

_SEED = 1


def plain(workload: Any, data: Any, *, compiled: bool = False) -> tuple[torch.nn.Module, Step]:
    """Plain torch, with nothing exchanged: what computing alone takes."""
    model, optimizer = _built(workload)
    return model, _loop(torch.compile(model) if compiled else model, optimizer, data)


def ddp(workload: Any, data: Any, *, compiled: bool = False) -> tuple[torch.nn.Module, Step]:
    """DistributedDataParallel over gloo, as it comes."""
    model, optimizer = _built(workload)
    wrapped: Any = torch.nn.parallel.DistributedDataParallel(model)
    return model, _loop(torch.compile(wrapped) if compiled else wrapped, optimizer, data)


def ddp_hook(workload: Any, data: Any) -> tuple[torch.nn.Module, Step]:
    """DistributedDataParallel over popdist's exchange, else as it comes."""
    import popdist_torch

    model, optimizer = _built(workload)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(None, popdist_torch.ddp_hook)
    return model, _loop(wrapped, optimizer, data)


def accelerate(workload: Any, data: Any) -> tuple[torch.nn.Module, Step]:
    """What a program of ``accelerate launch`` runs; poprun sets the variables that it finds."""
    from accelerate import Accelerator

    model, optimizer = _built(workload)
    accelerator = Accelerator(cpu=True)
    wrapped, prepared = accelerator.prepare(model, optimizer)

    def step() -> None:
        prepared.zero_grad()
        accelerator.backward(wrapped(*data))
        prepared.step()

    return model, step


def horovod(workload: Any, data: Any) -> tuple[torch.nn.Module, Step]:
    """Horovod's own DistributedOptimizer, as it comes."""
    import horovod.torch as hvd

    model, optimizer = _built(workload)
    wrapped = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    return model, _loop(model, wrapped, data)


def popdist_loop(
    workload: Any, data: Any, *, compiled: bool = False
) -> tuple[torch.nn.Module, Step]:
    """popdist_torch.horovod in the same loop."""
    import popdist_torch.horovod as hvd

    model, optimizer = _built(workload)
    wrapped = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    return model, _loop(torch.compile(model) if compiled else model, wrapped, data)


def popdist_model(
    workload: Any, data: Any, *, compiled: bool = False
) -> tuple[torch.nn.Module, Step]:
    """popdist_torch.trainingModel."""
    import popdist.poptorch
    import popdist_torch as poptorch

    model, optimizer = _built(workload)
    options = popdist.poptorch.Options().randomSeed(_SEED)
    options.Jit.torchCompile(enabled=compiled)
    training = poptorch.trainingModel(model, options, optimizer)

    def step() -> None:
        training(*data)

    return model, step


def exchange(workload: Any) -> tuple[torch.nn.Module, Step]:
    """The sums of all gradients in popdist's slices, while nothing is computed or copied."""
    model, _ = _built(workload)
    send, receive = _alone(model, "alone")

    def step() -> None:
        send()
        receive()

    return model, step


def beside(workload: Any, data: Any) -> tuple[torch.nn.Module, Step]:
    """Plain torch beside the sums of as many bytes, which wait for no gradient: a limit."""
    model, compute = plain(workload, data)
    return model, _beside(compute, workload, "beside")


def beside_ddp(workload: Any, data: Any) -> tuple[torch.nn.Module, Step]:
    """The same beside a DDP whose hook sends nothing: the limit of every hook."""
    model, optimizer = _built(workload)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(None, _unchanged)
    return model, _beside(_loop(wrapped, optimizer, data), workload, "beside DDP")


def _unchanged(_: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


# DDP compares annotations with types, not with their text.
_unchanged.__annotations__ |= {
    "bucket": torch.distributed.GradBucket,  # type: ignore[attr-defined]  # not listed there
    "return": torch.futures.Future[torch.Tensor],
}


def _beside(compute: Step, workload: Any, name: str) -> Step:
    send, receive = _alone(_built(workload)[0], name)

    def step() -> None:
        send()
        compute()
        receive()

    return step


def _alone(model: torch.nn.Module, name: str) -> tuple[Step, Step]:
    """Starts, and ends, an exchange of gradients that nobody computes."""
    import horovod.torch as hvd

    from popdist_torch.gradient_exchange import InstanceSum

    names, parameters = zip(*[*model.named_parameters()][::-1], strict=True)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    total = InstanceSum(parameters, names, hvd, f"benchmark, {name}")

    def send() -> None:
        total.begin()
        for index in range(len(parameters)):
            total.collect(index)

    return send, total.finish


def _built(workload: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(_SEED)
    model = workload.make()
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def _loop(model: Callable[..., Any], optimizer: torch.optim.Optimizer, data: Any) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        model(*data).backward()
        optimizer.step()

    return step
