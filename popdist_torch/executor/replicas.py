"""The separate state of every local replica: a random stream and buffers.

Checkpoints store both as plain values.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.modules.batchnorm import _NormBase

from popdist_torch.errors import CheckpointError, Error
from popdist_torch.executor.host_access import plain_class

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import nn

    from popdist_torch.options.placement import Placement

    Buffers = dict[str, Any]

_MASK = (1 << 64) - 1


def stream_seed(seed: int, replica: int) -> int:
    """The 64-bit seed of one replica's random stream, from its global index.

    Torch's CPU generator uses the low 32 bits of a seed only. Replicas get neighbouring values
    there, so no two of a job share a stream. The program's seed is mixed first (SplitMix64), so
    neighbouring seeds do not give the streams of neighbouring replicas.
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
        self._host: tuple[torch.Tensor, ...] = ()

    @contextmanager
    def of(self, replica: int) -> Iterator[None]:
        """Makes torch draw from a replica's stream inside; the host's stream returns afterwards."""
        self.enter(replica)
        try:
            yield
        finally:
            self.leave(replica)

    def enter(self, replica: int) -> None:
        """Makes torch draw from a replica's stream; only one replica's at any time."""
        self._host = self._current()
        self._make_current(self._states[replica])

    def leave(self, replica: int) -> None:
        """Keeps a replica's stream, and makes torch draw from the host's again."""
        self._states[replica] = self._current()
        self._make_current(self._host)

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
    """The positions of random streams as numbers: the seed, then the bytes of every state."""
    return [seed, *(byte for stream in streams.state for part in stream for byte in part.tolist())]


def restore_words(words: Sequence[int], streams: RandomStreams) -> None:
    """Moves random streams to the positions that `random_words` returned.

    Raises:
        Error: The positions are those of another number of replicas.
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


class _Held(NamedTuple):
    """One buffer in one set: the tensor object that the module refers to, and its values."""

    tensor: torch.Tensor | None
    values: torch.Tensor | None
    kind: type = torch.Tensor

    @classmethod
    def of(cls, tensor: torch.Tensor | None) -> _Held:
        """What a module refers to now."""
        return cls(None, None) if tensor is None else cls(tensor, tensor.data, type(tensor))

    def copied(self, device: torch.device | None = None, *, always: bool = True) -> _Held:
        """The same tensor object with other memory: for another set."""
        if self.tensor is None or self.values is None:
            return self
        moved = self.values if device is None else self.values.to(device)
        fresh = moved.clone() if always and moved is self.values else moved
        return _Held(self.tensor, fresh, plain_class(self.kind))

    def place(self) -> torch.Tensor | None:
        """Gives the tensor object its values in this set; returns the object."""
        if self.tensor is not None and self.values is not None:
            self.tensor.data = self.values
            if type(self.tensor) is not self.kind:
                self.tensor.__class__ = self.kind
        return self.tensor


HOST = -1
"""The set of buffers that the program sees between calls."""


class ReplicaBuffers:
    """One set of buffers per local replica and one for the host; a module uses one set at a time.

    Where a model changes a buffer in place, the module refers to the same tensor object in all
    sets, and the object's memory is exchanged: all other references to the object see the buffer of
    the replica that runs. Where a model assigns a new tensor, the sets hold different objects.

    Args:
        module: The module that runs. It uses the first replica's set at first.
        replicas: Number of local replicas.
        device: Where the replicas' buffers live; where they are by default.
        in_place: Whether the first replica's buffers stay in the memory that the program gave them;
            otherwise the host's do.

    Attributes:
        replicas: Number of local replicas.
    """

    def __init__(
        self,
        module: nn.Module,
        replicas: int,
        device: torch.device | None = None,
        *,
        in_place: bool = True,
    ) -> None:
        self.replicas = replicas
        self._parts: list[nn.Module] = []
        self._sets: dict[int, list[dict[str, _Held]]] = {n: [] for n in range(HOST, replicas)}
        self._active = 0
        self._device = device
        tensors = itertools.chain(module.parameters(), module.buffers())
        self._home = next((tensor.device for tensor in tensors), torch.device("cpu"))
        self._in_place = in_place
        self._watched: list[tuple[nn.Module, int, str, torch.Tensor, int]] = []
        for part in module.modules():
            self.add(part)
        self.watch()

    def add(self, part: nn.Module) -> None:
        """Gives every replica the present buffers of one more module."""
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - past the host's notice
            present = {name: _Held.of(value) for name, value in _buffers(part).items()}
            first = {
                n: held.copied(self._device, always=not self._in_place)
                for n, held in present.items()
            }
            if self._in_place:
                host = {
                    name: held
                    if first[name].values is not held.values
                    else _Held(held.tensor, held.copied().values, held.kind)
                    for name, held in present.items()
                }
            else:
                host = present
            self._parts.append(part)
            self._sets[HOST].append(host)
            for replica in range(self.replicas):
                copies = {name: held.copied() for name, held in first.items()}
                self._sets[replica].append(copies if replica else first)
            self._place(len(self._parts) - 1)

    def knows(self, part: nn.Module) -> bool:
        """Whether the replicas have buffers of a module."""
        return any(known is part for known in self._parts)

    def use(self, index: int) -> None:
        """Gives the module the buffers of a local replica, or of `HOST`."""
        if index == self._active:
            return
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - past the host's notice
            left, taken = self._sets[self._active], self._sets[index]
            before, self._active = self._active, index
            for position, part in enumerate(self._parts):
                buffers = _buffers(part)
                if before == HOST:
                    self._adopt(position)
                if (buffers or taken[position]) and not _empty(buffers, taken[position]):
                    left[position] = {n: _Held.of(value) for n, value in buffers.items()}
                    if index == HOST:
                        # Buffers that forward has registered exist for the program at once.
                        for name in left[position].keys() - taken[position].keys():
                            held = left[position][name]
                            taken[position][name] = _copied(held, None, self._home)
                    self._place(position)

    def watch(self) -> None:
        """Notes how often each buffer was changed until now, for `require_unchanged`."""
        self._watched = [
            (part, position, name, held.tensor, held.tensor._version)  # noqa: SLF001
            for position, part in enumerate(self._parts)
            if not isinstance(part, _NormBase)
            for name, held in self._present(0, position).items()
            if held.tensor is not None
        ]

    def require_unchanged(self, *, broadcast: bool) -> None:
        """Checks, once after the first call, that replicas can share the model's own buffers.

        With ``broadcast``, the options say that all replicas have the same buffers. Running
        statistics of normalisation layers are exempt.

        Raises:
            Error: The model changed another buffer, and there are several replicas.
        """
        watched, self._watched = self._watched, []
        for part, position, name, tensor, version in watched:
            if not broadcast or self.replicas == 1:
                break
            now = self._present(0, position).get(name)
            if now is None or now.tensor is not tensor or tensor._version != version:  # noqa: SLF001 - counts changes in place
                raise Error(
                    "PD305",
                    "PopTorch does not support broadcasting buffers. If your model is able to "
                    "tolerate buffers becoming out of sync between replicas, you can disable "
                    "buffer broadcasting using poptorch.Options.broadcastBuffers(False).",
                    value=f"forward changes the buffer {name!r} of {type(part).__name__}",
                )

    def values(self, index: int) -> dict[nn.Module, dict[str, torch.Tensor | None]]:
        """The buffers of a local replica or `HOST`, by name, for every part of the module."""
        return {
            part: {name: held.values for name, held in self._present(index, position).items()}
            for position, part in enumerate(self._parts)
        }

    def to_be_equal(self) -> Iterator[tuple[nn.Module, str, torch.Tensor]]:
        """The first replica's buffers, except running statistics of normalisation layers."""
        for part, buffers in self.values(0).items():
            if not isinstance(part, _NormBase):
                yield from ((part, name, v) for name, v in buffers.items() if v is not None)

    @torch.no_grad()
    def copy(
        self, source: int, target: int, names: dict[nn.Module, set[str]] | None = None
    ) -> None:
        """Copies buffers (by default all) from a set that is not in use into another such set."""
        where = self._home if target == HOST else self._device
        for position, part in enumerate(self._parts):
            chosen = None if names is None else names.get(part, set())
            if self._active == HOST:
                self._adopt(position)
            given, taken = self._sets[source][position], self._sets[target][position]
            for name, held in given.items():
                if chosen is None or name in chosen:
                    taken[name] = _copied(held, taken.get(name), where)
            if chosen is None:
                for name in taken.keys() - given.keys():
                    del taken[name]
            if target == self._active:
                self._place(position)

    def owned(self) -> Iterator[tuple[nn.Module, dict[str, torch.Tensor | None]]]:
        """The buffers that each module refers to now."""
        yield from ((part, _buffers(part)) for part in self._parts)

    def objects(self) -> Iterator[torch.Tensor]:
        """The tensor objects that the program's module refers to now, once per module."""
        for part in self._parts:
            yield from (value for value in _buffers(part).values() if value is not None)

    def end_graphs(self) -> None:
        """Makes what forward has written into buffers plain values, as on a device.

        A graph that leads to them ends with its backward pass, and later passes would go back
        through it.
        """
        for buffers in map(_buffers, self._parts):
            for name, tensor in buffers.items():
                if tensor is not None and tensor.grad_fn is not None:
                    is_view = tensor._base is not None  # noqa: SLF001 - no public name
                    buffers[name] = tensor.detach() if is_view else tensor.detach_()

    @torch.no_grad()
    def give_back(self) -> None:
        """Puts the host's values, which are in use, into the program's original memory."""
        if not self._in_place:
            return
        for position, part in enumerate(self._parts):
            for name, held in self._sets[0][position].items():
                tensor = _buffers(part).get(name)
                if tensor is not held.tensor or tensor is None or held.values is None:
                    continue
                if (tensor.device, tensor.dtype, tensor.shape) == (
                    held.values.device,
                    held.values.dtype,
                    held.values.shape,
                ):
                    held.values.copy_(tensor)
                    tensor.data = held.values

    def state(self, replica: int) -> list[Buffers]:
        """Copies of one replica's buffers by name, for every part of the module with buffers."""
        return [
            {
                name: None if value is None else value.detach().clone().cpu()
                for name, value in buffers.items()
            }
            for buffers in self.values(replica).values()
            if buffers
        ]

    def load(self, replica: int, state: Sequence[Buffers]) -> None:
        """Gives one replica, which is not in use, the buffers that `state` returned."""
        filled = [buffers for buffers in self._sets[replica] if buffers]
        for buffers, loaded in zip(filled, state, strict=True):
            for name, value in loaded.items():
                held = _Held.of(value)
                buffers[name] = _copied(held, buffers.get(name), self._device)

    def tensors(self) -> Iterator[torch.Tensor]:
        """All buffers of all replicas, each once per replica."""
        for replica in range(self.replicas):
            for buffers in self.values(replica).values():
                yield from (value for value in buffers.values() if value is not None)

    def _adopt(self, position: int) -> None:
        """Gives every replica the buffers that the program has registered since the last call."""
        buffers, host = _buffers(self._parts[position]), self._sets[HOST][position]
        for name in buffers.keys() - host.keys():
            host[name] = _Held.of(buffers[name])
            for replica in range(self.replicas):
                self._sets[replica][position][name] = _copied(host[name], None, self._device)

    def _present(self, index: int, position: int) -> dict[str, _Held]:
        """The buffers of one module in a set, in use or not."""
        if index != self._active:
            return self._sets[index][position]
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - past the host's notice
            return {n: _Held.of(v) for n, v in _buffers(self._parts[position]).items()}

    def _place(self, position: int) -> None:
        """Gives one module the buffers of the set in use."""
        buffers, held = _buffers(self._parts[position]), self._sets[self._active][position]
        if buffers or held:
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - past the host's notice
                placed = {name: one.place() for name, one in held.items()}
            buffers.clear()
            buffers.update(placed)


def _empty(buffers: dict[str, torch.Tensor | None], other: dict[str, _Held]) -> bool:
    """Whether both name the same buffers, and none has values, as in losses without weights."""
    return (
        all(value is None for value in buffers.values())
        and all(held.values is None for held in other.values())
        and buffers.keys() == other.keys()
    )


def _buffers(part: nn.Module) -> dict[str, torch.Tensor | None]:
    return part._buffers  # noqa: SLF001 - exchanged, which torch has no other way for


def _copied(source: _Held, target: _Held | None, device: torch.device | None) -> _Held:
    """Copies one buffer into another set, into its present memory if the shape is equal."""
    if source.values is None:
        return source
    if target is None or target.values is None:
        value = source.values.detach().clone()
        value = value if device is None else value.to(device)
        return _Held(value, value)
    if target.values.shape == source.values.shape:
        target.values.copy_(source.values)
        return target
    return _Held(
        target.tensor, source.values.detach().clone().to(target.values.device), target.kind
    )


# The states of local replicas as plain values for a checkpoint.

Row = dict[str, Any]


def rows(streams: RandomStreams, buffers: ReplicaBuffers, here: Placement) -> list[Row]:
    """The global index, random stream and buffers of each local replica."""
    return [
        {
            "replica": here.first_replica + local,
            "stream": list(streams.state[local]),
            "buffers": buffers.state(local),
        }
        for local in range(here.local_replicas)
    ]


def of_this_process(given: Iterable[Row], here: Placement) -> list[Row]:
    """Selects the states of the local replicas; none if none were given.

    Raises:
        CheckpointError: There are states, but none of some replica here.
    """
    by_index = {row["replica"]: row for row in given}
    wanted = range(here.first_replica, here.first_replica + here.local_replicas)
    if by_index and (len(by_index) != here.total_replicas or not by_index.keys() >= set(wanted)):
        raise CheckpointError(
            "PD307",
            "the checkpoint is of another number of replicas",
            value=f"{len(by_index)} replicas then, {here.total_replicas} now",
            hint="resume with as many replicas as before; read()['shared'] has the weights for a "
            "run that need not be bit-identical",
        )
    return [by_index[index] for index in wanted] if by_index else []


def restore(streams: RandomStreams, buffers: ReplicaBuffers, loaded: list[Row]) -> None:
    """Restores the local replicas from the states of `of_this_process`; none change nothing."""
    if not loaded:
        return
    # States of another kind of device are of no use here; the host's are of the same kind.
    streams.state = [
        tuple(given) if len(given) == len(own) else (given[0], *own[1:])
        for given, own in zip((row["stream"] for row in loaded), streams.state, strict=True)
    ]
    for local, row in enumerate(loaded):
        buffers.load(local, row["buffers"])
