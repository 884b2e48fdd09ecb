"""`InputShapeInfo`: the shapes of inputs whose shape the model leaves open."""

from __future__ import annotations

from popdist_onnx.errors import ArgumentError, ValueRangeError
from popdist_onnx.types.tensor_info import TensorInfo


class InputShapeInfo:
    """Shapes by input id."""

    def __init__(self) -> None:
        self._infos: dict[str, TensorInfo] = {}

    def add(self, tensor_id: str, info: TensorInfo) -> None:
        """Says what an input looks like.

        Args:
            tensor_id: The input.
            info: Its element type and shape.

        Raises:
            ArgumentError: The second argument is no `TensorInfo`.
        """
        if not isinstance(info, TensorInfo):
            raise ArgumentError("PD507", "an input is described by a TensorInfo", value=info)
        self._infos[tensor_id] = info

    def get(self, tensor_id: str) -> TensorInfo:
        """What was said of an input.

        Args:
            tensor_id: The input.

        Returns:
            Its element type and shape.

        Raises:
            ValueRangeError: Nothing was said.
        """
        if tensor_id not in self._infos:
            raise ValueRangeError(
                "PD507",
                f"nothing is known of input '{tensor_id}'",
                accepted=", ".join(self._infos) or "no input was added",
            )
        return self._infos[tensor_id]

    def has(self, tensor_id: str) -> bool:
        """Whether something was said of an input.

        Args:
            tensor_id: The input.

        Returns:
            True if so.
        """
        return tensor_id in self._infos

    def getAllTensorIds(self) -> list[str]:
        """The inputs of which something was said."""
        return list(self._infos)
