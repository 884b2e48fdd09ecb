"""What this process has trained, stated to poprun when the program ends.

An adapter makes a `Trained` for each model whose weights are to be equal on all instances. At the
end, each instance states a digest of every weight, and whether it has exchanged anything at all.
The launcher compares the statements when all instances have ended: no instance waits for another,
and one that has failed states nothing.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from popdist import backend
from popdist.agreement import digest, numbered
from popdist.checks import AT_END, CONNECTED, is_enabled
from popdist.popdist_core import topology
from popdist.program_status import is_watched, tell_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

LIGHTNING = {"lightning.pytorch", "pytorch_lightning"}

_MOST = 2000
"""Weights that are stated one by one; more are stated together."""


class Trained:
    """A model whose weights are to be equal on all instances when the program ends.

    Args:
        name: What it is, for messages.
        weights: The weights now: names with numpy arrays, or with what ``read`` reads.
        read: Reads a weight, such as a parameter, as a numpy array.
        is_own: Whether the program exchanges gradients by means of its own.

    Attributes:
        is_own: As given.
    """

    def __init__(
        self,
        name: str,
        weights: Callable[[], Iterable[tuple[str, Any]]],
        read: Callable[[Any], Any] | None = None,
        *,
        is_own: bool = False,
    ) -> None:
        self._weights, self._read, self.is_own = weights, read, is_own
        self._end = END  # an interpreter that ends forgets a module's names before objects
        self._name = self._end.name(name)
        self._end.models.add(self)

    def __del__(self) -> None:
        self._end.take(self)

    def claim(self) -> None:
        """Makes this the only one that states its weights, as it trains them from now on.

        An earlier one, of a replaced optimizer, may be deleted by the garbage collector during this
        training, on each instance at another time.
        """
        for row, weight in self._rows():
            self._end.claim(row, weight)

    def state(self) -> dict[str, str]:
        """A digest of each weight that no later one has claimed, by its name."""
        digests: dict[str, list[str]] = {}
        rows = [*self._rows()]
        claimed = {row for row, weight in rows if not self._end.is_of(row, weight)}
        for row, weight in rows:
            if row not in claimed:
                array = weight if self._read is None else self._read(weight)
                digests.setdefault(row, []).append(digest(array.tobytes()))
        return {
            row: one if not more else digest("".join([one, *more]).encode())
            for row, (one, *more) in digests.items()
        }

    def _rows(self) -> Iterator[tuple[str, Any]]:
        """Each weight, with the name under which it is stated."""
        for index, (name, weight) in enumerate(self._weights()):
            yield f"{name if index < _MOST else 'other weights'} of {self._name}", weight


def note_end(name: str, weights: Iterable[tuple[str, Any]]) -> None:
    """Notes the last weights of a model whose values are not kept until the program ends.

    Args:
        name: As for `Trained`.
        weights: Names and numpy arrays.
    """
    Trained(name, lambda: weights)  # deleted at once, which takes the weights


class _End:
    """The statement of this process."""

    def __init__(self) -> None:
        self.models: WeakSet[Trained] = WeakSet()
        self.framework = ""
        self._counts: dict[str, int] = {}
        self._stated: dict[str, str] = {}
        self._own: dict[str, str] = {}
        self._newest: dict[int, tuple[ref[Any], str]] = {}
        self._process = os.getpid()
        self._connected = False
        self._is_over = False
        if is_several():
            atexit.register(self.state)

    def name(self, name: str) -> str:
        """A name that no other model of this process has; equal on all instances."""
        return numbered(name, self._counts)

    def claim(self, row: str, weight: Any) -> None:
        """Notes under which name a weight is stated, and forgets what was stated before."""
        if not self.is_of(row, weight):
            self._stated.pop(self._newest[id(weight)][1], None)
        self._newest[id(weight)] = (ref(weight), row)

    def is_of(self, row: str, weight: Any) -> bool:
        """Whether a weight may be stated under a name: no other name has claimed it."""
        is_same, known = self._newest.get(id(weight), (None, row))
        return is_same is None or is_same() is not weight or known == row

    def take(self, model: Trained) -> None:
        """Takes the last weights of a model that is deleted."""
        if self._is_over:
            return
        try:
            if os.getpid() == self._process and is_several():
                (self._own if model.is_own else self._stated).update(model.state())
        except Exception:  # noqa: BLE001 - an interpreter that ends, or a framework in between
            return

    def note_training(self, framework: str) -> bool:
        """Notes that this process has updated weights.

        Returns:
            Whether it was connected then; else it may be so at a later update, and be asked again,
            as what connects it may have ended when the program ends.
        """
        is_first, self.framework = not self.framework, framework
        self._connected |= is_connected()
        if is_first or self._connected:
            self._tell()
        return self._connected

    def state(self) -> None:
        """Makes the statement, when the program ends."""
        if os.getpid() != self._process:
            return
        for model in [*self.models]:
            self.take(model)
        self._is_over = True
        self._connected |= is_connected()
        self._tell()

    def _tell(self) -> None:
        framework = self.framework if is_enabled(CONNECTED) else ""
        weights, own = (self._stated, self._own) if is_enabled(AT_END) else ({}, {})
        if framework or weights or own:
            stated = {"framework": framework, "connected": self._connected}
            tell_end(json.dumps(stated | {"weights": weights, "own": own}))


def is_several() -> bool:
    """Whether poprun has started this process beside others, and reads what it states."""
    return is_watched() and topology().num_total_replicas != topology().num_local_replicas


def is_connected() -> bool:
    """Whether something in this process exchanges values with other processes."""
    loaded: Any = sys.modules.get
    torch_distributed = loaded("torch.distributed")
    eager = loaded("tensorflow.python.eager.context")
    return (
        # Horovod has ended before this process states what it has trained.
        backend.isBackendInitialized()
        or backend.started() is not None
        # Lightning imports it to ask who has started the process.
        or ("mpi4py.MPI" in sys.modules and not LIGHTNING & sys.modules.keys())
        or bool(
            torch_distributed is not None
            and torch_distributed.is_available()
            and torch_distributed.is_initialized()
        )
        or bool(eager is not None and eager.context()._server_def is not None)  # noqa: SLF001 - no public name
    )


END = _End()
"""The statement of this process."""
