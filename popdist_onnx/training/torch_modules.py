"""Exports a module of torch for training, and copies trained weights back into the module."""

from __future__ import annotations

import inspect
import io
import json
import re
from contextlib import contextmanager
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from popdist_onnx.errors import ArgumentError, ValueRangeError, popart_exception
from popdist_onnx.graph.compat import graphs_within
from popdist_onnx.graph.load import read
from popdist_onnx.graph.names import FROZEN, PADDING, UNBIASED
from popdist_onnx.graph.values import stored
from popdist_onnx.training.export_check import check_export
from popdist_onnx.training.model import LABELS, LOSS_KIND, LOSSES
from popdist_onnx.training.module_runs import flat
from popdist_onnx.training.torch_losses import written_out_losses
from popdist_onnx.training.trace_check import check_decisions, noted_decisions
from popdist_onnx.training.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import torch

    from popdist_onnx.graph.load import Source

EXPORTERS = {"torchscript": 17, "dynamo": 18}
"""The exporters of torch, each with the version of ``ai.onnx`` that it writes by default."""

UNUSED = "popdist.unused-parameters"
"""Metadata key of models: the module's parameters that no output depends on, as JSON."""

_SHOWN = 3


def from_torch(
    module: torch.nn.Module,
    example_inputs: Any,
    loss: str | Callable[..., Any] | None = None,
    *,
    example_labels: Any = None,
    input_names: Iterable[str] | None = None,
    exporter: str = "torchscript",
    opset: int | None = None,
    check: bool = True,
) -> onnx.ModelProto:
    """Exports a module so that it trains here as it would in torch.

    The module is exported in training mode, so that batch normalisation is not folded and dropout
    stays; its own mode is restored. Tied weights stay tied. What torch does not train (buffers, and
    parameters with ``requires_grad=False``) is marked in the model and not trained here either.

    torch's exporters write some operators wrongly without an error. So the file is run once with
    the example inputs, without dropout, and its outputs are compared with those of the module.

    Args:
        module: The module; weights keep the names of its ``state_dict``.
        example_inputs: A tensor, or a tuple of tensors, with samples as first dimension, which
            stays open. Two samples at least where the module normalises over the batch.
        loss: ``"cross_entropy"`` or ``"mse"`` of the first output, for which `Trainer` adds labels;
            or a function (or module) from output and labels to a scalar, which becomes part of the
            model; None leaves it to `Trainer`.
        example_labels: Labels, where ``loss`` is a function.
        input_names: Ids of the inputs; ``x`` for one, ``x0``, ``x1``, ... for several.
        exporter: ``"torchscript"``, which traces the module, or ``"dynamo"``, which captures it
            with ``torch.export`` and needs ``onnxscript``. Both give the same training; some
            modules can be exported by one of them only.
        opset: The version of ``ai.onnx``; None takes 17 for ``"torchscript"``, 18 for ``"dynamo"``.
        check: Whether the file is run and compared, with other inputs too where a trace holds what
            ``forward`` read in the examples; a module that draws random numbers itself is not.

    Returns:
        The model, for `popdist_onnx.train`.

    Raises:
        ArgumentError: There are no examples, or labels are missing.
        ValueRangeError: There is no such loss or exporter.
        popart_exception: torch cannot export the module, the file computes something else, or an
            embedding has settings or bags that no file carries.
    """
    import torch

    if not isinstance(module, torch.nn.Module):
        raise ArgumentError(
            "PD584",
            "from_torch takes a torch.nn.Module",
            value=type(module).__name__,
            hint="a function becomes one as the forward of a class",
        )
    given = example_inputs if isinstance(example_inputs, tuple | list) else (example_inputs,)
    if not given or not all(isinstance(one, torch.Tensor) for one in given):
        raise ArgumentError(
            "PD584",
            "from_torch takes a tensor, or a tuple of tensors, as example inputs",
            value=[type(one).__name__ for one in given],
        )
    names = list(
        input_names or (["x"] if len(given) == 1 else [f"x{n}" for n in range(len(given))])
    )
    outputs, target, arguments = ["output"], module, tuple(given)
    if callable(loss):
        if example_labels is None:
            raise ArgumentError(
                "PD584",
                "a loss that is a function needs example labels",
                hint="from_torch(module, inputs, loss=function, example_labels=labels)",
            )
        target, arguments = _with_loss(module, loss), (*given, torch.as_tensor(example_labels))
        names, outputs = [*names, LABELS], ["output", "loss"]
    elif loss is not None and loss not in LOSSES:
        raise ValueRangeError(
            "PD584", "not a loss", value=loss, accepted=f"{', '.join(LOSSES)}, or a function"
        )
    proto, looked_up, places = _exported(target, arguments, names, outputs, exporter, opset)
    proto.metadata_props.add(key=UNBIASED, value="1")
    if check:
        check_decisions(proto, target, arguments, places)
    ties = ties_of(module)
    prefix = "" if target is module else "module."
    own = {name: name.removeprefix(prefix) for name in _stored(proto)}
    # The exporters choose among the names of a tied weight in different ways.
    _rename(proto, {name: ties.get(plain, plain) for name, plain in own.items()})
    _mark_padding(proto.graph, _padding_rows(module, looked_up))
    properties = {one.key: one.value for one in proto.metadata_props}
    properties[FROZEN] = json.dumps(_untrained(target, prefix, proto, ties))
    stored = set(_stored(proto))
    if unused := [name for name, _ in module.named_parameters() if name not in stored]:
        properties[UNUSED] = json.dumps(unused)
    if loss is not None:
        properties[LOSS_KIND] = loss if isinstance(loss, str) else "loss"
    onnx.helper.set_model_props(proto, properties)
    if check:
        plain = {name: name.removeprefix(prefix) for name, _ in target.named_parameters()}
        known = {name: ties.get(one, one) for name, one in plain.items()}
        check_export(proto, target, arguments, exporter, known, prefix)
    return proto


def to_torch(trained: Trainer | Source, module: torch.nn.Module) -> torch.nn.Module:
    """Puts trained weights back into the module that `from_torch` exported.

    Args:
        trained: The trainer; or a model, a file or bytes, that one has saved.
        module: The module; parameters and buffers are changed in place. What the model does not
            have stays, such as ``num_batches_tracked`` and parameters that no output depends on.

    Returns:
        The module.

    Raises:
        ValueRangeError: The module has a parameter that the model does not have, or one of another
            shape.
    """
    import torch

    weights: Mapping[str, Any]
    if isinstance(trained, Trainer):
        weights, properties = trained.weights, trained.metadata
    else:
        model = read(trained)
        weights = {name: stored(one) for name, one in model.graph.initializers.items()}
        properties = model.metadata_props
    unused = json.loads(properties.get(UNUSED, "[]"))
    if lazy := [name for name, one in module.named_parameters() if torch.nn.parameter.is_lazy(one)]:
        raise ArgumentError(
            "PD584",
            "the module has lazy layers, whose parameters have no shape yet",
            value=lazy[:_SHOWN],
            hint="call it once: module(example_inputs)",
        )
    ties = ties_of(module)
    state = module.state_dict()
    missing = [
        name
        for name, _ in module.named_parameters()
        if name not in unused
        and (name not in weights or tuple(weights[name].shape) != tuple(state[name].shape))
    ]
    if missing:
        raise ValueRangeError(
            "PD584",
            "the model is not of this module: it lacks weights, or has them in another shape",
            value=missing[:_SHOWN],
            accepted=", ".join(list(weights)[:_SHOWN]),
            hint="give the module that from_torch exported, with the same settings",
        )
    with torch.no_grad():
        for name, tensor in state.items():
            source = ties.get(name, name)
            if source in weights:
                array = np.array(weights[source])
                tensor.copy_(torch.from_numpy(array).reshape(tensor.shape))
    return module


def _exported(
    module: torch.nn.Module,
    arguments: tuple[Any, ...],
    names: list[str],
    outputs: list[str],
    exporter: str,
    opset: int | None,
) -> tuple[onnx.ModelProto, dict[int, set[int | None]], list[str]]:
    """The file, padding rows of weights that the module looks up, and places of decisions."""
    import torch

    if exporter not in EXPORTERS:
        raise ValueRangeError(
            "PD584", "there is no such exporter", value=exporter, accepted=", ".join(EXPORTERS)
        )
    write = _by_dynamo if exporter == "dynamo" else _by_torchscript
    if exporter == "dynamo":
        _require_onnxscript()
    mode = {one: one.training for one in module.modules()}
    # A trace in training mode changes running statistics and draws random numbers.
    buffers = {name: one.detach().clone() for name, one in module.named_buffers()}
    places: list[str] = []
    try:
        # No warnings that this exporter is the older of two, or that the module is in training.
        noted = noted_decisions(places)
        with noted, torch.random.fork_rng(devices=[]), _bags_of_equal_length():
            looked_up, count = _looked_up(module.train(), arguments)
            outputs = _output_names(outputs, count)
            proto = write(module, arguments, names, outputs, opset or EXPORTERS[exporter])
    except popart_exception:
        raise
    except Exception as error:  # torch raises errors of many kinds
        (other,) = set(EXPORTERS) - {exporter}
        cause = _cause(error)
        since = re.search(r"was added in version (\d+)", cause)
        way = f"from_torch(..., opset={since[1]})" if since else f'exporter="{other}"'
        raise popart_exception(
            "PD584",
            f"torch cannot export the module: {cause}",
            hint=f"try {way}; torch.onnx.export(module.train(), ...) shows the whole error",
        ) from error
    finally:
        for one, training in mode.items():
            one.training = training
        for name, buffer in module.named_buffers():
            buffer.data.copy_(buffers[name])
    for tensor in proto.graph.initializer:
        if tensor.name in buffers:
            array = buffers[tensor.name].cpu().numpy()
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    _declare_inputs(proto, names, arguments)
    return proto, looked_up, places


def _declare_inputs(
    proto: onnx.ModelProto, names: Sequence[str], arguments: Sequence[torch.Tensor]
) -> None:
    """Declares inputs that forward does not use, which exporters leave out, in their places."""
    written = {value.name: value for value in proto.graph.input}
    declared = [
        written.pop(name) if name in written else _declared(name, one)
        for name, one in zip(names, arguments, strict=False)
    ]
    rest = list(written.values())
    del proto.graph.input[:]
    proto.graph.input.extend([*declared, *rest])


def _declared(name: str, one: torch.Tensor) -> onnx.ValueInfoProto:
    array = one.detach().cpu().numpy()
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    shape: list[str | int | None] = ["batch", *array.shape[1:]] if array.ndim else []
    return onnx.helper.make_tensor_value_info(name, kind, shape)


@contextmanager
def _bags_of_equal_length() -> Iterator[None]:
    """Writes an `EmbeddingBag` as a look-up and a reduction: exporters write a loop over bags."""
    import torch

    own = torch.nn.EmbeddingBag.forward
    torch.nn.EmbeddingBag.forward = _bags  # type: ignore[method-assign]  # while it is exported
    try:
        yield
    finally:
        torch.nn.EmbeddingBag.forward = own  # type: ignore[method-assign]  # as above


def _bags(
    self: torch.nn.EmbeddingBag,
    input: torch.Tensor,  # noqa: A002 - torch's name
    offsets: torch.Tensor | None = None,
    per_sample_weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """The forward of an `EmbeddingBag` whose bags, rows of the input, have one length."""
    if offsets is not None or input.dim() != 2:  # noqa: PLR2004 - samples, and places in a bag
        _refuse_bags(list(input.shape), "an EmbeddingBag")
    _require_plain("of a bag", vars(self))
    taken: torch.Tensor = self.weight[input]
    if per_sample_weights is not None:
        taken = taken * per_sample_weights.unsqueeze(-1)
    if self.padding_idx is None:
        return taken.amax(1) if self.mode == "max" else getattr(taken, self.mode)(1)
    kept = (input != self.padding_idx).unsqueeze(-1)
    if self.mode == "max":
        largest = taken.masked_fill(~kept, float("-inf")).amax(1)
        return largest.masked_fill(~kept.any(1), 0.0)
    total = (taken * kept).sum(1)
    return total / kept.sum(1).clamp(min=1) if self.mode == "mean" else total


def _output_names(names: list[str], count: int) -> list[str]:
    """A name for each tensor that a module returns; the exporters give names by position."""
    further = [f"{names[0]}_{number}" for number in range(1, count - len(names) + 1)]
    return [*names[:1], *further, *names[1:]][-max(count, 1) :]


def _looked_up(
    module: torch.nn.Module, arguments: tuple[Any, ...]
) -> tuple[dict[int, set[int | None]], int]:
    """The padding rows of weights that a module looks up, by identity, and its outputs' number."""
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    names = {id(one): name for name, one in module.named_parameters()}
    rows: dict[int, set[int | None]] = {}

    class Noting(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            del types
            kwargs = kwargs or {}
            if func is functional.embedding_bag:
                _refuse_bags(list(args[0].shape), "torch.nn.functional.embedding_bag")
            if func is functional.embedding:
                said = inspect.signature(func).bind(*args, **kwargs).arguments
                weight, row = said["weight"], said.get("padding_idx")
                _require_plain(names.get(id(weight), "of a computed weight"), said)
                if row is not None and id(weight) not in names:
                    raise popart_exception(
                        "PD595",
                        "only the rows of a parameter can have a padding_idx",
                        value=f"padding_idx={row} of a computed weight {list(weight.shape)}",
                        hint="look up the parameter, and compute with what was found",
                    )
                rows.setdefault(id(weight), set()).add(
                    row if row is None or row >= 0 else row + len(weight)
                )
            return func(*args, **kwargs)

    with Noting(), torch.no_grad():
        made = module(*arguments)
    return rows, len(list(flat(made)))


def _require_plain(name: str, settings: Mapping[str, Any]) -> None:
    """Refuses look-ups that torch trains in a way of which a file says nothing."""
    found = {key: settings.get(key) for key in ("max_norm", "scale_grad_by_freq")}
    if any(found.values()):
        raise popart_exception(
            "PD595",
            f"embedding {name} has a setting that an exported file does not carry",
            value=", ".join(f"{key}={value}" for key, value in found.items()),
            accepted="max_norm=None, scale_grad_by_freq=False",
            hint="train it without the setting; weight decay also limits weights",
        )


def _refuse_bags(shape: list[int], what: str) -> None:
    raise popart_exception(
        "PD595",
        "bags with offsets, and the function embedding_bag, cannot be trained here",
        value=f"{what}, input {[int(one) for one in shape]}",
        accepted="torch.nn.EmbeddingBag with an input [samples, length] and no offsets",
        hint="fill bags up to one length with the row of padding_idx",
    )


def _by_torchscript(
    module: torch.nn.Module,
    arguments: tuple[Any, ...],
    names: list[str],
    outputs: list[str],
    opset: int,
) -> onnx.ModelProto:
    import torch

    file = io.BytesIO()
    with written_out_losses(), _without_dumps():
        torch.onnx.export(
            module,
            arguments,
            file,  # type: ignore[arg-type]  # the older exporter writes to files in memory
            input_names=names,
            output_names=outputs,
            dynamic_axes={name: {0: "batch"} for name in (*names, outputs[0])},
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
            opset_version=opset,
            dynamo=False,
        )
    return onnx.load_from_string(file.getvalue())


@contextmanager
def _without_dumps() -> Iterator[None]:
    """A context in which torch does not print its graph, of up to hundreds of lines, on errors."""
    import torch

    own = getattr(torch._C, "_jit_onnx_log", None)  # noqa: SLF001 - no public switch exists
    if own is None:
        yield
        return
    torch._C._jit_onnx_log = lambda *_: None  # noqa: SLF001 - while it exports
    try:
        yield
    finally:
        torch._C._jit_onnx_log = own  # noqa: SLF001 - as above


def _by_dynamo(
    module: torch.nn.Module,
    arguments: tuple[Any, ...],
    names: list[str],
    outputs: list[str],
    opset: int,
) -> onnx.ModelProto:
    import torch

    with written_out_losses():
        program = torch.onnx.export(
            module,
            arguments,
            input_names=names,
            output_names=outputs,
            dynamic_shapes=_open_batch(module, len(names)),
            opset_version=opset,
            dynamo=True,
            # Optimisation would fold batch normalisation and join weights of equal content.
            optimize=False,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("the exporter returned no model")
    proto: onnx.ModelProto = program.model_proto
    for number, node in enumerate(proto.graph.node):
        if node.op_type == "BatchNormalization":
            _train_statistics(node, number)
    return proto


def _train_statistics(node: onnx.NodeProto, number: int) -> None:
    """Says of a node in training mode that it is: the exporter writes one for inference."""
    said = " ".join([node.name, *(prop.value for prop in node.metadata_props)])
    trains = any(one.name == "training_mode" and one.i for one in node.attribute)
    if trains or "no_training" in said:
        return
    del node.output[1:]
    node.output.extend([f"running_mean/{number}", f"running_var/{number}"])
    kept = [one for one in node.attribute if one.name != "training_mode"]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute("training_mode", 1)])


def _open_batch(module: torch.nn.Module, inputs: int) -> tuple[Any, ...]:
    """An open first dimension for each input, in the form of the module's parameters."""
    import torch

    # A module may need a fixed number of samples; AUTO leaves the number open where it can be.
    shapes = tuple({0: torch.export.Dim.AUTO} for _ in range(inputs))
    kinds = [one.kind for one in inspect.signature(module.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        return shapes
    named = kinds.index(inspect.Parameter.VAR_POSITIONAL)
    return (*shapes[:named], shapes[named:])


def _cause(error: BaseException) -> str:
    """The first line of the error that an exporter failed with at first."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _require_onnxscript() -> None:
    """Checks that torch's newer exporter has the packages that it imports late."""
    import onnx_ir

    try:
        onnxscript = import_module("onnxscript")
    except ImportError as missing:
        raise popart_exception(
            "PD596",
            f"the dynamo exporter needs a package that is not installed: {missing.name}",
            hint=_NEWER,
        ) from None
    # torch imports this module of onnx-ir by attribute, and fails with an AttributeError.
    if not hasattr(onnx_ir, "schemas"):
        raise popart_exception(
            "PD596",
            "the dynamo exporter needs a newer onnx-ir than is installed",
            value=f"onnx-ir {onnx_ir.__version__}, onnxscript {onnxscript.__version__}",
            accepted="onnxscript 0.7 or newer, with the onnx-ir that it asks for",
            hint=_NEWER,
        )


_NEWER = (
    'python -m pip install "onnxscript>=0.7" in an environment without TensorFlow 2.15, whose '
    'ml-dtypes is too old for it; or use exporter="torchscript"'
)


def _with_loss(module: torch.nn.Module, loss: Callable[..., Any]) -> torch.nn.Module:
    import torch

    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module
            # No name of the module's own parts, which lose the prefix "module.".
            self.place = "loss"
            while hasattr(module, self.place):
                self.place += "_"
            setattr(self, self.place, loss)

        def forward(self, *inputs: Any) -> tuple[Any, ...]:
            output = self.module(*inputs[:-1])
            value = getattr(self, self.place)(output, inputs[-1])
            if not isinstance(value, torch.Tensor):
                raise ArgumentError(
                    "PD584",
                    "the loss function does not return a tensor",
                    value=type(value).__name__,
                    accepted="one scalar tensor",
                )
            # The loss is the last tensor, however many the module returns.
            return (*flat(output), value)

    return WithLoss()


def _untrained(
    target: torch.nn.Module, prefix: str, proto: onnx.ModelProto, ties: Mapping[str, str]
) -> list[str]:
    """The initializers that are not trained parameters: buffers, and tensors that torch holds."""
    plain = {name: name.removeprefix(prefix) for name, _ in target.named_parameters()}
    plain = {name: ties.get(one, one) for name, one in plain.items()}
    trained = {plain[name]: one for name, one in target.named_parameters() if one.requires_grad}
    known = {*plain.values()}
    known |= {name.removeprefix(prefix) for name, _ in target.named_buffers()}
    # A parameter that an exporter has rewritten is in the file under another name.
    lost = {one.numel() for name, one in trained.items() if name not in _stored(proto)}
    return [
        tensor.name
        for tensor in proto.graph.initializer
        if tensor.name not in trained and (tensor.name in known or prod(tensor.dims) not in lost)
    ]


def _padding_rows(
    module: torch.nn.Module, looked_up: Mapping[int, set[int | None]]
) -> dict[str, int]:
    """The row of each weight that looking up does not train (``padding_idx``)."""
    rows = {name: looked_up.get(id(one), {None}) for name, one in module.named_parameters()}
    if several := [name for name, found in rows.items() if len(found) > 1]:
        raise popart_exception(
            "PD584",
            "embeddings share a weight, but not their padding_idx",
            value=several[0],
            hint="give all of them the same padding_idx",
        )
    return {name: row for name, (row,) in rows.items() if row is not None}


def _mark_padding(graph: onnx.GraphProto, rows: Mapping[str, int]) -> None:
    """Notes at look-ups in an embedding which row they do not train: ONNX has no word for it."""
    for node in (node for one in graphs_within(graph) for node in one.node):
        if node.op_type == "Gather" and node.input[0] in rows:
            node.metadata_props.add(key=PADDING, value=str(rows[node.input[0]]))


def ties_of(module: torch.nn.Module) -> dict[str, str]:
    """For each further name of a tied parameter its first name."""
    first = {id(one): name for name, one in module.named_parameters()}
    every = module.named_parameters(remove_duplicate=False)
    return {name: first[id(one)] for name, one in every if first[id(one)] != name}


def _stored(proto: onnx.ModelProto) -> list[str]:
    return [tensor.name for tensor in proto.graph.initializer]


def _rename(proto: onnx.ModelProto, names: Mapping[str, str]) -> None:
    """Renames initializers; those that get the same name become one."""
    seen: set[str] = set()
    for index, tensor in reversed(list(enumerate(proto.graph.initializer))):
        tensor.name = names[tensor.name]
        if tensor.name in seen:
            del proto.graph.initializer[index]
        seen.add(tensor.name)
    for node in (node for one in graphs_within(proto.graph) for node in one.node):
        node.input[:] = [names.get(name, name) for name in node.input]
