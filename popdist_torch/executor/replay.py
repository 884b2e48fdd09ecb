"""The batches of a job's ``trainingModel``, which the program alone is given in a comparison.

``poprun --compare-alone`` runs a program as a job first. There, each instance keeps the tensors of
its calls, and the first one the state of the module before them. The program alone starts from that
state, and trains on the tensors of all instances together. So an order or an augmentation that
depends on the rank, and a first weight that depends on a seed, do not prevent the comparison.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from pathlib import Path

    from popdist.recording import Recording
    from popdist_torch.executor.batching import Batching
    from popdist_torch.executor.inputs import Arguments

_MODELS = itertools.count()


class Replay:
    """Keeps the batches of one model in a job, or replays them to the model alone.

    Args:
        recording: The recording of this process.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._model = -1  # known since the first call
        self._calls = 0
        # Of a micro-batch on all replicas, and replicas: the program's own, and those computed.
        self._rows = self._replicas = (1, 1)

    def start(self, model: Any) -> None:
        """Keeps the state of a module before its first call, or loads it from the job.

        Args:
            model: The executor of the module.
        """
        if self._calls:
            return
        self._model = next(_MODELS)
        if self._recording.job is None:
            if self._recording.instance == 0:
                torch.save(model.state_dict(), self._recording.folder / self._named("state"))
            return
        path = self._recording.job / self._named("state")
        if path.exists():
            state = torch.load(path, weights_only=False)  # modules may keep objects of any kind
            if state.keys() == model.state_dict().keys():  # else the comparison names a difference
                model.load_state_dict(state)

    def of_call(self, arguments: Arguments, given: Batching, batching: Batching) -> Arguments:
        """Keeps the tensors of the next call, or replaces them by those of the job.

        Args:
            arguments: The arguments of this process.
            given: How the program divides them into micro-batches.
            batching: How those of the job are divided.

        Returns:
            The arguments to train on.
        """
        name = self._named(f"call.{self._calls}")
        self._calls += 1
        if self._recording.job is None:
            kept = [value for value in arguments.values if isinstance(value, torch.Tensor)]
            torch.save(kept, self._recording.folder / f"{name}.{self._recording.instance}")
            return arguments
        files = sorted(self._recording.job.glob(f"{name}.*"), key=_instance_of)
        if not files:  # the job has made fewer calls
            return arguments
        steps = batching.iterations * batching.accumulation
        parts = zip(*(torch.load(path, weights_only=True) for path in files), strict=True)
        tensors = iter([_joined(found, steps) for found in parts])
        values = tuple(
            next(tensors).to(value.device) if isinstance(value, torch.Tensor) else value
            for value in arguments.values
        )
        own, joined = arguments.rows() or steps, replace(arguments, values=values).rows() or steps
        self._rows = (own // steps, joined // steps)
        self._replicas = (given.replicas, batching.replicas)
        return replace(arguments, values=values, given=())

    def as_asked(self, outputs: Any) -> Any:
        """As many rows of each micro-batch, or values of replicas, as the program expects."""
        pairs = [(own, joined) for own, joined in (self._rows, self._replicas) if own < joined]

        def shortened(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or not value.dim():
                return value
            for own, joined in pairs:
                if not len(value) % joined:
                    return _divided(value, len(value) // joined)[:, :own].flatten(0, 1)
            return value

        return pytree.tree_map(shortened, outputs) if pairs else outputs

    def _named(self, what: str) -> str:
        return f"model.{self._model}.{what}"


def _instance_of(path: Path) -> int:
    return int(path.suffix[1:])


def _joined(parts: tuple[torch.Tensor, ...], steps: int) -> torch.Tensor:
    """The rows of all instances, with all replicas of a micro-batch side by side."""
    if not parts[0].dim():
        return parts[0]
    return torch.cat([_divided(part, steps) for part in parts], dim=1).flatten(0, 1)


def _divided(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """The rows of a tensor as so many groups."""
    return tensor.reshape(count, len(tensor) // count, *tensor.shape[1:])
