"""The builder's methods that tell what the graph holds so far."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from popdist_onnx.builder.model_files import ModelFiles
from popdist_onnx.errors import ValueRangeError
from popdist_onnx.types import DataType


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
