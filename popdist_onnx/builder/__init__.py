"""Writes ONNX models operator by operator, with the names of PopART's builder."""

from typing import Any


def __getattr__(name: str) -> Any:
    from popdist_onnx import published

    return published(__name__, name)
