"""The graph under construction as a model: the message, and weights in a file of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from popdist_onnx.builder.graph_writer import DEFAULT_OPSETS
from popdist_onnx.errors import ValueRangeError, popart_exception
from popdist_onnx.graph.large_files import use_typed_fields
from popdist_onnx.graph.load import load
from popdist_onnx.graph.names import BUILDER
from popdist_onnx.graph.values import static
from popdist_onnx.lowering import DOMAIN

if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import PathLike

    from popdist_onnx.builder.graph_writer import GraphWriter

_PUBLISHED_IR_VERSIONS = {6: 3, 7: 3, 8: 3, 9: 4, 10: 4, 11: 4}

_MOST_BYTES = 1 << 31
"""What readers of serialized models take, by the design of protobuf."""


def model_proto(writer: GraphWriter) -> onnx.ModelProto:
    """The model as a message that is independent of the writer; not for 2 GiB of weights.

    Weights stand in typed fields (``float_data`` ...), as in what PopART writes.
    """
    _require_readable(writer.graph)
    opset = writer.onnx_opset
    writer.graph.opset_imports.clear()
    writer.graph.opset_imports.update({"": opset, DOMAIN: writer.opsets.get(DOMAIN, 1)})
    for domain, version in writer.opsets.items():
        if domain not in ("ai.onnx", *DEFAULT_OPSETS):
            writer.graph.opset_imports[domain] = version
    model = ir.Model(
        writer.graph,
        ir_version=_ir_version(opset),
        producer_name=BUILDER,
        metadata_props=writer.metadata,
    )
    proto: onnx.ModelProto = ir.to_proto(model)
    use_typed_fields(proto)
    return proto


def move_initializers(writer: GraphWriter, ids: Iterable[str], fn: str | PathLike[str]) -> None:
    """Moves initializers to a new file; a model that is written afterwards refers to it by name."""
    path = Path(fn)
    if not path.parent.is_dir():
        raise ValueRangeError(
            "PD509", f"the parent directory does not exist: {path.parent}", value=str(path)
        )
    initializers = writer.graph.initializers
    chosen = list(ids)
    for tensor in set(chosen) & set(initializers):
        if isinstance(initializers[tensor].const_value, ir.ExternalTensor):
            raise ValueRangeError(
                "PD509", f"'{tensor}' already has an external data_location", value=str(path)
            )
    if path.exists():
        raise ValueRangeError("PD509", "the file exists already", value=str(path))
    for tensor in chosen:
        if tensor not in initializers:
            raise ValueRangeError(
                "PD504",
                f"'{tensor}' is not an initializer",
                accepted=", ".join(initializers) or "there are none",
            )
    with path.open("xb") as file:
        for tensor in chosen:
            content = initializers[tensor].const_value
            if content is None:
                continue
            data = content.tobytes()
            initializers[tensor].const_value = ir.ExternalTensor(
                path.name,
                file.tell(),
                len(data),
                content.dtype,
                shape=ir.Shape(list(content.shape.numpy())),
                name=tensor,
                base_dir=path.parent.absolute(),
            )
            file.write(data)


def external_folder(writer: GraphWriter) -> Path | None:
    """The folder of the file that initializers were moved to; None where none were."""
    contents = (value.const_value for value in writer.graph.initializers.values())
    moved = [one for one in contents if isinstance(one, ir.ExternalTensor)]
    return Path(moved[0].base_dir) if moved else None


def infer_all(writer: GraphWriter) -> None:
    """Fills in types and shapes that only inference over the whole graph finds.

    onnx finds those of control flow, loading those that follow from calculated constants.
    """
    proto = model_proto(writer)
    inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    for info in [*inferred.value_info, *inferred.output]:
        if info.type.HasField("tensor_type"):
            _fill_in(writer, ir.from_proto(info))
    if writer.parent is None and not all(static(value) for value in writer.values.values()):
        for node in load(proto).graph:
            for found in node.outputs:
                _fill_in(writer, found)


def _fill_in(writer: GraphWriter, found: ir.Value) -> None:
    value = writer.values.get(str(found.name))
    if value is not None:
        value.type = value.type or found.type
        value.shape = value.shape if static(value) else found.shape or value.shape


def as_tensor(array: np.ndarray[Any, Any], name: str) -> ir.TensorProtocol:
    """A copy of an array as content of the model: a program may write to its own array later."""
    return ir.Tensor(np.array(array, order="C"), name=name)


def _require_readable(graph: ir.Graph) -> None:
    contents = [value.const_value for value in graph.initializers.values()]
    inside = [one for one in contents if one is not None and not isinstance(one, ir.ExternalTensor)]
    if (size := sum(one.nbytes for one in inside)) >= _MOST_BYTES:
        raise popart_exception(
            "PD509",
            "the weights are larger than the 2 GiB that a serialized model can have",
            value=f"{size} bytes",
            hint="move weights to a file with saveInitializersExternally, then saveModelProto",
        )


def _ir_version(opset: int) -> int:
    if opset in _PUBLISHED_IR_VERSIONS:
        return _PUBLISHED_IR_VERSIONS[opset]
    return int(onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)]))
