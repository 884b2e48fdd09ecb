"""Random tensors, drawn on the host.

Each tensor of each micro-batch has a stream of its own, keyed by seed, replica, micro-batch and
tensor, so that what a replica draws depends on neither the other replicas of its process nor on
what was drawn before. A resumed training draws what it would have drawn without the break.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.graph import names
from popdist_onnx.runtime.cells import Array, Buffer, empty

if TYPE_CHECKING:
    from popdist_onnx.runtime.reading import Reading

_KEEP_BITS = 16


@dataclass(frozen=True)
class _Mask:
    name: str
    buffer: Buffer
    facts: dict[str, str]

    def number(self, key: str, default: float) -> float:
        return float(self.facts.get(f"{names.RANDOM}.{key}", default))


class Masks:
    """The random inputs of a graph.

    Args:
        reading: The graph.
    """

    def __init__(self, reading: Reading) -> None:
        self._masks = [
            _Mask(str(value.name), empty(reading.spec(str(value.name))), dict(value.metadata_props))
            for value in reading.model.graph.inputs
            if names.RANDOM in value.metadata_props
        ]

    def __len__(self) -> int:
        return len(self._masks)

    @property
    def buffers(self) -> dict[str, Buffer]:
        """The memory of each random tensor."""
        return {mask.name: mask.buffer for mask in self._masks}

    def draw(self, seed: int, replica: int, micro_batch: int) -> None:
        """Fills all tensors for one micro-batch.

        Args:
            seed: The session's seed.
            replica: Index of the replica in the whole job.
            micro_batch: How many micro-batches the replica has computed before.
        """
        for index, mask in enumerate(self._masks):
            words = np.random.SeedSequence(
                [seed % 2**64, _natural(mask.facts), replica, micro_batch, index]
            )
            _fill(mask, np.random.Generator(np.random.Philox(words)))


def _natural(facts: dict[str, str]) -> int:
    """The operator's own seed, a float in ONNX, as the whole number that its bits spell."""
    return int(np.float32(facts.get(f"{names.RANDOM}.seed", 0)).view(np.uint32))


def _fill(mask: _Mask, generator: np.random.Generator) -> None:
    target = mask.buffer.array
    kind = mask.facts[names.RANDOM]
    if kind == "bernoulli":
        target[...] = _kept(mask.number("keep", 0.5), target.shape, generator)
    elif kind == "uniform":
        low, high = mask.number("low", 0), mask.number("high", 1)
        target[...] = generator.uniform(low, high, target.shape)
    else:
        mean, scale = mask.number("mean", 0), mask.number("scale", 1)
        target[...] = generator.normal(mean, scale, target.shape)


def _kept(probability: float, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    """True with a probability; 16 random bits decide where those are enough."""
    scaled = probability * 2**_KEEP_BITS
    if scaled == int(scaled) and scaled < 2**_KEEP_BITS:
        return generator.integers(0, 2**_KEEP_BITS, shape, np.uint16) < int(scaled)
    kept: Array = generator.random(shape, np.float32) < np.float32(probability)
    return kept
