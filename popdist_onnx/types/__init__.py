"""Plain types of the PopART API: tensors, options, data flow, enumerations."""

from typing import Any


def __getattr__(name: str) -> Any:
    from popdist_onnx import published

    return published(__name__, name)
