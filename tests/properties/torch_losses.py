"""Losses that users write, each with what a job of several replicas makes of it.

``EQUAL``: a job trains what one process trains on the global batch, and no check may name it.
``NAMED``: it trains something else, and a check has to name it.
``OWN``: each replica's own statistics or random numbers are wanted; no check may name it.

The verdict is asserted against weights: a job's beside those of plain torch in float64 in one
process. So no verdict rests on code of popdist.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

EQUAL, NAMED, OWN = "equal", "named", "own"
CLASSES, WORDS, WIDTH = 4, 8, 6


class Net(nn.Module):
    """A small network with the parts that losses below use."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, 5)
        self.last = nn.Linear(5, CLASSES)
        self.words = nn.Embedding(WORDS, WIDTH, scale_grad_by_freq=False)
        self.counted = nn.Embedding(WORDS, WIDTH, scale_grad_by_freq=True)
        self.batch_norm = nn.BatchNorm1d(5)
        self.layer_norm = nn.LayerNorm(5)
        self.gate = nn.Linear(WIDTH, 2)
        self.value = nn.Linear(5, 1)

    def hidden(self, x):
        return torch.tanh(self.first(x))

    def scores(self, x):
        return self.last(self.hidden(x))


LOSSES = {}


def loss(verdict):
    def add(function):
        LOSSES[function.__name__] = (verdict, function)
        return function

    return add


def one_hot(y, like):
    return F.one_hot(y, CLASSES).to(like.dtype)


def rows_of(net, x, y):
    return F.cross_entropy(net.scores(x), y, reduction="none")


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, x):
        return x.clone()

    @staticmethod
    def backward(_ctx, gradient):
        return -0.3 * gradient


class _Clamped(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, x):
        return x.clone()

    @staticmethod
    def backward(_ctx, gradient):
        return gradient.clamp(-0.002, 0.002)


# Means over rows, and what is linear in their gradients.


@loss(EQUAL)
def mean_squares(net, x, y):
    return F.mse_loss(net.scores(x), one_hot(y, x))


@loss(EQUAL)
def cross_entropy(net, x, y):
    return F.cross_entropy(net.scores(x), y)


@loss(EQUAL)
def label_smoothing(net, x, y):
    return F.cross_entropy(net.scores(x), y, label_smoothing=0.1)


@loss(EQUAL)
def weight_decay_as_a_term(net, x, y):
    return F.cross_entropy(net.scores(x), y) + 0.1 * sum((p**2).sum() for p in net.parameters())


@loss(EQUAL)
def huber(net, x, y):
    return F.smooth_l1_loss(net.scores(x), one_hot(y, x))


@loss(EQUAL)
def root_within_a_row(net, x, _y):
    return (net.scores(x) ** 2).sum(1).add(1e-6).sqrt().mean()


@loss(EQUAL)
def reversed_gradient(net, x, y):
    return F.cross_entropy(net.last(_Reversed.apply(net.hidden(x))), y)


@loss(EQUAL)
def hook_that_multiplies(net, x, y):
    hidden = net.hidden(x)
    hidden.register_hook(lambda gradient: gradient * 0.5)
    return F.cross_entropy(net.last(hidden), y)


@loss(EQUAL)
def distillation(net, x, _y):
    teacher = torch.softmax(x[:, :CLASSES] * 2, dim=1)
    student = F.log_softmax(net.scores(x) / 2, dim=1)
    return 4 * F.kl_div(student, teacher, reduction="batchmean")


@loss(EQUAL)
def triplets_within_rows(net, x, _y):
    return F.triplet_margin_loss(net.scores(x), net.scores(x + 0.1), net.scores(-x), margin=5.0)


@loss(EQUAL)
def cosine_to_a_target(net, x, y):
    return (1 - F.cosine_similarity(net.scores(x), one_hot(y, x))).mean()


@loss(EQUAL)
def binary_with_logits(net, x, y):
    return F.binary_cross_entropy_with_logits(net.scores(x), one_hot(y, x))


@loss(EQUAL)
def focal(net, x, y):
    each = rows_of(net, x, y)
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


@loss(EQUAL)
def dice_within_rows(net, x, y):
    p, t = net.scores(x).sigmoid(), one_hot(y, x)
    return (1 - 2 * (p * t).sum(1) / (p.sum(1) + t.sum(1))).mean()


@loss(EQUAL)
def boxes_iou_within_rows(net, x, _y):
    centre, size = net.scores(x)[:, :2], net.scores(x)[:, 2:].sigmoid() + 0.1
    low, high = (
        torch.maximum(centre - size, x[:, :2] - 1),
        torch.minimum(centre + size, x[:, :2] + 1),
    )
    both = (high - low).clamp(min=0).prod(1)
    return (1 - both / (4 * size.prod(1) + 4 - both)).mean()


@loss(EQUAL)
def masked_with_a_constant_count(net, x, y):
    return (rows_of(net, x, y) * (x[:, 1] > 0)).mean()


@loss(EQUAL)
def gradient_penalty_within_rows(net, x, _y):
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(net.scores(x).sum(), x, create_graph=True)
    return ((slope.norm(dim=1) - 1) ** 2).mean()


@loss(EQUAL)
def policy_gradient_with_given_advantages(net, x, y):
    return (rows_of(net, x, y) * x[:, 0]).mean()


@loss(EQUAL)
def evidence_lower_bound(net, x, _y):
    mean, spread = net.scores(x)[:, :2], net.scores(x)[:, 2:]
    return -0.5 * (1 + spread - mean**2 - spread.exp()).sum(1).mean()


@loss(EQUAL)
def embedding(net, x, y):
    return F.cross_entropy(net.scores(net.words(y * 2) + x), y)


@loss(EQUAL)
def layer_norm(net, x, y):
    return F.cross_entropy(net.last(net.layer_norm(net.first(x))), y)


@loss(OWN)
def batch_norm(net, x, y):
    return F.cross_entropy(net.last(net.batch_norm(net.first(x))), y)


@loss(OWN)
def dropout(net, x, y):
    return F.cross_entropy(net.last(F.dropout(net.hidden(x), 0.5, net.training)), y)


@loss(OWN)
def noise_of_its_own(net, x, y):
    return F.cross_entropy(net.scores(x + 0.1 * torch.randn_like(x)), y)


# Means over what a batch happens to have.


@loss(NAMED)
def ignored_labels(net, x, y):
    return F.cross_entropy(net.scores(x), y.masked_fill(x[:, 0] > 0.3, -100))


@loss(NAMED)
def class_weights(net, x, y):
    return F.cross_entropy(net.scores(x), y, weight=x.new_tensor([1.0, 5.0, 0.2, 3.0]))


@loss(NAMED)
def selected_rows(net, x, y):
    return rows_of(net, x, y)[x[:, 1] > -1].mean()


@loss(NAMED)
def sum_by_a_mask(net, x, y):
    mask = (x[:, 1] > -1).to(x.dtype)
    return (rows_of(net, x, y) * mask).sum() / mask.sum()


@loss(NAMED)
def weighted_mean(net, x, y):
    weights = x[:, 2].abs()
    return (rows_of(net, x, y) * weights).sum() / weights.sum()


@loss(NAMED)
def positive_anchors(net, x, y):
    positive = y == 0
    return (net.scores(x).abs().sum(1) * positive).sum() / positive.sum().clamp(min=1)


# Functions of a mean.


@loss(NAMED)
def root_of_the_mean(net, x, y):
    return F.mse_loss(net.scores(x), one_hot(y, x)).sqrt()


@loss(NAMED)
def perplexity(net, x, y):
    return F.cross_entropy(net.scores(x), y).exp()


@loss(NAMED)
def log_of_the_mean_probability(net, x, _y):
    return -net.scores(x).softmax(1).mean(0).log().mean()


@loss(NAMED)
def square_of_the_mean(net, x, y):
    return F.cross_entropy(net.scores(x), y) ** 2


@loss(NAMED)
def squared_hinge_of_the_mean(net, x, y):
    return F.relu(F.cross_entropy(net.scores(x), y) - 0.5) ** 2


# Losses that compare rows.


@loss(NAMED)
def contrastive(net, x, _y):
    z = F.normalize(net.scores(x))
    return F.cross_entropy(z @ z.T / 0.5, torch.arange(len(x)))


@loss(NAMED)
def clip(net, x, _y):
    one, other = F.normalize(net.scores(x)), F.normalize(net.scores(x * x))
    target = torch.arange(len(x))
    return (F.cross_entropy(one @ other.T, target) + F.cross_entropy(other @ one.T, target)) / 2


@loss(NAMED)
def barlow_twins(net, x, _y):
    one, other = (z - z.mean(0) for z in (net.scores(x), net.scores(x + 0.1)))
    c = (one / one.std(0)).T @ (other / other.std(0)) / len(x)
    return ((c - torch.eye(CLASSES, dtype=c.dtype)) ** 2).sum()


@loss(NAMED)
def variance_over_the_batch(net, x, _y):
    return F.relu(1 - net.scores(x).std(0)).mean()


@loss(NAMED)
def covariance(net, x, _y):
    z = net.scores(x) - net.scores(x).mean(0)
    return ((z.T @ z / (len(x) - 1)) ** 2).sum()


@loss(NAMED)
def pearson(net, x, _y):
    prediction, target = net.scores(x)[:, 0], x[:, 0]
    p, t = prediction - prediction.mean(), target - target.mean()
    return 1 - (p * t).sum() / (p.norm() * t.norm())


@loss(NAMED)
def hardest_triplets(net, x, y):
    z = net.scores(x)
    apart = ((z[:, None] - z[None]) ** 2).sum(2)
    same = y[:, None] == y[None]
    far = apart.masked_fill(~same, 0).max(1).values
    near = apart.masked_fill(same, 1e3).min(1).values
    return F.relu(far - near + 1).mean()


@loss(NAMED)
def supervised_contrastive(net, x, y):
    z = F.normalize(net.scores(x))
    same = ((y[:, None] == y[None]) & ~torch.eye(len(y), dtype=torch.bool)).to(z.dtype)
    return -(F.log_softmax(z @ z.T / 0.5, 1) * same).sum(1).div(same.sum(1).clamp(min=1)).mean()


@loss(NAMED)
def mean_discrepancy(net, x, _y):
    return ((net.scores(x).mean(0) - net.scores(x.flip(1)).mean(0)) ** 2).sum()


@loss(NAMED)
def sinkhorn(net, x, _y):
    plan = torch.exp(net.scores(x))
    for _ in range(3):
        plan = plan / plan.sum(0, keepdim=True) / CLASSES
        plan = plan / plan.sum(1, keepdim=True) / len(x)
    return (plan * net.scores(x) ** 2).sum()


@loss(NAMED)
def dice_over_the_batch(net, x, y):
    p, t = net.scores(x).sigmoid(), one_hot(y, x)
    return 1 - 2 * (p * t).sum() / (p.sum() + t.sum())


@loss(NAMED)
def largest_row(net, x, y):
    return rows_of(net, x, y).max()


@loss(NAMED)
def hard_examples(net, x, y):
    return rows_of(net, x, y).topk(3).values.mean()


@loss(NAMED)
def median_row(net, x, y):
    return rows_of(net, x, y).median()


@loss(NAMED)
def load_of_experts(net, x, y):
    gates = net.gate(x).softmax(1)
    share = F.one_hot(gates.argmax(1), 2).to(x.dtype).mean(0)
    return F.cross_entropy(net.scores(x), y) + 2 * (share * gates.mean(0)).sum()


@loss(NAMED)
def importance_of_experts(net, x, _y):
    importance = net.gate(x).softmax(1).sum(0)
    return importance.var() / importance.mean() ** 2


@loss(NAMED)
def normalized_advantages(net, x, y):
    advantage = (x[:, 0] - x[:, 0].mean()) / x[:, 0].std()
    return (rows_of(net, x, y) * advantage).mean()


@loss(NAMED)
def ratio_by_its_own_mean(net, x, y):
    each = rows_of(net, x, y)
    return (each / each.detach().mean()).mean()


@loss(NAMED)
def penalty_of_the_mean_slope(net, x, _y):
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(net.scores(x).mean(), x, create_graph=True)
    return ((slope.norm(dim=1) * 10 - 1) ** 2).mean()


# What depends on the size of gradients, or on counts of rows.


@loss(NAMED)
def sum_of_rows(net, x, y):
    return F.cross_entropy(net.scores(x), y, reduction="sum") / 24


@loss(NAMED)
def counted_embedding(net, x, y):
    return F.cross_entropy(net.scores(net.counted(y * 2) + x), y)


@loss(NAMED)
def hook_that_clips(net, x, y):
    hidden = net.hidden(x)
    hidden.register_hook(lambda gradient: gradient.clamp(-0.001, 0.001))
    return F.cross_entropy(net.last(hidden), y)


@loss(NAMED)
def hook_that_normalizes(net, x, y):
    hidden = net.hidden(x)
    hidden.register_hook(F.normalize)
    return F.cross_entropy(net.last(hidden), y)


@loss(NAMED)
def function_that_clamps(net, x, y):
    return F.cross_entropy(net.last(_Clamped.apply(net.hidden(x))), y)


SOME = ("mean_squares", "cross_entropy", "huber", "focal", "embedding", "layer_norm")
SOME += ("ignored_labels", "class_weights", "selected_rows", "root_of_the_mean")
SOME += ("contrastive", "hard_examples", "variance_over_the_batch", "sum_of_rows", "pearson")
"""For programs that take long to build a model."""

SUMMED = ("function_that_clamps", "hook_that_normalizes")
"""Change the gradient of each row, which is that of one process where gradients are summed."""

FEW = ("cross_entropy", "embedding", "layer_norm")
FEW += ("ignored_labels", "root_of_the_mean", "sum_of_rows")
"""For programs of which a few losses show that they are compared."""
