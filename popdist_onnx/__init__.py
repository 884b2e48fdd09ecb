"""The ONNX adapter of popdist."""
