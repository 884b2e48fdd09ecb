"""Cases of normalizations, softmax and losses."""
# ruff: noqa: ARG005 - references take all of an operator's inputs, whether they count or not

from __future__ import annotations

import numpy as np
from torch.nn import functional

from tests.popdist_onnx.gradients.harness import Case, integers, normal, positive

CASES = [
    Case("Softmax", [normal(3, 4)], lambda x: x.softmax(-1)),
    Case(
        "Softmax",
        [normal(2, 3, 4)],
        lambda x: x.reshape(2, 12).softmax(1).reshape(2, 3, 4),
        opset=9,
    ),
    Case("LogSoftmax", [normal(2, 3, 4)], lambda x: x.log_softmax(1), {"axis": 1}),
    Case("LpNormalization", [normal(3, 4)], lambda x: functional.normalize(x, dim=1), {"axis": 1}),
    Case(
        "LpNormalization",
        [normal(3, 4)],
        lambda x: functional.normalize(x, p=1, dim=0),
        {"axis": 0, "p": 1},
    ),
    *[
        Case(
            "SoftmaxCrossEntropyLoss",
            [normal(4, 3), integers(0, 2, 1, 1)],
            lambda x, labels, r=r: functional.cross_entropy(x, labels, reduction=r),
            {"reduction": r},
        )
        for r in ("mean", "sum", "none")
    ],
    Case(
        "SoftmaxCrossEntropyLoss",
        [normal(4, 3, 2), np.array([[0, 1], [2, 1], [1, 1], [0, 2]]), positive(3)],
        lambda x, labels, w: functional.cross_entropy(x, labels, w.detach(), ignore_index=2),
        {"ignore_index": 2},
        wanted=[0],
    ),
    Case(
        "SoftmaxCrossEntropyLoss",
        [normal(4, 3), integers(0, 2, 1, 1)],
        lambda x, labels: (functional.cross_entropy(x, labels), x.log_softmax(1)),
        outputs=2,
    ),
    *[
        Case(
            "NegativeLogLikelihoodLoss",
            [normal(4, 3), integers(0, 2, 1, 1), positive(3)],
            lambda x, labels, w, r=r: functional.nll_loss(x, labels, w.detach(), reduction=r),
            {"reduction": r},
            wanted=[0],
        )
        for r in ("mean", "sum", "none")
    ],
    Case(
        "BatchNormalization",
        [normal(4, 3, 5, 5), normal(3), normal(3), normal(3), positive(3)],
        lambda x, s, b, m, v: functional.batch_norm(x, m.detach(), v.detach(), s, b),
        wanted=[0, 1, 2],
    ),
    Case(
        "BatchNormalization",
        [normal(4, 3, 5, 5), normal(3), normal(3), normal(3), positive(3)],
        lambda x, s, b, m, v: functional.batch_norm(x, None, None, s, b, training=True),
        {"training_mode": 1},
        outputs=3,
        read=[0],
        wanted=[0, 1, 2],
    ),
    Case(
        "BatchNormalization",
        [normal(4, 3, 5, 5), normal(3), normal(3), normal(3), positive(3)],
        lambda x, s, b, m, v: functional.batch_norm(x, None, None, s, b, training=True),
        outputs=5,
        read=[0],
        wanted=[0, 1, 2],
        opset=9,
    ),
    Case(
        "LayerNormalization",
        [normal(4, 3, 5), normal(5), normal(5)],
        lambda x, s, b: functional.layer_norm(x, (5,), s, b),
    ),
    Case(
        "LayerNormalization",
        [normal(4, 3, 5), normal(3, 5)],
        lambda x, s: functional.layer_norm(x, (3, 5), s),
        {"axis": 1},
    ),
    Case(
        "InstanceNormalization",
        [normal(2, 3, 4, 5), normal(3), normal(3)],
        lambda x, s, b: functional.instance_norm(x, weight=s, bias=b),
    ),
    Case(
        "GroupNormalization",
        [normal(2, 6, 4), normal(3), normal(3)],
        lambda x, s, b: (
            functional.group_norm(x, 3) * s.repeat_interleave(2)[:, None]
            + b.repeat_interleave(2)[:, None]
        ),
        {"num_groups": 3},
    ),
    Case(
        "GroupNormalization",
        [normal(2, 6, 4), normal(6), normal(6)],
        lambda x, s, b: functional.group_norm(x, 3, s, b),
        {"num_groups": 3},
        opset=21,
    ),
    Case(
        "RMSNormalization",
        [normal(2, 6, 4), normal(4)],
        lambda x, s: functional.rms_norm(x, (4,), s, 1e-05),
        opset=23,
    ),
    Case(
        "MeanVarianceNormalization",
        [normal(2, 3, 4, 5)],
        lambda x: (
            (x - x.mean((0, 2, 3), keepdim=True))
            / (x.var((0, 2, 3), keepdim=True, unbiased=False).sqrt() + 1e-09)
        ),
    ),
    Case(
        "LRN",
        [normal(2, 7, 3, 4)],
        lambda x: functional.local_response_norm(x, 5, 0.1, 0.75, 1.0),
        {"size": 5, "alpha": 0.1},
    ),
    Case("Dropout", [normal(3, 4)], lambda x: x),
]
