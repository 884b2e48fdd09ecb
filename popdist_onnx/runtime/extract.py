"""Makes a stage a model of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popdist_onnx.runtime.reading import Reading
    from popdist_onnx.runtime.stages import Stage

_ORT_IR_VERSION = 10
"""The newest file format that every supported ONNX Runtime reads; it only limits what may be said
in a file, and no stage says more."""


def extract(reading: Reading, stage: Stage, *, extra: Sequence[str] = ()) -> onnx.ModelProto:
    """Builds the model of a stage.

    Args:
        reading: The training graph.
        stage: The stage.
        extra: More tensors of the stage that become outputs.

    Returns:
        A model whose inputs are what the stage reads, constants excepted, and whose outputs are
        what it writes.
    """
    constants = [reading.constants[name] for name in stage.reads if name in reading.constants]
    # Every stage gets its own copy of a constant, which costs nothing and is folded there.
    nodes = [ir.to_proto(node) for value in constants if (node := value.producer())]
    nodes += [ir.to_proto(reading.steps[i].node) for i in stage.steps]
    outputs = dict.fromkeys((*stage.writes, *extra))
    graph = onnx.helper.make_graph(
        nodes,
        "stage",
        [_info(reading, name) for name in stage.reads if name not in reading.constants],
        [_info(reading, name) for name in outputs],
        [_tensor(value) for value in constants if value.producer() is None],
    )
    model = reading.model
    opsets = [
        onnx.helper.make_opsetid(domain, version)
        for domain, version in model.graph.opset_imports.items()
    ]
    return onnx.helper.make_model(
        graph, opset_imports=opsets, ir_version=min(model.ir_version, _ORT_IR_VERSION)
    )


def _tensor(value: ir.Value) -> onnx.TensorProto:
    assert value.const_value is not None  # noqa: S101 - an initializer
    proto = ir.serde.serialize_tensor(value.const_value)
    proto.name = str(value.name)
    return proto


def _info(reading: Reading, name: str) -> onnx.ValueInfoProto:
    spec = reading.spec(name)
    # An unknown shape is left to ONNX Runtime, which knows it when it runs.
    return onnx.helper.make_tensor_value_info(name, int(spec.dtype), spec.shape)
