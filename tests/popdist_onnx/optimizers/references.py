"""The optimizers once more, in plain torch, from their formulas."""

import math

import torch


class Reference:
    """Updates tensors from given gradients; subclasses say how."""

    def __init__(self, weights):
        self.weights = {name: w.clone() for name, w in weights.items()}
        self.state = {name: {} for name in weights}
        self.count = 0

    def step(self, gradients):
        self.count += 1
        for name, gradient in gradients.items():
            weight = self.weights[name]
            self.weights[name] = self.update(weight, gradient, self.state[name])

    def kept(self, state, key, like, first=0.0):
        return state.setdefault(key, torch.full_like(like, first))


class Sgd(Reference):
    def __init__(self, weights, lr, mm=0.0, dp=0.0, wd=0.0, nesterov=False):
        super().__init__(weights)
        self.lr, self.mm, self.dp, self.wd, self.nesterov = lr, mm, dp, wd, nesterov

    def update(self, w, g, state):
        d = (1 - self.dp) * (g + self.wd * w)
        v = state["v"] = self.mm * self.kept(state, "v", w) + d
        return w - self.lr * (self.mm * v + d if self.nesterov else v)


class Adam(Reference):
    def __init__(self, weights, lr, b1=0.9, b2=0.999, eps=1e-6, wd=0.0, l2=False, bias=True):
        super().__init__(weights)
        self.lr, self.b1, self.b2, self.eps, self.wd = lr, b1, b2, eps, wd
        self.l2, self.bias = l2, bias

    def direction(self, w, g, state):
        if self.l2:
            g = g + self.wd * w
        m = state["m"] = self.b1 * self.kept(state, "m", w) + (1 - self.b1) * g
        v = state["v"] = self.second(self.kept(state, "v", w), g)
        if self.bias:
            m = m / (1 - self.b1**self.count)
        x = m / (self.root(v) + self.eps)
        return x if self.l2 else x + self.wd * w

    def second(self, v, g):
        return self.b2 * v + (1 - self.b2) * g * g

    def root(self, v):
        return torch.sqrt(v / (1 - self.b2**self.count) if self.bias else v)

    def update(self, w, g, state):
        return w - self.lr * self.direction(w, g, state)


class AdaMax(Adam):
    def second(self, v, g):
        return torch.maximum(self.b2 * v, g.abs())

    def root(self, v):
        return v


class Lamb(Adam):
    def __init__(self, weights, *args, limit=10.0, **kwargs):
        super().__init__(weights, *args, **kwargs)
        self.limit = limit

    def update(self, w, g, state):
        x = self.direction(w, g, state)
        nw, nx = float(w.norm()), float(x.norm())
        ratio = min(nw, self.limit) / nx if nw and nx else 1.0
        return w - self.lr * ratio * x


class Adaptive(Reference):
    def __init__(self, weights, mode, lr, a=0.99, m=None, eps=1e-6, wd=0.0, l2=False, tf=False):
        super().__init__(weights)
        self.mode, self.lr, self.a, self.m, self.eps = mode, lr, a, m, eps
        self.wd, self.l2, self.tf = wd, l2, tf

    def update(self, w, g, state):
        g = g + self.wd * w if self.l2 else g
        x = self.direction(w, g, state)
        decay = 0 if self.l2 else self.wd * w
        if self.m is None:
            return w - self.lr * (x + decay)
        x = self.lr * x if self.tf else x
        v3 = state["v3"] = self.m * self.kept(state, "v3", w) + x
        return w - (v3 + decay if self.tf else self.lr * (v3 + decay))

    def direction(self, w, g, state):
        v1 = self.kept(state, "v1", w, 1.0 if self.tf else 0.0)
        v1 = state["v1"] = v1 + g * g if self.mode == "AdaGrad" else self.average(v1, g * g)
        if self.mode == "AdaDelta":
            v2 = self.kept(state, "v2", w)
            x = g * torch.sqrt(v2 + self.eps) / torch.sqrt(v1 + self.eps)
            state["v2"] = self.average(v2, x * x)
            return x
        if self.mode == "CenteredRMSProp":
            v2 = state["v2"] = self.average(self.kept(state, "v2", w), g)
            v1 = v1 - v2 * v2
        return g / (torch.sqrt(v1 + self.eps) if self.tf else torch.sqrt(v1) + self.eps)

    def average(self, before, now):
        return self.a * before + (1 - self.a) * now


def clipped(gradients, limit):
    """Gradients of one group, clipped."""
    norm = math.sqrt(sum(float((g**2).sum()) for g in gradients.values()))
    return {name: g * limit / max(norm, limit) for name, g in gradients.items()}
