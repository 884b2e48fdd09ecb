"""What every replica has of its own: a random stream, and the buffers that the model changes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.batchnorm import _NormBase

from popdist_torch.errors import Error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Buffers = dict[str, Any]

    from torch import nn

_MASK = (1 << 64) - 1


def stream_seed(seed: int, replica: int) -> int:
    """Seed of one replica's random stream.

    Torch's CPU generator uses the low 32 bits of a seed only. Replicas get neighbouring values
    there, so no two of a job ever share a stream; the program's seed is scattered first
    (SplitMix64), so that neighbouring seeds do not give the streams of neighbouring replicas.

    Args:
        seed: The program's seed.
        replica: Global index of the replica.

    Returns:
        A seed of 64 bits.
    """
    mixed = (seed + 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    mixed ^= mixed >> 31
    return (mixed & ~0xFFFFFFFF) | ((mixed + replica) & 0xFFFFFFFF)


class RandomStreams:
    """One random stream per local replica, apart from the host's.

    A replica's stream depends on the program's seed and on its global index alone, so the same
    masks are drawn however replicas are laid out over instances.

    Args:
        seed: The program's seed.
        replicas: Global indices of the local replicas.
        device: Where the model runs.

    Attributes:
        device: Where the model runs.
    """

    def __init__(self, seed: int, replicas: Sequence[int], device: torch.device) -> None:
        self.device = device
        self._states = [self._first_state(stream_seed(seed, index)) for index in replicas]

    @contextmanager
    def of(self, replica: int) -> Iterator[None]:
        """Makes a replica's stream the one that torch draws from.

        Args:
            replica: Local index of the replica.

        Yields:
            Nothing; the host's stream is back afterwards.
        """
        host = self._current()
        self._make_current(self._states[replica])
        try:
            yield
        finally:
            self._states[replica] = self._current()
            self._make_current(host)

    @property
    def state(self) -> list[tuple[torch.Tensor, ...]]:
        """The streams' positions, one entry per local replica."""
        return list(self._states)

    @state.setter
    def state(self, state: Sequence[tuple[torch.Tensor, ...]]) -> None:
        self._states = list(state)

    def _first_state(self, seed: int) -> tuple[torch.Tensor, ...]:
        states: tuple[torch.Tensor, ...] = (torch.Generator().manual_seed(seed).get_state(),)
        if self.device.type == "cuda":
            states += (torch.Generator(self.device).manual_seed(seed).get_state(),)
        return states

    def _current(self) -> tuple[torch.Tensor, ...]:
        states: tuple[torch.Tensor, ...] = (torch.get_rng_state(),)
        if self.device.type == "cuda":
            states += (torch.cuda.get_rng_state(self.device),)
        return states

    def _make_current(self, states: tuple[torch.Tensor, ...]) -> None:
        torch.set_rng_state(states[0])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(states[1], self.device)


def random_words(seed: int, streams: RandomStreams) -> list[int]:
    """The positions of random streams as numbers.

    Args:
        seed: The program's seed.
        streams: The streams.

    Returns:
        The seed, then the bytes of every stream's state.
    """
    return [seed, *(byte for stream in streams.state for part in stream for byte in part.tolist())]


def restore_words(words: Sequence[int], streams: RandomStreams) -> None:
    """Puts random streams where others stood.

    Args:
        words: What `random_words` returned.
        streams: The streams to move.

    Raises:
        Error: They are those of another number of replicas.
    """
    sizes = [[part.numel() for part in stream] for stream in streams.state]
    flat = torch.tensor(words[1:], dtype=torch.uint8)
    if flat.numel() != sum(map(sum, sizes)):
        raise Error(
            "PD305",
            "rng_state is of another number of replicas",
            value=f"{len(words)} numbers",
            accepted=f"{1 + sum(map(sum, sizes))}",
        )
    rest = iter(torch.split(flat, [size for stream in sizes for size in stream]))
    streams.state = [tuple(next(rest).clone() for _ in stream) for stream in sizes]


class ReplicaBuffers:
    """One set of buffers per local replica; a module uses one set at a time.

    Sets are exchanged as whole dictionaries, so a model may change its buffers in place or assign
    new ones.

    Args:
        module: The module that runs; its present buffers become those of every replica.
        replicas: Number of local replicas.

    Attributes:
        replicas: Number of local replicas.
    """

    def __init__(self, module: nn.Module, replicas: int) -> None:
        self.replicas = replicas
        self._owners = [part for part in module.modules() if part._buffers]  # noqa: SLF001 - swapped
        self._sets: list[list[Buffers]] = [[part._buffers for part in self._owners]]  # noqa: SLF001
        self._active = 0
        self._watched: list[tuple[nn.Module, Buffers, str, torch.Tensor, int]] = [
            (part, buffers, name, value, value._version)  # noqa: SLF001 - counts changes in place
            for part, buffers in zip(self._owners, self._sets[0], strict=True)
            if not isinstance(part, _NormBase)
            for name, value in buffers.items()
            if value is not None
        ]
        for _ in range(replicas - 1):
            self._sets.append([_copied(buffers) for buffers in self._sets[0]])

    def use(self, replica: int) -> None:
        """Gives the module the buffers of a replica.

        Args:
            replica: Local index of the replica.
        """
        if replica != self._active:
            for part, buffers in zip(self._owners, self._sets[replica], strict=True):
                part._buffers = buffers  # noqa: SLF001
            self._active = replica

    def require_unchanged(self, *, broadcast: bool) -> None:
        """Checks, once after the first call, that replicas can share the model's own buffers.

        Args:
            broadcast: Whether the options say that all replicas have the same buffers. Running
                statistics of normalisation layers are exempt.

        Raises:
            Error: The model changed another buffer, and there are several replicas.
        """
        watched, self._watched = self._watched, []
        for part, buffers, name, value, version in watched:
            if not broadcast or self.replicas == 1:
                break
            now = buffers.get(name)
            if now is not value or value._version != version:  # noqa: SLF001 - see above
                raise Error(
                    "PD305",
                    "PopTorch does not support broadcasting buffers that the model changes: the "
                    "replicas' copies would differ",
                    value=f"buffer {name!r} of {type(part).__name__}",
                    hint="options.broadcastBuffers(False) lets every replica keep its own",
                )

    def state(self, replica: int) -> list[Buffers]:
        """Copies of one replica's buffers.

        Args:
            replica: Local index of the replica.

        Returns:
            Tensors by name, for every part of the module that has buffers.
        """
        return [_copied(buffers) for buffers in self._sets[replica]]

    def load(self, replica: int, state: Sequence[Buffers]) -> None:
        """Gives one replica the buffers that `state` returned.

        Args:
            replica: Local index of the replica.
            state: They.
        """
        for buffers, loaded in zip(self._sets[replica], state, strict=True):
            for name, value in loaded.items():
                present = buffers.get(name)
                target = value if present is None else present
                buffers[name] = None if value is None else value.clone().to(target.device)

    def tensors(self) -> Iterator[torch.Tensor]:
        """All buffers of all replicas.

        Yields:
            Each tensor once per replica.
        """
        for buffers in (buffers for one_set in self._sets for buffers in one_set):
            yield from (value for value in buffers.values() if value is not None)


def _copied(buffers: Buffers) -> Buffers:
    return {name: None if value is None else value.clone() for name, value in buffers.items()}
