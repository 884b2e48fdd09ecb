"""Cases of products of matrices, sums and extremes."""
# ruff: noqa: ARG005 - references take all of an operator's inputs, whether they count or not

from __future__ import annotations

import numpy as np
import torch

from tests.popdist_onnx.gradients.harness import Case, integers, normal, positive


def fourier(x, points=None, axis=1, inverse=0, onesided=0):
    real = x[..., 0]
    numbers = torch.complex(real, x[..., 1] if x.shape[-1] == 2 else 0 * real)
    points = numbers.shape[axis] if points is None else int(points)
    made = (torch.fft.ifft if inverse else torch.fft.fft)(numbers, n=points, dim=axis)
    return torch.view_as_real(made[:, : points // 2 + 1] if onesided else made)


def einsum(equation):
    return lambda *operands: torch.einsum(equation, *operands)


CASES = [
    *[
        Case("DFT", [normal(2, 6, 3, n)], lambda x, s=s: fourier(x, **s), s)
        for n, s in [
            (1, {}),
            (2, {}),
            (2, {"inverse": 1}),
            (1, {"onesided": 1}),
            (2, {"axis": 2}),
            (1, {"axis": 2, "inverse": 1}),
        ]
    ],
    *[
        Case("DFT", [normal(2, 5, n), integers(k).reshape(())], fourier)
        for n, k in [(1, 7), (2, 7), (2, 4)]
    ],
    Case(
        "DFT",
        [normal(2, 5, 3, 2), None, integers(1).reshape(())],
        lambda x, _, axis: fourier(x),
        opset=20,
    ),
    Case("DFT", [normal(2, 5, 3, 1)], lambda x: fourier(x, axis=2), opset=20),
    Case(
        "Gemm",
        [normal(3, 4), normal(4, 5), normal(5)],
        lambda a, b, c: 0.5 * a @ b + 2 * c,
        {"alpha": 0.5, "beta": 2.0},
    ),
    Case("Gemm", [normal(4, 3), normal(5, 4)], lambda a, b: a.T @ b.T, {"transA": 1, "transB": 1}),
    *[
        Case("MatMul", [normal(*a), normal(*b)], torch.matmul)
        for a, b in [
            ((3, 4), (4, 5)),
            ((2, 3, 4), (4, 5)),
            ((2, 3, 4), (2, 4, 5)),
            ((4,), (4, 5)),
            ((3, 4), (4,)),
            ((4,), (4,)),
            ((2, 1, 3, 4), (5, 4, 2)),
            ((4,), (2, 4, 3)),
            ((2, 3, 4), (4,)),
        ]
    ],
    Case(
        "Einsum",
        [normal(2, 3, 4), normal(2, 4, 5)],
        lambda a, b: torch.einsum("bij,bjk->bik", a, b),
        {"equation": "bij,bjk->bik"},
    ),
    Case(
        "Einsum",
        [normal(2, 3, 4), normal(4, 5)],
        lambda a, b: torch.einsum("...j,jk->...k", a, b),
        {"equation": "...j,jk->...k"},
    ),
    Case("Einsum", [normal(3, 4)], lambda a: torch.einsum("ij->i", a), {"equation": "ij->i"}),
    Case(
        "Einsum",
        [normal(3, 4), normal(4)],
        lambda a, b: torch.einsum("ij,k->i", a, b),
        {"equation": "ij,k->i"},
    ),
    *[
        Case("Einsum", [normal(*s) for s in shapes], einsum(equation), {"equation": equation})
        for equation, *shapes in [
            ("ii->i", (3, 3)),
            ("ii->", (3, 3)),
            ("ii", (3, 3)),
            ("bii->bi", (2, 3, 3)),
            ("bii->b", (2, 3, 3)),
            ("...ii->...i", (2, 4, 3, 3)),
            ("iii->i", (3, 3, 3)),
            ("iijj->ij", (3, 3, 2, 2)),
            ("ijij->ji", (3, 2, 3, 2)),
            ("iij->i", (3, 3, 2)),
            ("ii,i->i", (3, 3), (3,)),
            ("bii,bij->bj", (2, 3, 3), (2, 3, 4)),
            ("ii,jj->ij", (3, 3), (2, 2)),
            ("ii,jj->", (3, 3), (2, 2)),
            ("aib,iia->ab", (2, 3, 4), (3, 3, 2)),
        ]
    ],
    *[
        Case("Det", [matrix], torch.linalg.det)
        for matrix in [normal(3, 3), normal(2, 4, 4), normal(2, 3, 1, 1), normal(5, 2, 2)]
    ],
    *[
        Case(n, [positive(2, 3, 4), integers(0, 2)], fn, {"keepdims": k})
        for k in (0, 1)
        for n, fn in [
            ("ReduceSum", lambda x, a, k=k: x.sum((0, 2), keepdim=bool(k))),
            ("ReduceMean", lambda x, a, k=k: x.mean((0, 2), keepdim=bool(k))),
            ("ReduceSumSquare", lambda x, a, k=k: (x * x).sum((0, 2), keepdim=bool(k))),
            ("ReduceL1", lambda x, a, k=k: x.abs().sum((0, 2), keepdim=bool(k))),
            ("ReduceL2", lambda x, a, k=k: (x * x).sum((0, 2), keepdim=bool(k)).sqrt()),
            ("ReduceLogSum", lambda x, a, k=k: x.sum((0, 2), keepdim=bool(k)).log()),
            ("ReduceLogSumExp", lambda x, a, k=k: torch.logsumexp(x, (0, 2), keepdim=bool(k))),
            ("ReduceMax", lambda x, a, k=k: x.amax((0, 2), keepdim=bool(k))),
            ("ReduceMin", lambda x, a, k=k: x.amin((0, 2), keepdim=bool(k))),
            (
                "ReduceProd",
                lambda x, a, k=k: (
                    x.prod(0, keepdim=True).prod(2, keepdim=True) if k else x.prod(0).prod(-1)
                ),
            ),
        ]
    ],
    Case(
        "ReduceProd",
        [positive(2, 3, 4)],
        lambda x: x.prod(1),
        {"axes": [1], "keepdims": 0},
        opset=11,
    ),
    Case(
        "ReduceMean", [positive(2, 3, 4)], lambda x: x.mean(1, keepdim=True), {"axes": [1]}, opset=7
    ),
    Case("CumSum", [normal(3, 4), np.array(1)], lambda x, a: x.cumsum(1)),
]
