"""Which element types ONNX Runtime's CPU kernels train in, by operator.

Float32 always works. Float16 works where a kernel exists, or where the runtime casts to float32
around one, which it does for all but the operators below. Of bfloat16 it has hardly any kernels,
and it does not cast: cast to float32 around the operators, or train in float32.
"""

from __future__ import annotations

WITHOUT_FLOAT64 = frozenset(
    {
        *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh", "Tan", "Erf", "Celu"),
        *("AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool"),
        *("Conv", "ConvTranspose", "Resize", "Upsample"),
        *("InstanceNormalization", "LRN", "MeanVarianceNormalization"),
        *("GRU", "LSTM", "RNN"),
        *("Mean", "OneHot"),
    }
)
"""Operators that the runtime cannot train in float64 (ONNX Runtime 1.31, tried one by one)."""

WITHOUT_FLOAT16 = frozenset({"Celu", "MeanVarianceNormalization"})
"""Operators that the runtime cannot train in float16."""
