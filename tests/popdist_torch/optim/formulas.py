"""Update rules in numpy, written from the formulas; one step changes weights and state in place."""

import numpy as np


def norm(arrays):
    return np.sqrt(sum((array**2).sum() for array in arrays))


def clipped(arrays, limit, scale=1.0):
    if limit is None:
        return arrays
    return [array * (limit / max(limit, scale * norm(arrays))) for array in arrays]


def sgd(state, w, g, *, lr, m=0.0, dm=0.0, wd=0.0, nesterov=False, limit=None, scale=1.0):
    if m == 0:
        for wi, gi in zip(w, clipped(g, limit, scale), strict=True):
            wi[...] = wi * (1 - lr * (1 - dm) * wd) - lr * (1 - dm) * gi
        return
    v = state.setdefault("v", [np.zeros_like(wi) for wi in w])
    d = [gi + wd * wi for gi, wi in zip(g, w, strict=True)]
    v[:] = [m * vi + (1 - dm) * di for vi, di in zip(v, d, strict=True)]
    fed = [di + m * vi for di, vi in zip(d, v, strict=True)] if nesterov else v
    for wi, fi in zip(w, clipped(fed, limit, scale), strict=True):
        wi[...] -= lr * fi


def moments(state, w, g, betas, *, correct):
    m = state.setdefault("m", [np.zeros_like(wi) for wi in w])
    v = state.setdefault("v", [np.zeros_like(wi) for wi in w])
    state["t"] = t = state.get("t", 0) + 1
    b1, b2 = betas
    m[:] = [b1 * mi + (1 - b1) * gi for mi, gi in zip(m, g, strict=True)]
    v[:] = [b2 * vi + (1 - b2) * gi**2 for vi, gi in zip(v, g, strict=True)]
    c1, c2 = (1 - b1**t, 1 - b2**t) if correct else (1, 1)
    return [mi / c1 for mi in m], [vi / c2 for vi in v]


def adam(state, w, g, *, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, wd=0.0, limit=None):
    g = clipped([gi + wd * wi for gi, wi in zip(g, w, strict=True)], limit)
    for wi, m, v in zip(w, *moments(state, w, g, betas, correct=True), strict=True):
        wi[...] -= lr * m / (np.sqrt(v) + eps)


def adamw(state, w, g, *, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, wd=1e-2, limit=None):
    for wi, m, v in zip(w, *moments(state, w, clipped(g, limit), betas, correct=True), strict=True):
        wi[...] -= lr * (m / (np.sqrt(v) + eps) + wd * wi)


def lamb(state, w, g, *, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, wd=1e-2, correct=True, most=65500):
    for wi, m, v in zip(w, *moments(state, w, g, betas, correct=correct), strict=True):
        x = m / (np.sqrt(v) + eps) + wd * wi
        size, length = min(norm([wi]), most), norm([x])
        wi[...] -= lr * (size / length if size and length else 1) * x


def rmsprop(state, w, g, *, lr=1e-2, alpha=0.99, eps=1e-8, wd=0.0, m=0.0, centered=False, tf=False):
    start = np.ones_like if tf else np.zeros_like
    s = state.setdefault("s", [start(wi) for wi in w])
    a = state.setdefault("a", [np.zeros_like(wi) for wi in w])
    b = state.setdefault("b", [np.zeros_like(wi) for wi in w])
    for i, wi in enumerate(w):
        d = g[i] + wd * wi
        s[i] = alpha * s[i] + (1 - alpha) * d**2
        a[i] = alpha * a[i] + (1 - alpha) * d
        variance = s[i] - a[i] ** 2 if centered else s[i]
        if tf:
            b[i] = m * b[i] + lr * d / np.sqrt(variance + eps)
            wi[...] -= b[i]
        else:
            b[i] = m * b[i] + d / (np.sqrt(variance) + eps)
            wi[...] -= lr * b[i]
