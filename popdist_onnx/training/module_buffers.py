"""Buffers that a torch module writes while it computes, and those that an exported file updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from popdist_onnx.errors import popart_exception
from popdist_onnx.training.module_runs import as_trained, flat, to_array

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import onnx
    import torch

    from popdist_onnx.training.module_runs import Array

_SHOWN = 6


def require_carried(
    proto: onnx.ModelProto,
    aliases: dict[str, set[str]],
    lasting: Collection[str],
    module: torch.nn.Module,
) -> None:
    """Refuses a module with state that the file does not update.

    Raises:
        popart_exception: A buffer would keep its content for ever.
    """
    if lost := sorted({*lasting} - _carried(proto, aliases)):
        raise _lost(lost, module)


def written_buffers(
    module: torch.nn.Module, arguments: Sequence[Any]
) -> tuple[dict[str, Array], set[str]]:
    """Buffers that forward writes, after one pass; and those that are state, not a cache.

    A cache is written once: a second pass leaves it as it is, and gives the same outputs.
    """
    import torch

    if not any(True for _ in module.buffers()):
        return {}, set()
    counters = {
        f"{name}.num_batches_tracked".lstrip(".")
        for name, one in module.named_modules()
        if isinstance(one, torch.nn.modules.batchnorm._NormBase)  # noqa: SLF001 - their only base
        and (one.momentum is not None or not one.track_running_stats)
    }
    outputs, states = [], [_buffers(module)]
    with as_trained(module):
        for _ in range(2):
            made = module(*[one.clone() for one in arguments])
            outputs.append([to_array(one) for one in flat(made)])
            states.append(_buffers(module))
    before, once, twice = states
    written = {n for n, old in before.items() if _differ(old, once[n])} - counters
    lasting = {name for name in written if _differ(once[name], twice[name])}
    if any(_differ(one, other) for one, other in zip(*outputs, strict=True)):
        lasting = written
    return {name: once[name] for name in written}, lasting


def _carried(proto: onnx.ModelProto, aliases: dict[str, set[str]]) -> set[str]:
    """The buffers that a file updates: running statistics of batch normalisation."""
    stored = {tensor.name for tensor in proto.graph.initializer}
    made = {node.output[0]: node for node in proto.graph.node if node.op_type == "Identity"}
    found = set()
    for node in proto.graph.node:
        if node.op_type == "BatchNormalization" and len(node.output) > 1:
            for name in node.input[3:5]:
                source = name
                while source in made:
                    source = made[source].input[0]
                found |= {source} & stored
    return {name for name, others in aliases.items() if others & found}


def aliases_of(module: torch.nn.Module, prefix: str) -> dict[str, set[str]]:
    """All names of each buffer in the file, by its first name in the module."""
    names: dict[int, set[str]] = {}
    for name, one in module.named_buffers(remove_duplicate=False):
        names.setdefault(id(one), set()).add(name.removeprefix(prefix))
    return {name: names[id(one)] for name, one in module.named_buffers()}


def _buffers(module: torch.nn.Module) -> dict[str, Array]:
    return {name: to_array(one) for name, one in module.named_buffers()}


def _differ(one: Array, other: Array) -> bool:
    return one.shape != other.shape or one.tobytes() != other.tobytes()


def _lost(names: Sequence[str], module: torch.nn.Module) -> popart_exception:
    owners = {name.rpartition(".")[0] for name in names}
    if any(getattr(module.get_submodule(owner), "momentum", 0) is None for owner in owners):
        how = "give the normalisation a momentum: without one it divides by the number of its steps"
    else:
        how = "compute the buffer from inputs or parameters; check=False keeps it as it is for ever"
    return popart_exception(
        "PD594",
        "the forward method of the module writes buffers that an exported file does not update",
        value=", ".join(names[:_SHOWN])
        + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""),
        accepted="running statistics of batch normalisation with a momentum",
        hint=how,
    )
