"""The builder's methods that make a model of the graph and write it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from popdist_onnx.builder.core import DEFAULT_OPSETS, Core
from popdist_onnx.errors import ValueRangeError, popart_exception
from popdist_onnx.lowering import DOMAIN
from popdist_onnx.types import DataType

if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import PathLike


_PUBLISHED_IR_VERSIONS = {6: 3, 7: 3, 8: 3, 9: 4, 10: 4, 11: 4}


class ModelFiles(Core):
    """The model, as bytes or as files."""

    def getModelProto(self) -> bytes:
        """The model.

        Returns:
            A serialized ``onnx.ModelProto``.

        Raises:
            popart_exception: Its weights are larger than 2 GiB.
        """
        return bytes(self.proto().SerializeToString())

    def saveModelProto(self, fn: str | PathLike[str]) -> None:
        """Writes the model to a file.

        Args:
            fn: The file.
        """
        onnx.save(self.proto(), Path(fn))

    def saveInitializersExternally(self, ids: Iterable[str], fn: str | PathLike[str]) -> None:
        """Moves the content of initializers to a file beside the model's.

        The model that is written afterwards refers to that file by its name, so both belong into
        the same folder.

        Args:
            ids: The initializers.
            fn: The file; it must not exist.

        Raises:
            ValueRangeError: An id is no initializer, or the file exists.
        """
        path = Path(fn)
        if path.exists():
            raise ValueRangeError("PD509", "the file exists already", value=str(path))
        chosen = list(ids)
        for tensor in chosen:
            if tensor not in self.graph.initializers:
                raise ValueRangeError(
                    "PD504",
                    f"'{tensor}' is no initializer",
                    accepted=", ".join(self.graph.initializers) or "there are none",
                )
        with path.open("wb") as file:
            for tensor in chosen:
                value = self.graph.initializers[tensor]
                content = value.const_value
                if content is None:
                    continue
                data = content.tobytes()
                value.const_value = ir.ExternalTensor(
                    path.name,
                    file.tell(),
                    len(data),
                    content.dtype,
                    shape=ir.Shape(list(content.shape.numpy())),
                    name=tensor,
                    base_dir=path.parent.absolute(),
                )
                file.write(data)

    def proto(self) -> onnx.ModelProto:
        """The model as a message.

        Returns:
            The message, independent of this builder.

        Raises:
            popart_exception: Its weights are larger than 2 GiB.
        """
        self._require_readable()
        opset = self.onnx_opset
        self.graph.opset_imports.clear()
        self.graph.opset_imports.update({"": opset, DOMAIN: self._opsets.get(DOMAIN, 1)})
        for domain, version in self._opsets.items():
            if domain not in ("ai.onnx", *DEFAULT_OPSETS):
                self.graph.opset_imports[domain] = version
        model = ir.Model(
            self.graph, ir_version=_ir_version(opset), producer_name="popdist", doc_string=None
        )
        proto: onnx.ModelProto = ir.to_proto(model)
        return proto

    def _require_readable(self) -> None:
        contents = [value.const_value for value in self.graph.initializers.values()]
        inside = [
            one for one in contents if one is not None and not isinstance(one, ir.ExternalTensor)
        ]
        if (size := sum(one.nbytes for one in inside)) >= _MOST_BYTES:
            raise popart_exception(
                "PD509",
                "the weights are larger than the 2 GiB that a serialized model can have",
                value=f"{size} bytes",
                hint="move weights to a file with saveInitializersExternally, then saveModelProto",
            )


_MOST_BYTES = 1 << 31
"""What readers of serialized models take, by the design of protobuf."""


def _ir_version(opset: int) -> int:
    if opset in _PUBLISHED_IR_VERSIONS:
        return _PUBLISHED_IR_VERSIONS[opset]
    return int(onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)]))


def as_tensor(array: np.ndarray[Any, Any], name: str) -> ir.TensorProtocol:
    """An array as the content of an initializer.

    Args:
        array: The array, which is copied where it is not contiguous.
        name: The initializer.

    Returns:
        The tensor.
    """
    return ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)


# The builder's methods that tell what the graph holds so far.


class Queries(ModelFiles):
    """Ids, types and shapes."""

    def getInputTensorIds(self) -> list[str]:
        """The model's inputs, initialized ones among them."""
        return [str(value.name) for value in self.graph.inputs]

    def getOutputTensorIds(self) -> list[str]:
        """The model's outputs."""
        return [str(value.name) for value in self.graph.outputs]

    def getValueTensorIds(self) -> list[str]:
        """The tensors between inputs and outputs."""
        ends = {*self.getInputTensorIds(), *self.getOutputTensorIds()}
        return [one for one in self._values if one not in ends]

    def getTrainableTensorIds(self) -> list[str]:
        """The initialized inputs, which training changes."""
        return [one for one in self.getInputTensorIds() if self.isInitializer(one)]

    def isInitializer(self, tensor_id: str) -> bool:
        """Whether a tensor has its content from the model.

        Args:
            tensor_id: The tensor.

        Returns:
            True if so.
        """
        return tensor_id in self.graph.initializers

    def getTensorShape(self, tensor_id: str) -> list[int]:
        """The dimensions of a tensor.

        Args:
            tensor_id: The tensor.

        Returns:
            Its dimensions.

        Raises:
            ValueRangeError: There is no such tensor, or its shape cannot be told yet.
        """
        value = self._inferred(tensor_id)
        dims = None if value.shape is None else list(value.shape)
        if dims is None or not all(isinstance(dim, int) for dim in dims):
            raise ValueRangeError(
                "PD507",
                f"the shape of '{tensor_id}' cannot be inferred",
                value=None if dims is None else [str(dim) for dim in dims],
                hint="an operator before it gets its shape from data, or mismatched operands",
            )
        return [dim for dim in dims if isinstance(dim, int)]

    def getTensorDtypeString(self, tensor_id: str) -> str:
        """The element type of a tensor.

        Args:
            tensor_id: The tensor.

        Returns:
            Its name in lower case, as in ``float32``.

        Raises:
            ValueRangeError: There is no such tensor, or its type cannot be told yet.
        """
        value = self._inferred(tensor_id)
        if value.dtype is None:
            raise ValueRangeError("PD507", f"the type of '{tensor_id}' cannot be inferred")
        return DataType.from_onnx(int(value.dtype)).lower

    def _inferred(self, tensor_id: str) -> ir.Value:
        value = self.value(tensor_id)
        if value.shape is None or value.dtype is None:
            # Control flow is inferred over the whole graph, which nodes on their own are not.
            self._infer_all()
        return value

    def _infer_all(self) -> None:
        inferred = onnx.shape_inference.infer_shapes(self.proto(), data_prop=True)
        for info in inferred.graph.value_info:
            value = self._values.get(info.name)
            if value is None or not info.type.HasField("tensor_type"):
                continue
            found = ir.from_proto(info)
            value.type = value.type or found.type
            if value.shape is None:
                value.shape = found.shape
