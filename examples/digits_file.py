"""Writes ``digits.onnx``: an untrained network for handwritten digits of 8 x 8 pixels.

    python examples/digits_file.py examples/digits.onnx

It stands for an ONNX file from anywhere: two layers, and a batch of any size.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx.numpy_helper
import onnx.parser

NETWORK = """
<ir_version: 8, opset_import: ["": 13]>
digits (float[N, 64] pixels) => (float[N, 10] scores) {
    hidden = Gemm <transB = 1> (pixels, hidden_weight, hidden_bias)
    active = Relu (hidden)
    scores = Gemm <transB = 1> (active, scores_weight, scores_bias)
}
"""
SIZES = {"hidden": (32, 64), "scores": (10, 32)}


def network() -> onnx.ModelProto:
    """The network, with the same weights on every call."""
    model = onnx.parser.parse_model(NETWORK)
    rng = np.random.default_rng(0)
    for name, (outputs, inputs) in SIZES.items():
        weight = rng.normal(0, np.sqrt(2 / inputs), (outputs, inputs))
        for part, values in {"weight": weight, "bias": np.zeros(outputs)}.items():
            tensor = onnx.numpy_helper.from_array(values.astype(np.float32), f"{name}_{part}")
            model.graph.initializer.append(tensor)
    onnx.checker.check_model(model)
    return model


def main() -> int:
    """Writes the file.

    Returns:
        0.
    """
    Path(sys.argv[1]).write_bytes(network().SerializeToString(deterministic=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
