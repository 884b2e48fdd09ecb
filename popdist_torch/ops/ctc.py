"""Decoding of connectionist temporal classification: the most probable label sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from popdist_torch.errors import OptionValueError

_NEVER = -np.inf


def ctc_beam_search_decoder(
    probs: torch.Tensor,
    lengths: torch.Tensor,
    blank: int = 0,
    beam_width: int = 100,
    top_paths: int = 1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Finds the most probable label sequences by prefix beam search.

    A sequence's probability is the sum over all alignments that collapse to it: repeated labels
    merge unless a blank is between them (Graves et al., 2006; Hannun et al., 2014).

    Args:
        probs: Logarithmic probabilities ``[input length, batch, classes]``.
        lengths: Valid input lengths ``[batch]``.
        blank: Class of the blank.
        beam_width: Prefixes that are kept from step to step.
        top_paths: Sequences that are returned, at most ``beam_width``.

    Returns:
        Logarithmic probabilities ``[batch, top_paths]``, lengths ``[batch, top_paths]`` and labels
        ``[batch, top_paths, input length]`` of the sequences, most probable first; blanks fill up
        what is left. Where there are fewer sequences the rest has probability 0.

    Raises:
        OptionValueError: An argument is out of range.
    """
    steps, batch, classes = probs.shape
    right = {
        "blank": 0 <= blank < classes,
        "beam_width": beam_width >= 1,
        "top_paths": 1 <= top_paths <= beam_width,
        "lengths": tuple(lengths.shape) == (batch,)
        and bool(((lengths >= 0) & (lengths <= steps)).all()),
    }
    wrong = [name for name, holds in right.items() if not holds]
    if wrong:
        raise OptionValueError(
            "PD300",
            f"ctc_beam_search_decoder does not take such {wrong[0]}",
            value={"blank": blank, "beam_width": beam_width, "top_paths": top_paths},
            accepted=f"blank below {classes}, top_paths up to beam_width, {batch} lengths up to "
            f"{steps}",
        )
    scores = np.full((batch, top_paths), _NEVER)
    sizes = np.zeros((batch, top_paths), dtype=np.int64)
    labels = np.full((batch, top_paths, steps), blank, dtype=np.int64)
    table = probs.detach().double().cpu().numpy()
    for item, length in enumerate(lengths.tolist()):
        found = _search(table[:length, item], blank, beam_width)
        for rank, (prefix, score) in enumerate(found[:top_paths]):
            scores[item, rank], sizes[item, rank] = score, len(prefix)
            labels[item, rank, : len(prefix)] = prefix
    return (
        torch.from_numpy(scores).to(probs),
        torch.from_numpy(sizes).to(probs.device, torch.int32),
        torch.from_numpy(labels).to(probs.device, torch.int32),
    )


def _search(
    table: np.ndarray[Any, Any], blank: int, width: int
) -> list[tuple[tuple[int, ...], float]]:
    """The kept prefixes with their probabilities, in descending order."""
    # Per prefix: probability of ending in a blank, and of ending in its last label.
    beams: dict[tuple[int, ...], list[float]] = {(): [0.0, _NEVER]}
    for row in table:
        grown: dict[tuple[int, ...], list[float]] = {}
        for prefix, (in_blank, in_label) in beams.items():
            either = np.logaddexp(in_blank, in_label)
            _add(grown, prefix, 0, either + row[blank])
            for label, score in enumerate(row):
                if label == blank:
                    continue
                if prefix and prefix[-1] == label:
                    _add(grown, prefix, 1, in_label + score)
                    _add(grown, (*prefix, label), 1, in_blank + score)
                else:
                    _add(grown, (*prefix, label), 1, either + score)
        beams = dict(sorted(grown.items(), key=_probability, reverse=True)[:width])
    return [(prefix, _probability((prefix, ends))) for prefix, ends in beams.items()]


def _add(
    beams: dict[tuple[int, ...], list[float]], prefix: tuple[int, ...], end: int, score: float
) -> None:
    ends = beams.setdefault(prefix, [_NEVER, _NEVER])
    ends[end] = float(np.logaddexp(ends[end], score))


def _probability(beam: tuple[tuple[int, ...], list[float]]) -> float:
    in_blank, in_label = beam[1]
    return float(np.logaddexp(in_blank, in_label))
