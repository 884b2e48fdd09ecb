"""Callbacks in the place of an exchange: the program's own functions sum the gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.errors import popart_exception

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from popdist_onnx.runtime.cells import Array
    from popdist_onnx.runtime.reading import HostCopy, Spec


class Streams:
    """The streams of gradients to the host and back.

    A store callback gets the memory of a gradient as soon as it is complete, a load callback the
    same memory to fill, after all stores.

    Args:
        gradients: The exchange points, in the order of completion.
        replicas: Local replicas; each may have a store callback, and all see the same sum.
    """

    def __init__(self, gradients: Sequence[tuple[HostCopy, Spec]], replicas: int) -> None:
        self._gradients = [copy for copy, _ in gradients]
        self._replicas = replicas
        self._callbacks: dict[tuple[str, int], Callable[[Array], None]] = {}
        self.memory = [np.zeros(spec.shape or (), spec.dtype.numpy()) for _, spec in gradients]

    @property
    def handles(self) -> list[str]:
        """All streams, stores before loads."""
        return [c.store for c in self._gradients] + [c.load for c in self._gradients]

    @property
    def connected(self) -> bool:
        """Whether every stream has a callback."""
        return all((handle, 0) in self._callbacks for handle in self.handles)

    def connect(self, handle: str, callback: Callable[[Array], None], index: int) -> None:
        """Says what a stream calls.

        Args:
            handle: The stream.
            callback: Called with the memory of the gradient.
            index: The local replica; loads serve all replicas at once and have index 0 only.

        Raises:
            popart_exception: There is no such stream or index.
        """
        if handle not in self.handles:
            raise popart_exception(
                "PD567",
                f"there is no stream '{handle}'",
                accepted=", ".join(self.handles[:6]),
                hint="session.getHostReduceStreamIds() lists them after prepareDevice()",
            )
        last = self._replicas - 1 if handle in {c.store for c in self._gradients} else 0
        if not 0 <= index <= last:
            raise popart_exception(
                "PD567",
                f"stream '{handle}' has no such index",
                value=index,
                accepted=f"0 to {last}",
            )
        self._callbacks[handle, index] = callback

    def begin(self) -> None:
        """Nothing to be done: stores start by themselves."""

    def ready(self, index: int) -> None:
        """Stores a gradient.

        Args:
            index: Its index.
        """
        handle = self._gradients[index].store
        for replica in range(self._replicas):
            if (handle, replica) in self._callbacks:
                self._callbacks[handle, replica](self.memory[index])

    def finish(self) -> None:
        """Loads all gradients."""
        for copy, memory in zip(self._gradients, self.memory, strict=True):
            self._callbacks[copy.load, 0](memory)
