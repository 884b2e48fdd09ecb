"""`GraphTransformer`: changes a model's types and initializers before training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto, helper, numpy_helper

from popdist_onnx.errors import ValueRangeError, popart_exception
from popdist_onnx.graph.compat import FLOATING, graphs_within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from os import PathLike

    Array = np.ndarray[Any, Any]


class GraphTransformer:
    """Changes a model; `getModelProto` returns the result.

    Conversions of integer types change inputs, outputs and initializers, and add casts inside, so
    that operators that need int64 (the shape of ``Reshape``) still get int64. Conversions of
    floating-point types change the whole graph.

    Args:
        modelProtoOrFilename: The model, serialized or a file.

    Raises:
        popart_exception: There is no such file, or the file holds no model.
    """

    def __init__(self, modelProtoOrFilename: bytes | str | PathLike[str]) -> None:
        try:
            if isinstance(modelProtoOrFilename, bytes):
                self._model = onnx.load_from_string(modelProtoOrFilename)
            else:
                self._model = onnx.load(Path(modelProtoOrFilename))
        except (OSError, DecodeError) as error:
            raise popart_exception("PD509", f"the model cannot be read: {error}") from None
        self._graph = self._model.graph

    def getModelProto(self) -> bytes:
        """The changed model.

        Returns:
            A serialized ``onnx.ModelProto``.
        """
        return bytes(self._model.SerializeToString())

    def removeUnusedInputs(self) -> None:
        """Removes inputs and initializers that no node reads."""
        used = {name for node in _nodes(self._graph) for name in node.input}
        used.update(one.name for graph in graphs_within(self._graph) for one in graph.output)
        for entries in (self._graph.input, self._graph.initializer):
            for unused in [one for one in entries if one.name not in used]:
                entries.remove(unused)

    def prepareNodesForTraining(self) -> None:
        """Adds the outputs of training mode to batch normalisations of opsets before 14.

        From opset 14 on, an attribute sets the mode.
        """
        opset = next(one.version for one in self._model.opset_import if not one.domain)
        for node in _nodes(self._graph):
            if node.op_type != "BatchNormalization":
                continue
            if opset >= _OPSET_WITH_TRAINING_MODE:
                _set_attribute(node, "training_mode", 1)
                wanted = 3
            else:
                wanted = 5
            while len(node.output) < wanted:
                node.output.append(f"{node.output[0]}_training_{len(node.output)}")

    def convertFloatsToHalfs(self) -> None:
        """Makes a single-precision model a half-precision one."""
        self._retype(TensorProto.FLOAT, TensorProto.FLOAT16)

    def convertHalfsToFloats(self) -> None:
        """Makes a half-precision model a single-precision one."""
        self._retype(TensorProto.FLOAT16, TensorProto.FLOAT)

    def convertDoublesToFloats(self) -> None:
        """Makes a double-precision model a single-precision one."""
        self._retype(TensorProto.DOUBLE, TensorProto.FLOAT)

    def convertDoublesToHalfs(self) -> None:
        """Makes a double-precision model a half-precision one."""
        self._retype(TensorProto.DOUBLE, TensorProto.FLOAT16)

    def convertBFloats16ToFloat32(self) -> None:
        """Makes a bfloat16 model a single-precision one."""
        self._retype(TensorProto.BFLOAT16, TensorProto.FLOAT)

    def convertINT8ToINT32(self) -> None:
        """Widens int8 inputs, outputs and initializers to int32."""
        self._rewiden(TensorProto.INT8)

    def convertUINT8ToINT32(self) -> None:
        """Widens uint8 inputs, outputs and initializers to int32."""
        self._rewiden(TensorProto.UINT8)

    def convertINT16ToINT32(self) -> None:
        """Widens int16 inputs, outputs and initializers to int32."""
        self._rewiden(TensorProto.INT16)

    def convertUINT16ToINT32(self) -> None:
        """Widens uint16 inputs, outputs and initializers to int32."""
        self._rewiden(TensorProto.UINT16)

    def convertINT64ToINT32(self, clip: bool = False) -> None:
        """Narrows int64 inputs, outputs and initializers to int32.

        Args:
            clip: Whether numbers outside of int32 become the nearest number of int32.

        Raises:
            ValueRangeError: A number is outside of int32, and ``clip`` is false.
        """
        self._rewiden(TensorProto.INT64, clip=clip)

    def convertInitializersToConstants(self, ids: Iterable[str]) -> None:
        """Makes initializers constants, which training does not change.

        Args:
            ids: The initializers.

        Raises:
            ValueRangeError: An id is not an initializer.
        """
        for tensor_id in ids:
            content = self._initializer(tensor_id)
            self._graph.initializer.remove(content)
            self._remove_input(tensor_id)
            constant = helper.make_node("Constant", [], [tensor_id], tensor_id, value=content)
            self._graph.node.insert(0, constant)

    def convertAllFixedPointInitializersToConstants(self) -> None:
        """Makes all integer initializers constants."""
        self.convertInitializersToConstants(
            [one.name for one in self._graph.initializer if one.data_type not in FLOATING]
        )

    def _initializer(self, tensor_id: str) -> TensorProto:
        content: TensorProto
        for content in self._graph.initializer:
            if content.name == tensor_id:
                return content
        raise ValueRangeError(
            "PD504",
            f"TensorId {tensor_id} not in the model initalizers",
            accepted=", ".join(one.name for one in self._graph.initializer) or "there are none",
        )

    def _remove_input(self, name: str) -> None:
        for entry in [one for one in self._graph.input if one.name == name]:
            self._graph.input.remove(entry)

    def _retype(self, old: int, new: int) -> None:
        dtype = helper.tensor_dtype_to_np_dtype(new)
        for graph in graphs_within(self._graph):
            for info in (*graph.input, *graph.output, *graph.value_info):
                if info.type.tensor_type.elem_type == old:
                    info.type.tensor_type.elem_type = new
            for content in graph.initializer:
                if content.data_type == old:
                    _change(content, lambda array: array.astype(dtype))
            for node in graph.node:
                for attribute in node.attribute:
                    if attribute.name in ("to", "dtype") and attribute.i == old:
                        attribute.i = new
                    elif attribute.type == onnx.AttributeProto.TENSOR and (
                        attribute.t.data_type == old
                    ):
                        _change(attribute.t, lambda array: array.astype(dtype))

    def _rewiden(self, old: int, *, clip: bool = False) -> None:
        """Changes inputs, outputs and initializers to int32, with casts around the nodes."""

        def narrowed(name: str) -> Callable[[Array], Array]:
            return lambda array: _as_int32(name, array, clip=clip)

        contents = {one.name: one for one in self._graph.initializer}
        for info in self._graph.input:
            if info.type.tensor_type.elem_type == old:
                info.type.tensor_type.elem_type = TensorProto.INT32
                self._cast_after(info.name, old)
        inputs = {one.name for one in self._graph.input}
        for name, content in contents.items():
            if content.data_type == old:
                _change(content, narrowed(name))
                if name not in inputs:
                    self._cast_after(name, old)
        for info in self._graph.output:
            if info.type.tensor_type.elem_type == old:
                info.type.tensor_type.elem_type = TensorProto.INT32
                self._cast_before(info.name)

    def _cast_after(self, name: str, to: int) -> None:
        inside = f"{name}_as_{TensorProto.DataType.Name(to)}"
        for node in _nodes(self._graph):
            node.input[:] = [inside if one == name else one for one in node.input]
        self._graph.node.insert(0, helper.make_node("Cast", [name], [inside], inside, to=to))

    def _cast_before(self, name: str) -> None:
        inside = f"{name}_before_INT32"
        for node in _nodes(self._graph):
            node.input[:] = [inside if one == name else one for one in node.input]
            node.output[:] = [inside if one == name else one for one in node.output]
        to = TensorProto.INT32
        self._graph.node.append(helper.make_node("Cast", [inside], [name], name, to=to))


_OPSET_WITH_TRAINING_MODE = 14


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for one in graphs_within(graph):
        yield from one.node


def _change(content: TensorProto, change: Callable[[Array], Array]) -> None:
    # onnx 1.18 reads bfloat16 as whole numbers.
    array = ir.serde.deserialize_tensor(content).numpy()
    content.CopyFrom(numpy_helper.from_array(change(array), content.name))


def _as_int32(name: str, array: Array, *, clip: bool) -> Array:
    limits = np.iinfo(np.int32)
    if clip:
        array = np.clip(array, limits.min, limits.max)
    elif array.size and (array.min() < limits.min or array.max() > limits.max):
        raise ValueRangeError(
            "PD509",
            f"initializer '{name}' has numbers that int32 cannot hold",
            value=[int(array.min()), int(array.max())],
            hint="convertINT64ToINT32(clip=True) takes the nearest numbers that fit",
        )
    return array.astype(np.int32)


def _set_attribute(node: onnx.NodeProto, name: str, value: int) -> None:
    for attribute in node.attribute:
        if attribute.name == name:
            attribute.i = value
            return
    node.attribute.append(helper.make_attribute(name, value))
