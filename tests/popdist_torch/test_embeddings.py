"""Embeddings that change their weight: the loop that an error advises does the same."""

import copy

import torch
from torch import nn

from popdist_torch.embeddings import require_no_shortening
from popdist_torch.errors import AgreementError

WORDS = torch.tensor([[0, 3, 3, 1], [2, 1, 4, 0], [3, 2, 0, 4]])


def advice(layer):
    """The line that the error for a layer shows."""
    try:
        require_no_shortening([layer])
    except AgreementError as error:
        return str(error).split("`with torch.no_grad(): ")[1].split("`")[0]
    return None


def train(layer, after):
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.7)
    with torch.no_grad():
        after(layer)
    for words in WORDS:
        optimizer.zero_grad()
        layer(words).sin().sum().backward()
        optimizer.step()
        with torch.no_grad():
            after(layer)
    return layer(torch.arange(5))


def test_the_advice_gives_what_the_layer_would_look_up():
    torch.manual_seed(1)
    for norm in (1.0, 2.0):
        shortening = nn.Embedding(5, 3, max_norm=0.6, norm_type=norm, dtype=torch.float64)
        plain = copy.deepcopy(shortening)
        line = advice(shortening)
        plain.max_norm = None
        expected = train(shortening, lambda _: None)
        result = train(plain, lambda layer, line=line: exec(line, {"layer": layer}))  # noqa: S102
        torch.testing.assert_close(result, expected)
        assert advice(plain) is None


def test_weights_that_are_not_trained_and_plain_layers_are_accepted():
    frozen = nn.Embedding(5, 3, max_norm=0.6)
    frozen.weight.requires_grad_(requires_grad=False)
    assert advice(frozen) is None
    assert advice(nn.EmbeddingBag(5, 3)) is None
    assert "renorm_(2, 0, 0.6)" in advice(nn.EmbeddingBag(5, 3, max_norm=0.6))
