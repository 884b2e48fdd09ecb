"""Cases of moving, picking and placing elements."""
# ruff: noqa: ARG005 - references take all of an operator's inputs, whether they count or not

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from tests.popdist_onnx.gradients.harness import Case, integers, normal

CASES = [
    Case("Reshape", [normal(3, 4), integers(2, 6)], lambda x, s: x.reshape(2, 6)),
    Case("Flatten", [normal(2, 3, 4)], lambda x: x.reshape(6, 4), {"axis": 2}),
    Case("Squeeze", [normal(2, 1, 4)], lambda x: x.squeeze(1), {"axes": [1]}, opset=9),
    Case("Unsqueeze", [normal(2, 4), integers(1)], lambda x, a: x.unsqueeze(1)),
    Case("Transpose", [normal(2, 3, 4)], lambda x: x.permute(2, 0, 1), {"perm": [2, 0, 1]}),
    Case("Transpose", [normal(2, 3)], lambda x: x.T),
    Case("Expand", [normal(3, 1), integers(2, 3, 4)], lambda x, s: x.expand(2, 3, 4)),
    Case("Tile", [normal(2, 3), integers(2, 3)], lambda x, r: x.repeat(2, 3)),
    Case("Concat", [normal(2, 3), normal(2, 4)], lambda *a: torch.cat(a, 1), {"axis": 1}),
    Case(
        "Concat", [normal(2, 3), normal(2, 4)], lambda *a: torch.cat(a, 1), {"axis": -1}, wanted=[1]
    ),
    Case(
        "Split",
        [normal(2, 6)],
        lambda x: x.split([2, 4], 1),
        {"axis": 1, "split": [2, 4]},
        outputs=2,
        opset=9,
    ),
    Case(
        "Split", [normal(2, 6)], lambda x: x.chunk(3, 1), {"axis": 1, "num_outputs": 3}, outputs=3
    ),
    Case(
        "Split", [normal(2, 6)], lambda x: x.chunk(3, 1), {"axis": 1}, outputs=3, opset=13, read=[1]
    ),
    Case(
        "Slice",
        [normal(5, 6), integers(1, -3), integers(4, 100), integers(0, 1)],
        lambda x, *a: x[1:4, -3:],
    ),
    Case(
        "Slice",
        [normal(5, 6), integers(4, 1), integers(-100, 5), integers(0, 1), integers(-1, 2)],
        lambda x, *a: x.flip(0)[:, 1:5:2],
    ),
    Case(
        "Slice",
        [normal(5, 6)],
        lambda x: x[1:4],
        {"starts": [1], "ends": [4], "axes": [0]},
        opset=9,
    ),
    Case("Pad", [normal(3, 4), integers(1, 2, 0, 1)], lambda x, p: functional.pad(x, (2, 1, 1, 0))),
    Case(
        "Pad",
        [normal(1, 3, 4)],
        lambda x: functional.pad(x, (2, 1), value=1.5),
        {"pads": [0, 0, 2, 0, 0, 1], "value": 1.5},
        opset=10,
    ),
    Case(
        "Pad",
        [normal(1, 2, 4, 5), integers(0, 0, 1, 2, 0, 0, 2, 1)],
        lambda x, p: functional.pad(x, (2, 1, 1, 2), mode="reflect"),
        {"mode": "reflect"},
    ),
    Case(
        "Pad",
        [normal(1, 2, 4, 5), integers(0, 0, 1, 2, 0, 0, 2, 1)],
        lambda x, p: functional.pad(x, (2, 1, 1, 2), mode="replicate"),
        {"mode": "edge"},
    ),
    Case(
        "Pad",
        [normal(1, 2, 4, 5), integers(0, 0, 1, 2, 0, 0, 2, 1)],
        lambda x, p: functional.pad(x, (2, 1, 1, 2), mode="circular"),
        {"mode": "wrap"},
        opset=19,
    ),
    Case("Pad", [normal(3, 4), integers(0, -1, 0, 1)], lambda x, p: functional.pad(x, (-1, 1))),
    Case(
        "SpaceToDepth",
        [normal(1, 2, 4, 6)],
        lambda x: x.reshape(1, 2, 2, 2, 3, 2).permute(0, 3, 5, 1, 2, 4).reshape(1, 8, 2, 3),
        {"blocksize": 2},
    ),
    Case(
        "DepthToSpace",
        [normal(1, 8, 2, 3)],
        lambda x: functional.pixel_shuffle(x, 2),
        {"blocksize": 2, "mode": "CRD"},
    ),
    Case(
        "DepthToSpace",
        [normal(1, 8, 2, 3)],
        lambda x: x.reshape(1, 2, 2, 2, 2, 3).permute(0, 3, 4, 1, 5, 2).reshape(1, 2, 4, 6),
        {"blocksize": 2},
    ),
    Case("Trilu", [normal(3, 4)], torch.triu),
    Case("Trilu", [normal(3, 4), np.array(1)], lambda x, k: x.tril(1), {"upper": 0}),
    Case("Gather", [normal(5, 3), integers(0, 2, 2, -1)], lambda x, i: x[i]),
    Case(
        "Gather", [normal(2, 5, 3), np.array([[0, 2], [2, 1]])], lambda x, i: x[:, i], {"axis": 1}
    ),
    Case("Gather", [normal(2, 5, 3), np.array(2)], lambda x, i: x[:, 2], {"axis": 1}),
    Case("Gather", [normal(5, 3), np.array([0, 1], np.int32)], lambda x, i: x[i.long()]),
    Case(
        "GatherElements",
        [normal(3, 4), np.array([[0, 1], [2, 0], [1, 1]])],
        lambda x, i: x.gather(1, i),
        {"axis": 1},
    ),
    Case(
        "GatherND",
        [normal(3, 4, 2), np.array([[0, 1], [2, 3], [0, 1]])],
        lambda x, i: x[i[:, 0], i[:, 1]],
    ),
    Case(
        "GatherND",
        [normal(2, 4, 2), np.array([[1], [3]])],
        lambda x, i: torch.stack([x[0, 1], x[1, 3]]),
        {"batch_dims": 1},
    ),
    Case(
        "ScatterElements",
        [normal(3, 4), np.array([[0, 1], [2, 0], [1, 3]]), normal(3, 2)],
        lambda x, i, u: x.scatter(1, i, u),
        {"axis": 1},
    ),
    Case(
        "ScatterElements",
        [normal(3, 4), np.array([[0, 0], [2, 0], [1, 1]]), normal(3, 2)],
        lambda x, i, u: x.scatter_add(1, i, u),
        {"axis": 1, "reduction": "add"},
    ),
    Case(
        "Scatter",
        [normal(3, 4), np.array([[0, 1], [2, 0], [1, 3]]), normal(3, 2)],
        lambda x, i, u: x.scatter(1, i, u),
        {"axis": 1},
        opset=9,
    ),
    Case(
        "ScatterND",
        [normal(3, 4), np.array([[0], [2]]), normal(2, 4)],
        lambda x, i, u: x.index_copy(0, i[:, 0], u),
    ),
    Case("TopK", [normal(3, 5), integers(2)], lambda x, k: x.topk(2, 1)[0], outputs=2, read=[0]),
    Case("TopK", [normal(3, 5)], lambda x: x.topk(2, 1)[0], {"k": 2}, outputs=2, read=[0], opset=9),
    Case("Compress", [normal(3, 4), np.array([True, False, True])], lambda x, c: x[c], {"axis": 0}),
    Case(
        "OneHot",
        [integers(0, 2, 1), np.array(3), normal(2)],
        lambda i, d, v: v[0] + (v[1] - v[0]) * functional.one_hot(i, 3).double(),
    ),
    Case(
        "ReverseSequence",
        [normal(4, 2), integers(3, 2)],
        lambda x, _: torch.stack(
            [torch.cat([x[:3, 0].flip(0), x[3:, 0]]), torch.cat([x[:2, 1].flip(0), x[2:, 1]])], 1
        ),
    ),
]
