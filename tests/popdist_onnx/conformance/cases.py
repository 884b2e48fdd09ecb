"""Every operator of ai.onnx that PopART offers, with combinations of its attributes, as data.

A case is one node. Combinations of attributes are pairwise; ``POPDIST_EXHAUSTIVE=1`` takes all.
"""
# ruff: noqa: E731, TC003 - a table that is written as loops

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
import torch
from torch.nn import functional

from tests.popdist_onnx.conformance.case import (
    Case,
    f,
    ints,
)
from tests.popdist_onnx.conformance.cases_arrays import layout, reductions
from tests.popdist_onnx.conformance.cases_elementwise import binary, unary
from tests.popdist_onnx.conformance.cases_windows import windows


def older() -> Iterator[Case]:
    """Forms that newer opsets changed."""
    x, y = np.array([[True, False], [True, False]]), np.array([True, False])
    for op_type, function in (("And", "__and__"), ("Or", "__or__"), ("Xor", "__xor__")):
        for axis in (0, 1):
            turned = (
                (lambda a, b, g=function: getattr(a, g)(b[:, None]))
                if axis == 0
                else (lambda a, b, g=function: getattr(a, g)(b))
            )
            yield Case(
                op_type, [x, y], {"broadcast": 1, "axis": axis}, until=6, torch=turned, slope=False
            )
    for op_type, function in (("Equal", torch.eq), ("Greater", torch.gt), ("Less", torch.lt)):
        kind = np.int32 if op_type == "Equal" else np.float32
        operands = [ints(1, 2, 3, 1).reshape(2, 2).astype(kind), ints(1, 2).astype(kind)]
        yield Case(
            op_type,
            operands,
            {"broadcast": 1, "axis": 0},
            until=6,
            torch=lambda a, b, g=function: g(a, b[:, None]),
            slope=False,
        )
    for pads in ([1, 1], [1, 0]):
        most = lambda x, p=tuple(pads): functional.max_pool1d(
            functional.pad(x, p, value=-1e9), 2, 1
        )
        yield Case("MaxPool", [f(1, 2, 4)], {"kernel_shape": [2], "pads": pads}, torch=most)
        for counted in (0, 1):
            sums = lambda x, p=tuple(pads): 2 * functional.avg_pool1d(functional.pad(x, p), 2, 1)
            mean = lambda x, c=counted, g=sums: g(x) / (2 if c else g(torch.ones_like(x)))
            if not counted:
                plain = {"kernel_shape": [2], "pads": pads}
                yield Case("AveragePool", [f(1, 2, 4)], plain, torch=mean)
            yield Case(
                "AveragePool",
                [f(1, 2, 4)],
                {"kernel_shape": [2], "pads": pads, "count_include_pad": counted},
                since=7,
                torch=mean,
            )
    for auto, cut in (("SAME_UPPER", slice(1, None)), ("SAME_LOWER", slice(0, -1))):
        # An odd padding of 1 is cut off at one end, which opset 11 exchanged.
        whole = lambda x, w, c=cut: functional.conv_transpose1d(x, w)[..., c]
        yield Case(
            "ConvTranspose",
            [f(1, 1, 4), f(1, 1, 2)],
            {"auto_pad": auto, "strides": [1]},
            until=10,
            torch=whole,
        )
    for trans_a, trans_b in ((0, 1), (1, 0)):
        a, b = f(*((3, 2) if trans_a else (2, 3))), f(*((4, 3) if trans_b else (3, 4)))
        product = lambda a, b, c, t=trans_a, u=trans_b: (
            0.5 * (a.T if t else a) @ (b.T if u else b) + 2 * c
        )
        yield Case(
            "Gemm",
            [a, b, f(4)],
            {"transA": trans_a, "transB": trans_b, "alpha": 0.5, "beta": 2.0, "broadcast": 1},
            until=6,
            torch=product,
        )
    normal = lambda x, s, b, m, v: functional.batch_norm(x, m.detach(), v.detach(), s, b, eps=0.1)
    yield Case(
        "BatchNormalization",
        [f(2, 3, 4), f(3), f(3), f(3), np.abs(f(3)) + 0.5],
        {"epsilon": 0.1, "is_test": 1},
        fixed=[3, 4],
        until=6,
        torch=normal,
        tolerance=1e-3,
    )


def empty() -> Iterator[Case]:
    """Tensors without elements."""
    yield Case("MatMul", [f(0, 3), f(3, 2)], torch=torch.matmul)
    yield Case("MatMul", [f(2, 0), f(0, 3)], torch=torch.matmul)
    yield Case("Gemm", [f(0, 3), f(3, 2), f(2)], since=7, torch=lambda a, b, c: a @ b + c)
    yield Case("Softmax", [f(0, 3)], {"axis": 1}, torch=lambda x: x.softmax(1))
    yield Case("ReduceSum", [f(0, 3)], {"axes": [0]}, torch=lambda x: x.sum(0, keepdim=True))
    yield Case("ReduceMax", [f(0, 3)], {"axes": [1]}, torch=lambda x: x.amax(1, keepdim=True))
    yield Case("ReduceMean", [f(0, 3)], {"axes": [1]}, torch=lambda x: x.mean(1, keepdim=True))
    yield Case("Flatten", [f(2, 0, 3)], torch=lambda x: x.flatten(1))
    yield Case("Transpose", [f(0, 3)], torch=lambda x: x.T)
    yield Case("Unsqueeze", [f(0, 3)], {"axes": [0]}, torch=lambda x: x[None])
    yield Case("Squeeze", [f(0, 1)], {"axes": [1]}, torch=lambda x: x[:, 0])
    yield Case("Expand", [f(1, 0), ints(3, 0)], since=8, torch=lambda x, _: x.expand(3, 0))
    yield Case("Where", [np.zeros([0], bool), f(0), f(1)], since=9, torch=torch.where)
    yield Case("Conv", [f(0, 2, 5), f(3, 2, 2), f(3)], torch=functional.conv1d)
    yield Case("GlobalAveragePool", [f(0, 3, 2, 2)], torch=lambda x: x.mean((2, 3), keepdim=True))
    yield Case("Max", [f(0, 2), f(2)], since=8, torch=torch.maximum)


def all_cases() -> list[Case]:
    """Every case."""
    nothing = [replace(case, awkward=True) for case in empty()]
    return [*unary(), *binary(), *reductions(), *layout(), *windows(), *older(), *nothing]


def opsets_of(case: Case) -> list[int]:
    """The opsets in which a case is run: its first, and where the operator changes."""
    return [
        opset
        for opset in range(case.since, case.until + 1)
        if opset == case.since or version(case.op_type, opset) == opset
    ]


def version(op_type: str, opset: int) -> int:
    """The opset that an operator of an opset is from; 0 where there is none."""
    try:
        schema = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return 0
    return 0 if schema.deprecated else int(schema.since_version)


ELSEWHERE = {
    "Constant": "tests/popdist_onnx/graph/test_conform.py",
    **dict.fromkeys(("If", "Loop", "Scan"), "tests/popdist_onnx/gradients/test_control_flow.py"),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), "tests/popdist_onnx/gradients/test_recurrent.py"),
    "Dropout": "tests/popdist_onnx/transforms/test_randomness.py",
    **dict.fromkeys(
        ("Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        "tests/popdist_onnx/transforms/test_randomness.py",
    ),
}
"""Operators that other tests compare, because they are no single node of numbers."""

EXCLUDED = {
    **dict.fromkeys(
        (
            *("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"),
            *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),
        ),
        "it works on quantized numbers: PopART has no such operator, ONNX Runtime's kernel runs",
    ),
    **dict.fromkeys(
        (
            *("ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty"),
            *("SequenceErase", "SequenceInsert", "SequenceLength", "SplitToSequence"),
        ),
        "it works on sequences: PopART has no such operator, ONNX Runtime's kernel runs",
    ),
    **dict.fromkeys(
        ("StringNormalizer", "TfIdfVectorizer"), "it works on text: PopART has no such operator"
    ),
    **dict.fromkeys(
        ("MaxRoiPool", "NonMaxSuppression", "MaxUnpool"),
        "PopART has no such operator; ONNX Runtime's kernel runs, without a gradient",
    ),
    "RoiAlign": "compared with differences in gradients/test_regions.py",
}
"""Operators without a case, and why."""

WITHOUT_CASE = {
    ("ConvTranspose", "output_shape"): "compared with ONNX's text in graph/test_conform.py",
    ("ConvTranspose", "kernel_shape"): "the weights say it",
    ("BatchNormalization", "spatial"): "with numpy and torch: graph/test_conform.py",
    ("BatchNormalization", "momentum"): "of training only: graph/test_conform.py",
    ("MaxPool", "storage_order"): "it orders the indices, which PopART does not have",
    ("EyeLike", "dtype"): "the type of the input is taken",
    ("ConstantOfShape", "value"): "a tensor: graph/test_conform.py takes the default",
    ("LpPool", "pads"): "torch and the evaluator have no padded form",
    ("LpPool", "strides"): "as of the other pools",
    ("Upsample", "mode"): "before opset 7 ONNX Runtime refuses the operator",
    ("Upsample", "height_scale"): "a form of before opset 7, which ONNX Runtime refuses",
    ("Upsample", "width_scale"): "a form of before opset 7, which ONNX Runtime refuses",
    ("Resize", "extrapolation_value"): "of tf_crop_and_resize only, which PopART does not have",
}
"""Attributes that no case gives, and why."""
