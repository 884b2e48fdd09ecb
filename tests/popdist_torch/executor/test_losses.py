import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import nn

from popdist_torch import identity_loss
from popdist_torch.executor.losses import LossWatch, final_loss

X = torch.rand(4, 3, requires_grad=True)
OTHER = torch.rand(4, 3)
SIGNS = torch.tensor([[1.0, -1, 1]] * 4)
CLASSES = torch.tensor([0, 1, 2, 0])


def watched(function):
    with LossWatch() as watch:
        result = function()
    return watch.found, result


@pytest.mark.parametrize(
    "loss",
    [
        lambda: nn.L1Loss()(X, OTHER),
        lambda: nn.MSELoss()(X, OTHER),
        lambda: nn.CrossEntropyLoss()(X, CLASSES),
        lambda: nn.NLLLoss()(F.log_softmax(X, 1), CLASSES),
        lambda: nn.BCELoss()(X.sigmoid(), OTHER),
        lambda: nn.BCEWithLogitsLoss()(X, OTHER),
        lambda: nn.KLDivLoss(reduction="batchmean")(F.log_softmax(X, 1), OTHER),
        lambda: nn.PoissonNLLLoss()(X, OTHER),
        lambda: nn.HingeEmbeddingLoss()(X, SIGNS),
        lambda: nn.SmoothL1Loss()(X, OTHER),
        lambda: nn.SoftMarginLoss()(X, SIGNS),
        lambda: nn.MultiLabelSoftMarginLoss()(X, OTHER.round()),
        lambda: nn.CosineEmbeddingLoss()(X, OTHER, torch.ones(4)),
        lambda: nn.MarginRankingLoss()(X, OTHER, SIGNS),
        lambda: nn.TripletMarginLoss()(X, OTHER, OTHER.flip(0)),
        lambda: nn.CTCLoss()(
            F.log_softmax(X.view(4, 1, 3), 2),
            torch.tensor([[1, 2]]),
            torch.tensor([4]),
            torch.tensor([2]),
        ),
        lambda: identity_loss((X - OTHER) ** 2, reduction="mean"),
    ],
)
def test_every_published_loss_is_seen_once(loss):
    found, result = watched(loss)
    assert len(found) == 1
    assert found[0] is result
    assert final_loss(found) == 0


@pytest.mark.parametrize(
    ("reduction", "expected"), [("none", X.detach()), ("sum", X.sum()), ("mean", X.mean())]
)
def test_identity_loss_reduces_with_and_without_being_watched(reduction, expected):
    torch.testing.assert_close(identity_loss(X, reduction).detach(), expected.detach())
    _, result = watched(lambda: identity_loss(X, reduction=reduction))
    torch.testing.assert_close(result.detach(), expected.detach())


def test_identity_loss_knows_three_reductions():
    with pytest.raises(ValueError, match="'none', 'mean' or 'sum'"):
        identity_loss(X, "max")


def test_other_functions_are_no_losses():
    found, _ = watched((X * 2).sum)
    assert found == []
    with pytest.raises(RuntimeError, match="Couldn't find a loss in graph!"):
        final_loss(found)


def test_a_loss_without_gradient_does_not_count():
    found, _ = watched(lambda: F.mse_loss(OTHER, OTHER))
    assert found == []


def test_losses_that_feed_another_are_not_final():
    def combined():
        first, second = F.mse_loss(X, OTHER), F.l1_loss(X, OTHER)
        return identity_loss(first + 2 * second, "sum")

    found, result = watched(combined)
    assert found[final_loss(found)] is result


def test_the_final_loss_need_not_come_last():
    def combined():
        first = F.mse_loss(X, OTHER)
        total = identity_loss(first * 3, "none")
        return first.detach(), total

    found, (_, total) = watched(combined)
    assert found[final_loss(found)] is total


def test_two_independent_losses_are_an_error():
    found, _ = watched(lambda: (F.mse_loss(X, OTHER), F.l1_loss(X, OTHER)))
    with pytest.raises(RuntimeError, match="Multiple independent losses found in graph"):
        final_loss(found)
