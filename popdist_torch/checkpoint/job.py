"""Moves states between the instances of a job, of which only instance 0 touches the file."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from popdist.exchange import connect
from popdist_torch.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")

_PIECE = 64 << 20
"""Bytes that travel at once; Horovod counts elements in 32 bits."""


@dataclass(frozen=True)
class Job:
    """The instances that save and load together.

    Attributes:
        index: This one's index.
        count: How many there are.
        horovod: The module ``horovod.torch``, initialised; None for a job of one.
    """

    index: int = 0
    count: int = 1
    horovod: Any = None

    @classmethod
    def joined(cls, processes: int | None) -> Job:
        """The job that this process belongs to.

        Args:
            processes: How many processes the models are trained by; None where no options say so.

        Returns:
            The job; that of the program's own Horovod where nothing else describes one.

        Raises:
            BackendError: No usable Horovod is installed, or it sees another job.
        """
        if processes == 1:
            return cls()
        horovod = connect(processes)
        if horovod is None:
            own = sys.modules.get("horovod.torch")
            horovod = own if own is not None and own.is_initialized() else None
        if horovod is None:
            return cls()
        return cls(int(horovod.rank()), int(horovod.size()), horovod)

    def gathered(self, content: bytes) -> list[bytes]:
        """What every instance has; all must call it.

        Args:
            content: What this one has.

        Returns:
            One entry an instance.
        """
        if self.horovod is None:
            return [content]
        sizes = self.horovod.allgather(torch.tensor([len(content)]), name="popdist.state.sizes")
        joined = self.horovod.allgather(_tensor(content), name="popdist.state.gathered")
        return [part.numpy().tobytes() for part in torch.split(joined, sizes.tolist())]

    def on_first(self, function: Callable[[], Result]) -> Result | None:
        """Calls a function on instance 0 alone; all instances must call this.

        Args:
            function: What to call.

        Returns:
            What it returned, on instance 0; None on the others.

        Raises:
            CheckpointError: It did, on instance 0; then it is raised on all of them.
        """
        result, failure = None, b""
        if self.index == 0:
            try:
                result = function()
            except CheckpointError as error:
                failure, raised = str(error).encode(), error
        failure = self.from_first(failure)
        if not failure:
            return result
        if self.index == 0:
            raise raised
        raise CheckpointError("PD307", "instance 0 failed", value=failure.decode())

    def from_first(self, content: bytes) -> bytes:
        """Instance 0's bytes; all must call it.

        Args:
            content: They, on instance 0; not looked at on the others.

        Returns:
            They.
        """
        return self.from_one(content, 0)

    def from_one(self, content: bytes, root: int) -> bytes:
        """One instance's bytes; all must call it.

        Args:
            content: They, on that instance; not looked at on the others.
            root: Its index.

        Returns:
            They.
        """
        if self.horovod is None:
            return content
        size = self.horovod.broadcast(torch.tensor([len(content)]), root, name="popdist.state.size")
        here = self.index == root
        whole = _tensor(content) if here else torch.empty(int(size), dtype=torch.uint8)
        for piece in torch.split(whole, _PIECE):
            self.horovod.broadcast_(piece, root, name="popdist.state.piece")
        return content if here else whole.numpy().tobytes()


def _tensor(content: bytes) -> torch.Tensor:
    return (
        torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if content
        else torch.empty(0, dtype=torch.uint8)
    )
