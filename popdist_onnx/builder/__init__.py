"""Writes ONNX models operator by operator, with the names of PopART's builder."""
