"""Whether an exported file computes what the module of torch computes.

torch's exporters write some operators wrongly without an error: the one that traces leaves out
`torch.repeat_interleave`, for example, and keeps one branch of an ``if``. So the file is run once,
with dropout switched off on both sides. What the module writes into its buffers is compared too: a
file can carry the running statistics of batch normalisation, but no other state.
"""

from __future__ import annotations

import copy
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.load import load
from popdist_onnx.graph.names import updated
from popdist_onnx.lowering.apply import lower
from popdist_onnx.runtime.compiled import Execution, make_session
from popdist_onnx.session.pipeline import read_with_shapes
from popdist_onnx.transforms.statistics import running_statistics
from popdist_onnx.types import DataType, InputShapeInfo, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

logger = logging.getLogger("popdist.onnx")

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

_TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1}
_SINGLE = 1e-3
_SHOWN = 6
_STATE = 1e-4
_ROUNDING = 30
"""How many times as far from the result in double precision as torch's own an output may be."""

RANDOM = {
    *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike"),
    *("RandomUniform", "RandomUniformLike"),
}

_WITHOUT_DROPOUT = {
    *("dropout", "dropout1d", "dropout2d", "dropout3d"),
    *("alpha_dropout", "feature_alpha_dropout", "feature_dropout"),
}
_RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
# Places of the ratio among the arguments.
_RECURRENT_DROPOUT, _PACKED_DROPOUT, _ATTENTION_DROPOUT = 5, 6, 4
_PACKED_WEIGHTS = 3


def check_export(
    proto: onnx.ModelProto, module: torch.nn.Module, arguments: Sequence[Any], exporter: str
) -> None:
    """Runs an exported module once, and compares its outputs with those of the module.

    A module that draws random numbers of its own cannot be compared; a log message reports it.

    Args:
        proto: The exported model, in training mode.
        module: The module.
        arguments: Its inputs.
        exporter: What exported the module, for the error.

    Raises:
        popart_exception: The exported model cannot be run, an output differs, or the module writes
            a buffer that the file does not update in the same way.
    """
    written, lasting = _written_buffers(module, arguments)
    if lost := sorted(lasting - _carried(proto, module)):
        raise _lost(lost, module)
    drawn = sorted({node.op_type for node in proto.graph.node} & RANDOM)
    if drawn:
        logger.info("an exported module draws random numbers (%s): it is not compared", drawn)
        return
    wanted, inside = outputs_of(module, arguments)
    places = _of_submodules(proto, inside)
    try:
        found = file_of(proto, arguments, list(places.values()))(arguments)
    except Exception as error:  # ONNX Runtime's own classes are private
        raise _difference(f"cannot be run: {error}", exporter, proto) from error
    exact: list[Array] = []
    for number, (output, array) in enumerate(zip(proto.graph.output, wanted, strict=False)):
        gap = _gap(found[output.name], array)
        if gap is None:
            continue
        if not exact and array.dtype == np.float32 and np.isfinite(array).all():
            exact = outputs_of(doubled(module), [wide(one) for one in arguments])[0]
        if exact and _is_rounding(found[output.name], array, exact[number]):
            continue
        first = next(
            (
                name
                for name, place in places.items()
                if _gap(found[place], inside[name]) is not None
            ),
            None,
        )
        raise _difference(
            f"gives another output {output.name!r} than the module: {gap}", exporter, proto, first
        )
    _require_updates(found, written, _aliases(module), exporter)


# Buffers that a module writes while it computes its outputs.


def _require_updates(
    found: Mapping[str, Array],
    written: Mapping[str, Array],
    aliases: Mapping[str, set[str]],
    exporter: str,
) -> None:
    for name, array in written.items():
        for there in (found[updated(one)] for one in aliases[name] if updated(one) in found):
            if (gap := _gap(there, array, _STATE)) is not None:
                raise _difference(f"updates buffer {name!r} in another way: {gap}", exporter)


def _written_buffers(
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
            outputs.append([_array(one) for one in flat(made)])
            states.append(_buffers(module))
    before, once, twice = states
    written = {n for n, old in before.items() if _differ(old, once[n])} - counters
    lasting = {name for name in written if _differ(once[name], twice[name])}
    if any(_differ(one, other) for one, other in zip(*outputs, strict=True)):
        lasting = written
    return {name: once[name] for name in written}, lasting


def _carried(proto: onnx.ModelProto, module: torch.nn.Module) -> set[str]:
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
    return {name for name, others in _aliases(module).items() if others & found}


def _aliases(module: torch.nn.Module) -> dict[str, set[str]]:
    """All names of each buffer, by its first name."""
    names: dict[int, set[str]] = {}
    for name, one in module.named_buffers(remove_duplicate=False):
        names.setdefault(id(one), set()).add(name)
    return {name: names[id(one)] for name, one in module.named_buffers()}


def _buffers(module: torch.nn.Module) -> dict[str, Array]:
    return {name: _array(one) for name, one in module.named_buffers()}


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


def _difference(
    what: str, exporter: str, proto: onnx.ModelProto | None = None, first: str | None = None
) -> popart_exception:
    cause = "an operator that this exporter writes wrongly, or a branch that depends on data"
    if first is not None and proto is not None:
        scope = "/" + first.replace(".", "/") + "/"
        nodes = dict.fromkeys(n.op_type for n in proto.graph.node if n.name.startswith(scope))
        cause = f"submodule {first!r} ({', '.join(nodes)}) is the first that differs"
    other = "dynamo" if exporter == "torchscript" else "torchscript"
    return popart_exception(
        "PD592",
        f"the file that torch exported {what}",
        value=f"likely cause: {cause}",
        hint=f'try exporter="{other}", or write the operator in another way; check=False keeps the '
        "file as it is",
    )


def _gap(found: Array, wanted: Array, single: float = _SINGLE) -> str | None:
    """How an array differs from the one that is wanted; None where both agree."""
    if found.shape != wanted.shape:
        return f"shape {list(found.shape)} instead of {list(wanted.shape)}"
    if wanted.dtype.kind not in "fV":
        different = int((found != wanted).sum())
        return f"{different} of {wanted.size} elements differ" if different else None
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    limit = _TOLERANCE.get(str(wanted.dtype), single) * (1 + np.nanmax(np.abs(b), initial=0))
    if np.allclose(a, b, rtol=0, atol=limit, equal_nan=True):
        return None
    far, large = np.nanmax(np.abs(a - b)), np.nanmax(np.abs(b))
    return f"by up to {far:.2g}, where values are up to {large:.2g}"


def _is_rounding(found: Array, wanted: Array, exact: Array) -> bool:
    """Whether a difference is one of single precision: torch's own result is off, too."""
    if found.shape != exact.shape:
        return False
    own = np.abs(wanted - exact).max(initial=0)
    return bool(np.abs(found - exact).max(initial=0) <= _ROUNDING * own)


def wide(one: Any) -> Any:
    """An input in double precision, where it is floating-point."""
    return one.double() if one.is_floating_point() else one


def doubled(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of a module in double precision."""
    return copy.deepcopy(module).double()


def outputs_of(
    module: torch.nn.Module, arguments: Sequence[Any]
) -> tuple[list[Array], dict[str, Array]]:
    """Outputs of a module in training mode without dropout, and those of its submodules.

    The module, its running statistics and torch's random numbers stay as they are.
    """
    import torch

    inside: dict[str, Array] = {}

    def keep(name: str) -> Any:
        def hook(_: Any, __: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor):
                inside.setdefault(name, _array(output))

        return hook

    hooks = [one.register_forward_hook(keep(name)) for name, one in module.named_modules() if name]
    try:
        with as_trained(module):
            made = module(*[one.clone() for one in arguments])
    finally:
        for hook in hooks:
            hook.remove()
    return [_array(one) for one in flat(made)], inside


@contextmanager
def as_trained(module: torch.nn.Module) -> Iterator[None]:
    """A context in which a module is in training mode without dropout; then it is as before."""
    import torch

    mode = {one: one.training for one in module.modules()}
    buffers = {name: one.detach().clone() for name, one in module.named_buffers()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), _no_dropout():
            module.train()
            yield
    finally:
        for one, training in mode.items():
            one.training = training
        for name, buffer in module.named_buffers():
            if name in buffers:
                buffer.data.copy_(buffers[name])


def _no_dropout() -> Any:
    """A context in which no function of torch drops anything."""
    from torch.overrides import TorchFunctionMode

    class WithoutDropout(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            kwargs = dict(kwargs or {})
            name = getattr(func, "__name__", "").rstrip("_")
            if name in _WITHOUT_DROPOUT:
                return args[0] if args else kwargs["input"]
            if name == "scaled_dot_product_attention":
                args = (*args[:4], 0.0, *args[5:]) if len(args) > _ATTENTION_DROPOUT else args
                kwargs |= {"dropout_p": 0.0} if len(args) <= _ATTENTION_DROPOUT else {}
            if name in _RECURRENT and len(args) > _PACKED_DROPOUT:
                # Packed sequences have their lengths as a further argument before the weights.
                packed = isinstance(args[_PACKED_WEIGHTS], list | tuple)
                place = _PACKED_DROPOUT if packed else _RECURRENT_DROPOUT
                args = tuple(0.0 if n == place else a for n, a in enumerate(args))
            if name == "multi_head_attention_forward":
                kwargs["training"] = False
            return func(*args, **kwargs)

    return WithoutDropout()


def flat(made: Any) -> Iterator[torch.Tensor]:
    """The tensors of an output, in the order in which exporters write them."""
    import torch

    if isinstance(made, torch.Tensor):
        yield made
    elif isinstance(made, dict):
        for one in made.values():
            yield from flat(one)
    elif isinstance(made, (list, tuple)):
        for one in made:
            yield from flat(one)


def _array(tensor: torch.Tensor) -> Array:
    import torch

    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy().copy()


def _of_submodules(
    proto: onnx.ModelProto, names: Sequence[str] | dict[str, Array]
) -> dict[str, str]:
    """The last value that the nodes of each submodule make, by the submodule's name."""
    last: dict[str, str] = {}
    for node in proto.graph.node:
        scope = node.name.rpartition("/")[0].strip("/").replace("/", ".")
        if scope and node.output:
            last[scope] = node.output[0]
    return {name: last[name] for name in names if name in last}


def without_dropout(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a file that drops nothing."""
    still = onnx.ModelProto()
    still.CopyFrom(proto)
    for node in still.graph.node:
        if node.op_type == "Dropout":
            del node.input[1:]
    return still


def file_of(
    proto: onnx.ModelProto, arguments: Sequence[Any], extra: Sequence[str]
) -> Callable[[Sequence[Any]], dict[str, Array]]:
    """What runs a file without dropout, for inputs of these shapes; also for further values."""
    still = without_dropout(proto)
    known = {one.name for one in still.graph.output}
    still.graph.output.extend(
        onnx.helper.make_empty_tensor_value_info(name) for name in extra if name not in known
    )
    # What trains is compared: the model in the working opset, with its rewritten nodes.
    shapes = InputShapeInfo()
    for value, one in zip(still.graph.input, arguments, strict=False):
        kind = DataType.from_onnx(value.type.tensor_type.elem_type)
        shapes.add(value.name, TensorInfo(kind, list(one.shape)))
    model = lower(load(read_with_shapes(still, shapes)))
    running_statistics(model)
    # Folding would run batch statistics of weights, which are constants here, in a wrong way.
    session = make_session(ir.to_proto(model).SerializeToString(), Execution(optimise=False))
    fed = {one.name for one in session.get_inputs()}
    names = [one.name for one in session.get_outputs()]

    def run(given: Sequence[Any]) -> dict[str, Array]:
        pairs = zip([one.name for one in proto.graph.input], given, strict=False)
        feeds = {name: _array(one) for name, one in pairs if name in fed}
        return dict(zip(names, session.run(names, feeds), strict=True))

    return run
