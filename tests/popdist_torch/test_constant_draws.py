"""Nothing random is drawn in a forward pass that is compared; the rest of torch is untouched."""

import pytest
import torch
from torch.nn import functional

from popdist_torch.constant_draws import ConstantDraws

ONES = torch.ones(4, 3)


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (lambda: functional.dropout(ONES, 0.9), 1.0),
        (lambda: torch.nn.Dropout(0.9)(ONES), 1.0),
        (lambda: torch.nn.Dropout2d(0.9)(ONES[None]), 1.0),
        (lambda: torch.nn.AlphaDropout(0.9)(ONES), 1.0),
        (lambda: torch.rand(4, 3), 0.5),
        (lambda: torch.rand_like(ONES), 0.5),
        (lambda: torch.randn(4), 0.0),
        (lambda: torch.randint(2, 9, (4,)), 2),
        (lambda: torch.randint(9, (4,)), 0),
        (lambda: torch.empty(4).uniform_(2, 4), 3.0),
        (lambda: torch.empty(4).normal_(2.0, 1.0), 2.0),
        (lambda: torch.empty(4).bernoulli_(0.25), 0.25),
        (lambda: torch.bernoulli(ONES * 0.25), 0.25),
    ],
)
def test_draws_are_constant(draw, expected):
    with ConstantDraws():
        found = draw()
    assert (found == expected).all(), found


def test_the_order_of_a_permutation_is_kept():
    with ConstantDraws():
        assert torch.randperm(5).tolist() == [0, 1, 2, 3, 4]


def test_stochastic_depth_as_it_is_written_in_public_programs_is_the_identity():
    def by_mask(x, keep):
        return x * x.new_empty(len(x), 1).bernoulli_(keep) / keep

    def by_floor(x, keep):
        return x / keep * (keep + torch.rand(len(x), 1)).floor_()

    x = torch.arange(6.0).reshape(3, 2)
    with ConstantDraws():
        assert torch.equal(by_mask(x, 0.5), x)
        assert torch.equal(by_floor(x, 0.5), x / 0.5)


@pytest.mark.parametrize("words", [{"dropout_p": 0.9}, {"dropout_p": 0.9, "is_causal": True}])
def test_attention_has_no_dropout(words):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 4, 8)
    with ConstantDraws():
        found = functional.scaled_dot_product_attention(q, k, v, **words)
        by_place = functional.scaled_dot_product_attention(q, k, v, None, 0.9)
    plain = functional.scaled_dot_product_attention
    assert torch.equal(found, plain(q, k, v, **{**words, "dropout_p": 0.0}))
    assert torch.equal(by_place, plain(q, k, v))
