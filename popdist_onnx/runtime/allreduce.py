"""Sums gradients over all instances: the shared exchange, over the real Horovod."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from popdist_onnx.errors import popart_exception
from popdist_onnx.runtime.stages import MOST_BUCKETS
from popdist_onnx.runtime.wiring import LEAST_BUCKET

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from popdist_onnx.runtime.cells import Array
    from popdist_onnx.runtime.reading import HostCopy, Spec

_SHARE_WEIGHTS = (
    "share the first weights: popdist_onnx.horovod.broadcast_weights(session), then "
    "session.weightsFromHost()"
)
_BUILD_THE_SAME = "build the same model, options and optimizer on every instance"


class Allreduce:
    """An exchange of all gradients of a session.

    Gradients lie back to back in flat buffers, where the graph writes and reads them. Before the
    first exchange the instances compare what they are about to train.

    Args:
        gradients: The exchange points, in the order of completion.
        horovod: The module ``horovod.torch``, initialised.
        average: Whether the sum is divided by the number of instances.
        facts: What must be equal on all instances, asked for before the first exchange.
        name: Prefix of what travels; equal on all instances.
    """

    def __init__(
        self,
        gradients: Sequence[tuple[HostCopy, Spec]],
        horovod: Any,
        *,
        average: bool,
        facts: Callable[[], Mapping[str, str]],
        name: str,
    ) -> None:
        # Imported here because it brings torch, which a session that exchanges nothing never needs.
        from popdist.exchange import Exchange, Item, allocate, plan

        items = [
            Item(copy.gradient, int(np.prod(spec.shape or ())), _torch_name(spec), _bytes(spec))
            for copy, spec in gradients
        ]
        layout = plan(items, slice_bytes=_slice_bytes(sum(i.elements * i.itemsize for i in items)))
        self._arenas = allocate(layout)
        self._facts: Callable[[], Mapping[str, str]] | None = facts
        self._horovod = horovod
        self._exchange = Exchange(layout, self._arenas, horovod, name=name, average=average)
        flat = [_as_numpy(arena) for arena in self._arenas]
        self.memory: list[Array] = [
            flat[slot.arena][slot.start : slot.stop]
            .view(spec.dtype.numpy())
            .reshape(spec.shape or ())
            for slot, (_, spec) in zip(layout.slots, gradients, strict=True)
        ]

    def begin(self) -> None:
        """Starts a round.

        Raises:
            popart_exception: The instances are about to train different things.
        """
        if self._facts is not None:
            facts, self._facts = self._facts, None
            require_agreement(facts(), self._horovod)
        self._exchange.begin()

    def ready(self, index: int) -> None:
        """Says that a gradient is complete; full slices leave at once.

        Args:
            index: Its index.
        """
        self._exchange.ready(index)

    def finish(self) -> None:
        """Waits until all sums have arrived."""
        self._exchange.finish()


def require_agreement(facts: Mapping[str, str], horovod: Any, *, hint: str | None = None) -> None:
    """Compares facts over all instances; every instance must call it.

    Args:
        facts: This instance's facts.
        horovod: The module ``horovod.torch``, initialised.
        hint: What to do where they differ; None for the advice about sessions.

    Raises:
        popart_exception: Instances differ; raised on all of them.
    """
    from popdist.exchange import disagreements
    from popdist.exchange.agreement import listed

    found = disagreements(facts, horovod)
    if not found:
        return
    values = all(row.name.startswith("values of ") for row in found)
    raise popart_exception(
        "PD568",
        f"the instances are about to train different things:{listed(found)}",
        hint=hint or (_SHARE_WEIGHTS if values else _BUILD_THE_SAME),
    )


def digest(array: Array) -> str:
    """A short text that differs where arrays do.

    Args:
        array: The array.

    Returns:
        Hexadecimal digits.
    """
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return hashlib.blake2b(flat.data, digest_size=8).hexdigest()


def _slice_bytes(total: int) -> int:
    """Slices small enough for the first to leave long before the last gradient is complete."""
    from popdist.exchange import DEFAULT_SLICE_BYTES

    return max(LEAST_BUCKET, min(DEFAULT_SLICE_BYTES, total // MOST_BUCKETS))


def _torch_name(spec: Spec) -> str:
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(spec.dtype.name, spec.dtype.name.lower())


def _bytes(spec: Spec) -> int:
    return np.dtype(spec.dtype.numpy()).itemsize


def _as_numpy(arena: Any) -> Array:
    import torch

    # numpy has no bfloat16 of its own; the bits are the same whatever they are called.
    if arena.dtype == torch.bfloat16:
        arena = arena.view(torch.int16)
    array: Array = arena.numpy()
    return array
