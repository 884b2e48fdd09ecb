"""Whether the gradients of the halves of a micro-batch add up, measured by forward passes.

The gradient of the whole is the mean of the gradients of its halves, for all weights, exactly if
the loss of the whole differs from the mean loss of the halves by the same number for all weights.
So losses are compared at two sets of weights. The graph is that of inference: without dropout, and
with running statistics. Where a file fixes the number of samples, each half is repeated to that
number.

A term that is rewritten (`popdist_onnx.training.divisors`) takes numbers S of the whole batch from
inputs, and follows its own number s to the first order: its gradient is that of S + n (s - s0) with
n halves and the number s0 before a move (n is 1 for means). The measurement feeds these sums, and
moves the weights by little in both directions.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from popdist.checks.parts import CAUSE, HALVES, UPDATES
from popdist.checks.passes import NotJudgedError
from popdist_onnx.errors import popart_exception
from popdist_onnx.training.data import Layout
from popdist_onnx.training.divisors import Divisors
from popdist_onnx.training.evaluation import Evaluator, in_inference_mode
from popdist_onnx.training.local_replicas import LocalReplicas
from popdist_onnx.training.model import trainable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from popdist_onnx.training.data import Array

    Batch = Mapping[str, Array]

logger = logging.getLogger("popdist.onnx")

_LARGEST = 1 << 30
"""Bytes of weights up to which losses are compared: moved weights are a copy."""

_SHARE, _SHARE_OF_REWRITTEN = 1e-3, 1e-2
"""The largest difference, as a share of how far the losses move with the weights."""

_FAR, _NEAR = 0.1, 0.01
"""How far weights are moved, by their size; rewritten terms are right to the first order only."""

_ROUNDING, _ROUNDING_OF_HALF = 64 * 2.0**-23, 8 * 2.0**-10
"""The largest difference by rounding, as a share of a loss, in single and in half precision."""

_MOVES = 2
_ALONE = LocalReplicas(0, 1, 1, first=False)


class PartsProbe:
    """Warns once of a loss that cannot be computed in parts.

    Args:
        sized: Returns the model for a number of samples.
        loss: Its loss, as the trainer was given it.
        batch: Samples of a micro-batch.
        trained: The ids of the weights that are trained.
        is_rewritten: Whether terms of the loss take numbers of the whole batch from inputs.
        warns: Whether this process prints a finding; the others log it.
    """

    def __init__(
        self,
        sized: Callable[[int], ir.Model],
        loss: str,
        batch: int,
        trained: Collection[str],
        *,
        is_rewritten: bool,
        warns: bool,
    ) -> None:
        self._sized = sized
        self._kind = loss
        self._batch = batch
        self._trained = frozenset(trained)
        self._level = logging.WARNING if warns else logging.INFO
        self._updates = 0
        self._is_rewritten = is_rewritten
        self._whole: _Graph | None = None
        self._part: _Graph | None = None
        self._is_over = batch == 1

    def before_update(
        self, step: Mapping[str, Array], weights: Callable[[], Mapping[str, Array]]
    ) -> None:
        """Measures the first micro-batch of an update that is about to be made.

        Args:
            step: The samples of this process, [accumulation, local replicas, batch, ...] by input.
            weights: Returns the present weights by id.
        """
        self._updates += 1
        if self._is_over or self._updates not in UPDATES:
            return
        try:
            share = self._measured({name: one[0, 0] for name, one in step.items()}, weights())
        except Exception as error:  # noqa: BLE001 - whatever the graph does not accept
            logger.info("parts of a batch were not compared: %s: %s", type(error).__name__, error)
            self._is_over = True
            return
        if share > (_SHARE_OF_REWRITTEN if self._is_rewritten else _SHARE):
            self._is_over = True
            logger.log(
                self._level,
                "%s",
                popart_exception(
                    "PD600",
                    CAUSE,
                    value=f"the loss of the whole and the mean loss of the halves differ by "
                    f"{share:.2g} of how far both move with the weights",
                    hint="use means over samples, or sums divided by counts, which are computed "
                    "from the global batch; or a larger batch_size without accumulation; or set "
                    "POPDIST_SKIP_CHECKS=parts where each part's own loss is meant",
                ),
            )

    def _measured(self, batch: Mapping[str, Array], weights: Mapping[str, Array]) -> float:
        """The largest difference over some moves of the weights.

        Raises:
            NotJudgedError: It cannot be measured.
        """
        if sum(one.nbytes for one in weights.values()) > _LARGEST:
            raise NotJudgedError("weights of more than 1 GiB")
        whole, part = self._graphs()
        half = self._batch // 2
        halves = np.arange(half), np.arange(half, 2 * half)
        repeats = part.samples // half
        rows = [np.concatenate(halves), *(np.tile(one, repeats) for one in halves)]
        data = [{name: one[taken] for name, one in batch.items()} for taken in rows]
        before = part.numbers(weights, data[1:])

        def losses(at: Mapping[str, Array]) -> list[float]:
            followed = part.followed(before, part.numbers(at, data[1:]))
            given = zip(data[1:], followed, strict=True)
            return [whole.run(at, data[0], {}), *(part.run(at, *one) for one in given)]

        if losses(weights) != losses(weights):
            raise NotJudgedError("the loss draws random numbers")
        size = _NEAR if self._is_rewritten else _FAR
        moves = [_move(weights, self._trained, seed, size) for seed in range(_MOVES)]
        return max(
            _share(
                losses(_moved(weights, move, -1)), losses(_moved(weights, move, 1)), whole.rounding
            )
            for move in moves
        )

    def _graphs(self) -> tuple[_Graph, _Graph]:
        """The graph of an even number of samples, and that of a half of it or of one repeated."""
        if self._whole is None or self._part is None:
            even = self._batch // 2 * 2
            self._whole = _Graph(self._sized(even), self._kind, even, is_rewritten=False)
            try:
                model = self._sized(even // 2)
                self._part = _Graph(model, self._kind, even // 2, is_rewritten=self._is_rewritten)
            except Exception:  # noqa: BLE001 - the file may fix the number of samples
                model = self._sized(even)
                self._part = _Graph(model, self._kind, even, is_rewritten=self._is_rewritten)
        return self._whole, self._part


class _Graph:
    """A loss of a number of samples, compiled for inference."""

    def __init__(self, original: ir.Model, kind: str, samples: int, *, is_rewritten: bool) -> None:
        model, self._loss, _ = trainable(original, kind)
        model = in_inference_mode(model)
        self.samples = samples
        self.rounding = _ROUNDING_OF_HALF if _is_half(model) else _ROUNDING
        layout = Layout(samples, HALVES, _ALONE)
        self._divisors = Divisors(model, self._loss, layout, original) if is_rewritten else None
        self._evaluator = Evaluator(model, [self._loss], samples)

    def numbers(self, weights: Mapping[str, Array], parts: Sequence[Batch]) -> list[Batch]:
        """The numbers of each part that are those of the whole batch in the graph."""
        if self._divisors is None:
            return [{} for _ in parts]
        return [self._divisors.numbers(weights, part, self.samples) for part in parts]

    def followed(self, before: Sequence[Batch], now: Sequence[Batch]) -> list[Batch]:
        """For each part the numbers of the whole batch, and how far its own have moved."""
        divisors = self._divisors
        if divisors is None:
            return [{} for _ in now]
        return [
            divisors.filled(
                {
                    name: divisors.total(name, [one[name] for one in before])
                    + divisors.factor(name) * (number - at[name])
                    for name, number in part.items()
                }
            )
            for at, part in zip(before, now, strict=True)
        ]

    def run(self, weights: Mapping[str, Array], data: Batch, numbers: Batch) -> float:
        """The loss of one part."""
        _, found = next(self._evaluator.run(weights, data, self.samples, numbers))
        return float(np.sum(found[self._loss], dtype=np.float64))


def _is_half(model: ir.Model) -> bool:
    """Whether a part of a graph is computed in half precision."""
    graph = model.graph
    made = (value for node in graph for value in node.outputs)
    kinds = {value.dtype for value in (*graph.inputs, *graph.initializers.values(), *made)}
    return bool(kinds & {ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def _share(first: Sequence[float], moved: Sequence[float], rounding: float) -> float:
    """How far the losses are from adding up, by how far they move with the weights.

    Raises:
        NotJudgedError: They are not finite.
    """
    if not np.isfinite([*first, *moved]).all():
        raise NotJudgedError("losses are not finite")
    apart = abs((moved[0] - np.mean(moved[1:])) - (first[0] - np.mean(first[1:])))
    apart -= rounding * max(map(abs, [*first, *moved]))
    far = max(abs(now - before) for now, before in zip(moved, first, strict=True))
    return float(apart / far) if apart > 0 else 0.0


def _move(
    weights: Mapping[str, Array], trained: Collection[str], seed: int, size: float
) -> dict[str, Array]:
    """Random numbers by the size of each trained weight, and some where a weight is zero."""
    generator = np.random.default_rng(seed)
    moves = {}
    for name, value in weights.items():
        if name in trained and value.dtype.kind == "f" and value.size:
            scale = size * (0.2 + float(np.sqrt(np.mean(np.square(value, dtype=np.float64)))))
            moves[name] = generator.standard_normal(value.shape) * scale
    return moves


def _moved(weights: Mapping[str, Array], move: Batch, sign: int) -> dict[str, Array]:
    return {
        name: (value + sign * move[name]).astype(value.dtype) if name in move else value
        for name, value in weights.items()
    }
