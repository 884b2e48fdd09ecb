"""Cases of functions of single elements."""
# ruff: noqa: ARG005 - references take all of an operator's inputs, whether they count or not

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from tests.popdist_onnx.gradients.harness import Case, normal, positive, within_one

CASES = [
    *[
        Case(n, [normal(3, 4)], getattr(torch, n.lower()))
        for n in [
            "Abs",
            "Cos",
            "Cosh",
            "Erf",
            "Exp",
            "Neg",
            "Sin",
            "Sinh",
            "Tanh",
            "Sigmoid",
            "Atan",
            "Asinh",
            "Relu",
        ]
    ],
    *[Case(n, [positive(3, 4)], getattr(torch, n.lower())) for n in ["Log", "Sqrt", "Reciprocal"]],
    *[
        Case(n, [within_one(3, 4)], getattr(torch, n.lower()))
        for n in ["Acos", "Asin", "Atanh", "Tan"]
    ],
    Case("Acosh", [positive(3, 4) + 1], torch.acosh),
    Case("Identity", [normal(3)], lambda x: x),
    Case("LeakyRelu", [normal(3, 4)], lambda x: functional.leaky_relu(x, 0.2), {"alpha": 0.2}),
    Case("PRelu", [normal(2, 3, 4), normal(3, 1)], lambda x, s: torch.where(x > 0, x, x * s)),
    Case(
        "PRelu",
        [normal(2, 3, 4), normal(3)],
        lambda x, s: torch.where(x > 0, x, x * s[:, None]),
        opset=6,
    ),
    Case("ThresholdedRelu", [normal(3, 4)], lambda x: torch.where(x > 0.5, x, 0), {"alpha": 0.5}),
    Case("Elu", [normal(3, 4)], lambda x: functional.elu(x, 0.7), {"alpha": 0.7}),
    Case("Shrink", [normal(3, 4)], lambda x: functional.hardshrink(x, 0.4), {"lambd": 0.4}),
    Case("Selu", [normal(3, 4)], functional.selu),
    Case("Celu", [normal(3, 4)], lambda x: functional.celu(x, 0.7), {"alpha": 0.7}),
    Case("HardSigmoid", [normal(3, 4) * 4], lambda x: torch.clamp(0.2 * x + 0.5, 0, 1)),
    Case("HardSwish", [normal(3, 4) * 3], functional.hardswish),
    Case("Softplus", [normal(3, 4)], functional.softplus),
    Case("Softsign", [normal(3, 4)], functional.softsign),
    Case("Mish", [normal(3, 4)], functional.mish),
    Case("Gelu", [normal(3, 4)], functional.gelu, opset=20),
    Case(
        "Gelu",
        [normal(3, 4)],
        lambda x: functional.gelu(x, approximate="tanh"),
        {"approximate": "tanh"},
        opset=20,
    ),
    Case("Add", [normal(3, 4), normal(4)], torch.add),
    Case("Sub", [normal(3, 1), normal(2, 3, 4)], torch.sub),
    Case("Mul", [normal(3, 4), normal(1, 4)], torch.mul),
    Case("Div", [normal(3, 4), positive(4)], torch.div),
    Case("Pow", [positive(3, 4), normal(4)], torch.pow),
    Case(
        "Pow",
        [normal(3, 4), np.array(2.0, "f4")],
        lambda x, e: x ** e.detach(),
        constants=[1],
        wanted=[0],
    ),
    Case("Pow", [normal(3, 4), np.array(3, np.int64)], lambda x, e: x**3),
    Case("Mod", [normal(3, 4) * 3, positive(4)], torch.fmod, {"fmod": 1}),
    Case("Sum", [normal(3, 4), normal(4), normal(1, 1)], lambda *a: sum(a)),
    Case("Mean", [normal(3, 4), normal(4), normal(1, 1)], lambda *a: sum(a) / 3),
    Case("Max", [normal(3, 4), normal(4)], torch.maximum),
    Case("Min", [normal(3, 4), normal(4)], torch.minimum),
    Case("Where", [np.array([True, False, True]), normal(2, 3), normal(3)], torch.where),
    Case(
        "Clip",
        [normal(3, 4), np.array(-0.5, "f4"), np.array(0.5, "f4")],
        lambda x, a, b: x.clamp(-0.5, 0.5),
        wanted=[0],
    ),
    Case("Clip", [normal(3, 4)], lambda x: x.clamp(-0.5, 0.5), {"min": -0.5, "max": 0.5}, opset=6),
    Case("Cast", [normal(3, 4)], lambda x: x, {"to": 1}),
    Case(
        "Add",
        [normal(2, 3, 4), normal(3)],
        lambda a, b: a + b[:, None],
        {"broadcast": 1, "axis": 1},
        opset=6,
    ),
]
