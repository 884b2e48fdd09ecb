"""Beam search against all alignments, written out."""

from itertools import groupby, product

import numpy as np
import pytest
import torch

import popdist_torch as poptorch


def exact(table, blank):
    """Every label sequence with its probability."""
    found = {}
    for alignment in product(range(table.shape[1]), repeat=len(table)):
        merged = tuple(label for label, _ in groupby(alignment) if label != blank)
        score = sum(table[step, label] for step, label in enumerate(alignment))
        found[merged] = np.logaddexp(found.get(merged, -np.inf), score)
    return sorted(found.items(), key=lambda item: -item[1])


@pytest.mark.parametrize("blank", [0, 2])
def test_a_wide_beam_finds_the_most_probable_sequences(blank):
    torch.manual_seed(blank)
    steps, batch, classes, paths = 5, 3, 3, 4
    probs = torch.randn(steps, batch, classes).log_softmax(-1)
    lengths = torch.tensor([5, 4, 1])
    scores, sizes, labels = poptorch.ctc_beam_search_decoder(probs, lengths, blank, 500, paths)
    assert labels.shape == (batch, paths, steps)
    for item in range(batch):
        expected = exact(probs[: lengths[item], item].double().numpy(), blank)[:paths]
        for rank, (sequence, score) in enumerate(expected):
            size = sizes[item, rank]
            assert tuple(labels[item, rank, :size].tolist()) == sequence
            assert labels[item, rank, size:].eq(blank).all()
            assert scores[item, rank].item() == pytest.approx(score, abs=1e-5)
    assert scores[2, 3].item() == -np.inf


@pytest.mark.parametrize(
    "wrong",
    [{"blank": 2}, {"beam_width": 0}, {"top_paths": 5, "beam_width": 4}, {"lengths": [4]}],
)
def test_arguments_out_of_range_are_errors(wrong):
    arguments = {"lengths": [3], **wrong}
    lengths = torch.tensor(arguments.pop("lengths"))
    with pytest.raises(ValueError, match="PD300"):
        poptorch.ctc_beam_search_decoder(torch.zeros(3, 1, 2), lengths, **arguments)
