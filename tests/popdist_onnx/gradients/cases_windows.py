"""Cases of convolutions, pools and resizing."""
# ruff: noqa: ARG005 - references take all of an operator's inputs, whether they count or not

from __future__ import annotations

import numpy as np
from torch.nn import functional

from tests.popdist_onnx.gradients.harness import Case, integers, normal

CASES = [
    Case(
        "Conv",
        [normal(2, 3, 7, 8), normal(4, 3, 3, 3), normal(4)],
        lambda x, w, b: functional.conv2d(x, w, b, padding=1),
        {"pads": [1, 1, 1, 1]},
    ),
    Case(
        "Conv",
        [normal(2, 18, 7, 8), normal(4, 18, 3, 3), normal(4)],
        lambda x, w, b: functional.conv2d(x, w, b, padding=1, stride=2),
        {"pads": [1, 1, 1, 1], "strides": [2, 2]},
    ),
    Case(
        "Conv",
        [normal(2, 18, 8, 8), normal(4, 18, 3, 3)],
        lambda x, w: functional.conv2d(functional.pad(x, (0, 1, 0, 1)), w, stride=2),
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    ),
    Case(
        "Conv",
        [normal(2, 4, 9), normal(6, 2, 3), normal(6)],
        lambda x, w, b: functional.conv1d(x, w, b, dilation=2, groups=2),
        {"group": 2, "dilations": [2]},
    ),
    Case(
        "Conv",
        [normal(2, 4, 9, 9), normal(4, 1, 3, 3)],
        lambda x, w: functional.conv2d(x, w, groups=4, stride=2),
        {"group": 4, "strides": [2, 2]},
    ),
    Case(
        "Conv",
        [normal(2, 3, 12, 12), normal(4, 3, 7, 7)],
        lambda x, w: functional.conv2d(x, w, stride=2, padding=3),
        {"strides": [2, 2], "pads": [3] * 4},
    ),
    Case(
        "Conv",
        [normal(2, 4, 12, 12), normal(4, 2, 5, 5)],
        lambda x, w: functional.conv2d(x, w, stride=2, padding=2, groups=2),
        {"strides": [2, 2], "pads": [2] * 4, "group": 2},
    ),
    *[
        Case(
            "GridSample",
            [normal(2, 3, 5, 6), (1.2 * normal(2, 4, 7, 2)).astype(np.float32)],
            lambda x, grid, m=mode, p=padding, a=corners: functional.grid_sample(
                x, grid, m, p, align_corners=bool(a)
            ),
            {"mode": mode, "padding_mode": padding, "align_corners": corners},
            opset=16,
        )
        for mode, padding, corners in (
            ("bilinear", "zeros", 0),
            ("bilinear", "border", 0),
            ("bilinear", "zeros", 1),
            ("bilinear", "border", 1),
            ("nearest", "zeros", 0),
        )
    ],
    Case("Conv", [normal(1, 2, 4, 5, 6), normal(3, 2, 2, 2, 2)], functional.conv3d),
    Case(
        "Conv",
        [normal(2, 3, 5, 6, 7), normal(4, 3, 3, 3, 3), normal(4)],
        lambda x, w, b: functional.conv3d(
            functional.pad(x, (2, 0, 1, 1, 0, 1)), w, b, stride=(1, 2, 1)
        ),
        {"pads": [0, 1, 2, 1, 1, 0], "strides": [1, 2, 1]},
    ),
    Case(
        "Conv",
        [normal(2, 3, 40), normal(4, 3, 31)],
        lambda x, w: functional.conv1d(x, w, padding=15, dilation=1),
        {"pads": [15, 15]},
    ),
    Case("Conv", [normal(2, 20, 5, 5), normal(7, 20, 1, 1)], functional.conv2d),
    Case(
        "ConvTranspose",
        [normal(2, 3, 5, 5), normal(3, 4, 3, 3), normal(4)],
        lambda x, w, b: functional.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1),
        {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]},
    ),
    Case(
        "ConvTranspose",
        [normal(2, 4, 5), normal(4, 3, 3)],
        lambda x, w: functional.conv_transpose1d(x, w, groups=2, dilation=2),
        {"group": 2, "dilations": [2]},
    ),
    Case(
        "MaxPool",
        [normal(2, 3, 8, 8)],
        lambda x: functional.max_pool2d(x, 2),
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    Case(
        "MaxPool",
        [normal(2, 3, 8, 8)],
        lambda x: functional.max_pool2d(x, 3, 2, 1),
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4},
    ),
    Case(
        "MaxPool",
        [normal(2, 3, 8, 8)],
        lambda x: functional.max_pool2d(x, 3, 2, ceil_mode=True),
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        opset=10,
    ),
    Case(
        "AveragePool",
        [normal(2, 3, 8, 8)],
        lambda x: functional.avg_pool2d(x, 2),
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    Case(
        "AveragePool",
        [normal(2, 3, 8, 8)],
        lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4},
    ),
    Case(
        "AveragePool",
        [normal(2, 3, 8, 8)],
        lambda x: functional.avg_pool2d(x, 3, 2, 1),
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "count_include_pad": 1},
    ),
    Case(
        "AveragePool",
        [normal(2, 3, 8, 8)],
        lambda x: functional.avg_pool2d(x, 3, 2, ceil_mode=True),
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    ),
    Case(
        "AveragePool",
        [normal(2, 3, 8, 8)],
        lambda x: functional.avg_pool2d(x, 8),
        {"kernel_shape": [8, 8]},
    ),
    Case("GlobalAveragePool", [normal(2, 3, 4, 5)], lambda x: x.mean((2, 3), keepdim=True)),
    Case("GlobalMaxPool", [normal(2, 3, 4, 5)], lambda x: x.amax((2, 3), keepdim=True)),
    Case("GlobalLpPool", [normal(2, 3, 4, 5)], lambda x: (x * x).sum((2, 3), keepdim=True).sqrt()),
    Case(
        "LpPool",
        [normal(2, 3, 8, 8)],
        lambda x: functional.lp_pool2d(x, 2, 2),
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    Case(
        "Resize",
        [normal(1, 2, 4, 5), None, np.array([1, 1, 2, 1.5], "f4")],
        lambda x, r, s: functional.interpolate(
            x, scale_factor=(2, 1.5), mode="bilinear", recompute_scale_factor=False
        ),
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
        constants=[2],
        wanted=[0],
    ),
    Case(
        "Upsample",
        [normal(1, 2, 4, 5), np.array([1, 1, 2, 2], "f4")],
        lambda x, s: functional.interpolate(x, scale_factor=2, mode="nearest"),
        opset=9,
        constants=[1],
        wanted=[0],
    ),
    Case(
        "Resize",
        [normal(1, 2, 4, 5), None, None, integers(1, 2, 7, 9)],
        lambda x, r, s, z: functional.interpolate(
            x, size=(7, 9), mode="bicubic", align_corners=True
        ),
        {
            "mode": "cubic",
            "coordinate_transformation_mode": "align_corners",
            "cubic_coeff_a": -0.75,
        },
    ),
]
