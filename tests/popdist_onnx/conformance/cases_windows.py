"""Products, convolutions, pooling, normalization and resampling."""
# ruff: noqa: B008, C901, E731, PLR0912, PLR0915, TC003 - a table that is written as loops

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.popdist_onnx.conformance.case import (
    OUT,
    Case,
    f,
    pairs,
)

# Products and windows.


def windows() -> Iterator[Case]:
    for a, b in (
        ([2, 3], [3, 4]),
        ([2, 2, 3], [3, 4]),
        ([3], [3, 4]),
        ([2, 3], [3]),
        ([3], [3]),
        ([2, 1, 2, 3], [3, 3, 4]),
    ):
        yield Case("MatMul", [f(*a), f(*b)])
    for setting in pairs(
        transA=[OUT, 0, 1], transB=[OUT, 0, 1], alpha=[OUT, 0.5], beta=[OUT, 2.0, 0.0]
    ):
        a = f(3, 2) if setting.get("transA") == 1 else f(2, 3)
        b = f(4, 3) if setting.get("transB") == 1 else f(3, 4)
        yield Case("Gemm", [a, b, f(2, 4)], setting, since=7)
        yield Case("Gemm", [a, b, f(4)], setting, since=7)
        yield Case("Gemm", [a, b, f(2, 1)], setting, since=7)
    yield Case("Gemm", [f(2, 3), f(3, 4)], since=11)
    yield Case(
        "Gemm", [f(2, 3), f(3, 4), f(4)], {"broadcast": 1}, until=6, torch=lambda a, b, c: a @ b + c
    )
    for setting in pairs(
        pads=[OUT, [1, 0, 0, 1], [1, 1, 1, 1]],
        strides=[OUT, [2, 1], [3, 2]],
        dilations=[OUT, [1, 2]],
        group=[1, 2],
    ):
        group = setting["group"]
        x, w, b = f(2, 4, 6, 5), f(4, 4 // group, 3, 2), f(4)
        settings = lambda s=setting: (
            tuple(s.get("strides", [1, 1])),
            tuple(s.get("dilations", [1, 1])),
            s["group"],
        )
        pads = setting.get("pads", [0] * 4)
        around = (pads[1], pads[3], pads[0], pads[2])
        yield Case(
            "Conv",
            [x, w, b],
            setting,
            torch=lambda x, w, b, s=settings(), p=around: functional.conv2d(
                functional.pad(x, p), w, b, s[0], 0, s[1], s[2]
            ),
            tolerance=2e-4,
        )
        yield Case(
            "ConvTranspose",
            [f(2, 4, 3, 3), f(4, 3, 3, 2), f(3 * group)],
            setting,
            torch=lambda x, w, b, s=settings(), p=pads: _crop(
                functional.conv_transpose2d(x, w, b, s[0], 0, 0, s[2], s[1]), p
            ),
            tolerance=2e-4,
        )
    for auto in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        for length, stride in ((5, 2), (6, 2), (5, 1)):
            setting = {"auto_pad": auto, "strides": [stride], "kernel_shape": [2]}
            pads = _same(length, stride, 2, auto)
            yield Case(
                "Conv",
                [f(1, 2, length), f(2, 2, 2)],
                setting,
                torch=lambda x, w, p=pads, s=stride: functional.conv1d(
                    functional.pad(x, p), w, None, s
                ),
            )
            yield Case(
                "MaxPool",
                [f(1, 2, length)],
                setting,
                torch=lambda x, p=pads, s=stride: functional.max_pool1d(
                    functional.pad(x, p, value=-1e9), 2, s
                ),
            )
            yield Case(
                "AveragePool",
                [f(1, 2, length)],
                setting,
                torch=lambda x, p=pads, s=stride: (
                    functional.avg_pool1d(functional.pad(x, p), 2, s)
                    / functional.avg_pool1d(functional.pad(torch.ones_like(x), p), 2, s)
                ),
            )
            yield Case(
                "LpPool",
                [np.abs(f(1, 2, length)) + 0.1],
                setting,
                torch=lambda x, p=pads, s=stride: functional.lp_pool1d(
                    functional.pad(x, p), 2.0, 2, s
                ),
            )
    for shape, kernel, stride in (([1, 1, 3], [3], 2), ([1, 1, 4], [2], 1)):
        for auto in ("SAME_UPPER", "SAME_LOWER"):
            yield Case(
                "ConvTranspose",
                [f(*shape), f(1, 1, *kernel)],
                {"auto_pad": auto, "strides": [stride]},
                since=11,
            )
    yield from _stated_lengths(f)
    for extra in ([1, 0], [1, 1]):
        yield Case(
            "ConvTranspose",
            [f(1, 2, 3, 3), f(2, 1, 3, 3)],
            {"strides": [2, 2], "output_padding": extra},
            torch=lambda x, w, e=tuple(extra): functional.conv_transpose2d(x, w, None, 2, 0, e),
        )
    for setting in pairs(
        ceil_mode=[0, 1],
        pads=[OUT, [1, 1, 1, 1]],
        strides=[[1, 1], [2, 2], [3, 2]],
        kernel_shape=[[2, 2], [3, 3]],
        count_include_pad=[0, 1],
    ):
        if any(s > k for s, k in zip(setting["strides"], setting["kernel_shape"], strict=True)):
            continue
        pad = 1 if "pads" in setting else 0
        kernel, strides, ceil = (
            setting["kernel_shape"],
            setting["strides"],
            bool(setting["ceil_mode"]),
        )
        counted = setting["count_include_pad"]
        average = lambda x, k=kernel, s=strides, p=pad, c=ceil, i=counted: functional.avg_pool2d(
            x, k, s, p, c, bool(i)
        )
        yield Case("AveragePool", [f(1, 2, 6, 7)], setting, since=10, torch=average)
        most = {name: value for name, value in setting.items() if name != "count_include_pad"}
        largest = lambda x, k=kernel, s=strides, p=pad, c=ceil: functional.max_pool2d(
            x, k, s, p, 1, c
        )
        yield Case("MaxPool", [f(1, 2, 6, 7)], most, since=10, torch=largest)
    # Rounding up makes a window in the padding along one axis, and one beyond it along the other.
    for counted in (0, 1):
        late = {
            "ceil_mode": 1,
            "pads": [1, 1, 1, 1],
            "strides": [2, 2],
            "kernel_shape": [3, 2],
            "count_include_pad": counted,
        }
        yield Case(
            "AveragePool",
            [f(1, 2, 6, 7)],
            late,
            since=10,
            awkward=True,
            torch=lambda x, i=counted: functional.avg_pool2d(x, (3, 2), 2, 1, True, bool(i)),  # noqa: FBT003
        )
    yield Case(
        "MaxPool",
        [f(1, 2, 6, 7)],
        {name: value for name, value in late.items() if name != "count_include_pad"},
        since=10,
        awkward=True,
        torch=lambda x: functional.max_pool2d(x, (3, 2), 2, 1, 1, True),  # noqa: FBT003
    )
    yield Case(
        "MaxPool",
        [f(1, 1, 8)],
        {"kernel_shape": [2], "dilations": [3]},
        since=10,
        torch=lambda x: functional.max_pool1d(x, 2, 1, 0, 3),
    )
    yield Case(
        "MaxPool",
        [np.ones([1, 1, 4, 4], np.float32)],
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        torch=lambda x: functional.max_pool2d(x, 2),
        awkward=True,
    )
    yield Case(
        "MaxPool",
        [f(1, 1, 4, 4)],
        {"kernel_shape": [2, 2]},
        torch=lambda x: functional.max_pool2d(x, 2, 1),
    )
    yield Case(
        "AveragePool", [f(1, 1, 4, 4)], {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0]}, since=7
    )
    for p in (OUT, 1, 2, 3):
        setting = {} if p is OUT else {"p": p}
        yield Case(
            "LpPool",
            [np.abs(f(1, 2, 4, 4)) + 0.1],
            {"kernel_shape": [2, 2], **setting},
            torch=lambda x, p=2 if p is OUT else p: functional.lp_pool2d(x, float(p), 2, 1),
        )
        yield Case(
            "GlobalLpPool",
            [np.abs(f(1, 2, 3, 3)) + 0.1],
            setting,
            torch=lambda x, p=2 if p is OUT else p: (x**p).sum((2, 3), keepdim=True) ** (1 / p),
        )
    yield Case("GlobalAveragePool", [f(2, 3, 2, 2)])
    yield Case("GlobalMaxPool", [f(2, 3, 2, 2)], torch=lambda x: x.amax((2, 3), keepdim=True))
    # Windows shorter than their steps need no padding.
    for auto in ("SAME_UPPER", "SAME_LOWER"):
        setting = {"auto_pad": auto, "strides": [3, 2], "kernel_shape": [1, 1]}
        for op_type in ("MaxPool", "AveragePool"):
            yield Case(
                op_type,
                [f(1, 2, 6, 4)],
                setting,
                torch=lambda x: x[:, :, ::3, ::2] * 1,
                awkward=True,
            )
    for shape in ([2, 5], [2, 4, 3], [1, 3, 2, 2, 2]):
        yield Case(
            "LRN",
            [f(*shape)],
            {"size": 3, "alpha": 0.5},
            torch=lambda x: functional.local_response_norm(
                x.reshape(*x.shape[:2], -1), 3, 0.5
            ).reshape(x.shape),
            awkward=True,
        )
    yield Case("LRN", [f(3, 3, 2, 2)], {"size": 3})
    yield Case("LRN", [f(4, 4, 2, 2)], {"size": 2, "alpha": 0.5, "beta": 0.6, "bias": 2.0})
    for epsilon in (OUT, 0.1):
        setting = {} if epsilon is OUT else {"epsilon": epsilon}
        e = 1e-5 if epsilon is OUT else epsilon
        yield Case(
            "InstanceNormalization",
            [f(2, 3, 4), f(3), f(3)],
            setting,
            torch=lambda x, s, b, e=e: functional.instance_norm(x, None, None, s, b, eps=e),
            tolerance=1e-3,
        )
        yield Case(
            "BatchNormalization",
            [f(2, 3, 4), f(3), f(3), f(3), np.abs(f(3)) + 0.5],
            setting,
            fixed=[3, 4],
            since=7,
            torch=lambda x, s, b, m, v, e=e: functional.batch_norm(
                x, m.detach(), v.detach(), s, b, eps=e
            ),
            tolerance=1e-3,
        )
    yield Case(
        "Upsample",
        [f(1, 1, 2, 3)],
        {"mode": "nearest", "scales": [1.0, 1.0, 2.0, 1.5]},
        since=7,
        until=8,
        torch=lambda x: functional.interpolate(x, scale_factor=(2, 1.5)),
    )
    yield Case(
        "Upsample",
        [f(1, 1, 2, 3), np.array([1, 1, 2, 1.5], np.float32)],
        {"mode": "nearest"},
        since=9,
        until=9,
        fixed=[1],
        torch=lambda x, _: functional.interpolate(x, scale_factor=(2, 1.5)),
    )
    yield Case(
        "Resize",
        [f(1, 1, 4, 4), np.array([1, 1, 2, 0.6], np.float32)],
        {"mode": "nearest"},
        since=10,
        until=10,
        fixed=[1],
        torch=lambda x, _: functional.interpolate(x, scale_factor=(2, 0.6)),
    )
    yield Case(
        "Resize",
        [f(1, 1, 4, 4), np.array([1, 1, 2, 0.6], np.float32)],
        {"mode": "linear"},
        since=10,
        until=10,
        fixed=[1],
        torch=_asymmetric,
    )
    places = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
    for setting in pairs(
        mode=["nearest", "linear", "cubic"],
        coordinate_transformation_mode=places,
        nearest_mode=[OUT, "round_prefer_ceil", "floor", "ceil"],
        exclude_outside=[0, 1],
        cubic_coeff_a=[OUT, -0.5],
    ):
        if setting["mode"] != "cubic":
            setting["exclude_outside"] = 0
        for scales in ([1, 1, 1.7, 0.6], [1, 1, 2, 3]):
            yield Case(
                "Resize",
                [f(1, 1, 2, 3), None, np.array(scales, np.float32)],
                setting,
                since=11,
                fixed=[2],
            )


def _same(length: int, stride: int, kernel: int, auto: str) -> tuple[int, int]:
    """The padding that ONNX's text gives an axis."""
    if auto == "VALID":
        return 0, 0
    total = max(0, (-(-length // stride) - 1) * stride + kernel - length)
    small, large = total // 2, total - total // 2
    return (small, large) if auto == "SAME_UPPER" else (large, small)


def _stated_lengths(f: Any) -> Iterator[Case]:
    """Transposed convolutions of stated lengths: more or less than the windows make, odd or even.

    The text of opset 11 puts the larger half of an odd padding first, with SAME_UPPER last.
    """
    for size, stride, dilation, extra in (
        *((1, 1, 1, 0), (2, 1, 1, 0), (3, 2, 1, 0), (3, 2, 2, 1), (1, 2, 1, 0)),
        *((2, 1, 2, 1), (3, 3, 1, 1), (1, 3, 2, 1)),
    ):
        whole = 3 * stride + (size - 1) * dilation + 1 + extra
        wanted = {"SAME_UPPER": 4 * stride, "SAME_LOWER": 4 * stride}
        stated = {f"{more:+}": whole + more for more in (-3, -2, -1, 0, 2) if whole + more > 0}
        for name, length in {**wanted, **stated}.items():
            total = max(whole - length, 0)
            first = total // 2 if name == "SAME_UPPER" else total - total // 2
            setting = {"strides": [stride], "dilations": [dilation], "output_padding": [extra]}
            setting |= {"auto_pad": name} if name in wanted else {"output_shape": [length]}
            yield Case(
                "ConvTranspose",
                [f(2, 2, 4), f(2, 3, size), f(3)],
                setting,
                since=11,
                torch=lambda x, w, b, s=stride, d=dilation, first=first, n=length: (
                    functional.pad(
                        functional.conv_transpose1d(x, w, None, s, 0, 0, 1, d)[..., first:],
                        (0, n),
                    )[..., :n]
                    + b[:, None]
                ),
            )


def _crop(x: torch.Tensor, pads: Sequence[int]) -> torch.Tensor:
    return x[:, :, pads[0] : x.shape[2] - pads[2], pads[1] : x.shape[3] - pads[3]]


def _asymmetric(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Linear weights at places that begin at 0."""
    for axis, (scale, made) in enumerate(((2.0, 8), (float(np.float32(0.6)), 2)), start=2):
        places = torch.arange(made, dtype=torch.float64) / scale
        low = places.floor().long().clamp(max=x.shape[axis] - 1)
        high = (low + 1).clamp(max=x.shape[axis] - 1)
        part = (places - places.floor()).reshape([-1 if one == axis else 1 for one in range(4)])
        x = x.index_select(axis, low) * (1 - part) + x.index_select(axis, high) * part
    return x
