"""Samplers of the samples that a process reads, and positions from which a resumed job reads on."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, Sampler, Subset

from popdist.agreement import digest
from popdist_torch.arguments import served
from popdist_torch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from popdist_torch.data.partition import Part


def selection(dataset: Any) -> str:
    """A digest of the samples that ``Subset`` has chosen, as of ``random_split``; "" for none."""
    chosen = []
    while isinstance(dataset, Subset):
        chosen.append(np.asarray(dataset.indices, dtype=np.int64).tobytes())
        dataset = dataset.dataset
    return digest(b"".join(chosen)) if chosen else ""


class EpochSampler(Sampler[Any]):
    """A sampler that can start at any place of any epoch."""

    def __init__(self) -> None:
        self._epoch = 0
        self._skip = 0
        self._drawn: Iterator[Any] | None = None

    def start(self, epoch: int, skip: int) -> None:
        """Sets the epoch of the next iteration, and how many items at its start are skipped."""
        self._epoch, self._skip, self._drawn = epoch, skip, None

    def draw(self) -> None:
        """Draws the epoch's order now instead of in the iteration."""
        if self._drawn is None:
            items = islice(iter(self._items()), self._skip, None)
            self._drawn = chain(list(islice(items, 1)), items)
            self._skip = 0

    def __iter__(self) -> Iterator[Any]:
        self.draw()
        drawn, self._drawn = self._drawn, None
        return drawn or iter(())

    def _items(self) -> Iterable[Any]:
        raise NotImplementedError


class PartitionSampler(EpochSampler):
    """Reads one process's share, shuffled alike in all processes.

    The permutation is one of the whole set, made from seed and epoch alone, so processes agree on
    it without talking, whatever else they draw, and a resumed job finds it again. It lives in the
    main process: data workers get indices only, which suits persistent ones too.

    Args:
        length: Samples of the whole set.
        part: What this process reads of it.
        seed: Seed of the permutations; None reads in order.
    """

    def __init__(self, length: int, part: Part, *, seed: int | None) -> None:
        super().__init__()
        self._length = length
        self._part = part
        self._seed = seed

    def __len__(self) -> int:
        return len(self._part)

    def indices(self) -> Sequence[int]:
        """The samples of the epoch that was started last, skipped ones included."""
        positions = self._part.positions(self._epoch)
        if self._seed is None:
            return positions
        order = torch.randperm(self._length, generator=_generator(self._seed, self._epoch))
        indices: list[int] = order[torch.tensor(positions)].tolist()
        return indices

    def _items(self) -> Iterable[int]:
        return self.indices()

    @property
    def epoch(self) -> int:
        """The epoch that was started last."""
        return self._epoch


class InstancePart(Dataset[Any]):
    """What one process reads of a data set: what ``loader.dataset`` is.

    Attributes that it does not have are those of the whole set.

    Args:
        whole: The data set.
        sampler: What of it is read.
    """

    def __init__(self, whole: Any, sampler: PartitionSampler) -> None:
        self._whole = whole
        self._sampler = sampler
        self._drawn: tuple[int, Sequence[int]] | None = None

    def __len__(self) -> int:
        return len(self._sampler)

    def __getitem__(self, index: int) -> Any:
        epoch = self._sampler.epoch
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = (epoch, self._sampler.indices())
        return self._whole[self._drawn[1][index]]

    def __getattr__(self, name: str) -> Any:
        if name == "_whole":  # not there yet while a copy is being made
            raise AttributeError(name)
        return getattr(self._whole, name)


class DrawnSampler(EpochSampler):
    """Reads a whole set in the order that torch's own loader would draw.

    Args:
        length: Samples of the set.
        generator: Where orders are drawn; by default each has a seed from torch's global one.
    """

    def __init__(self, length: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self._length = length
        self._generator = generator

    def __len__(self) -> int:
        return self._length

    def _items(self) -> Iterable[int]:
        generator = self._generator
        if generator is None:
            seed = int(torch.empty((), dtype=torch.int64).random_().item())
            generator = torch.Generator().manual_seed(seed)
        order: list[int] = torch.randperm(self._length, generator=generator).tolist()
        return order


class GivenSampler(EpochSampler):
    """A program's own sampler; a resumed job draws again what it has read already.

    Args:
        sampler: The sampler. Its attributes and methods are reachable here.
    """

    def __init__(self, sampler: Sequence[int] | Sampler[int]) -> None:
        super().__init__()
        self.given = sampler

    def __len__(self) -> int:
        return len(self.given)  # type: ignore[arg-type]

    def _items(self) -> Iterable[int]:
        return self.given

    def __getattr__(self, name: str) -> Any:
        if name == "given":  # not there yet while a copy is being made
            raise AttributeError(name)
        return getattr(self.given, name)


class GroupedBatchSampler(EpochSampler):
    """Joins the micro-batches of a program's own sampler to the combined batches of a call.

    Args:
        batches: The program's sampler of micro-batches.
        group: Micro-batches per combined batch.
        drop_last: Whether an incomplete last group is left out.
        apart: Whether the micro-batches of a group stay lists of their own.
    """

    def __init__(
        self, batches: Iterable[list[int]], group: int, *, drop_last: bool, apart: bool = False
    ) -> None:
        super().__init__()
        self._batches = batches
        self._group = group
        self._drop_last = drop_last
        self._apart = apart

    def __len__(self) -> int:
        whole, rest = divmod(len(self._batches), self._group)  # type: ignore[arg-type]
        return whole + (rest > 0 and not self._drop_last)

    def _items(self) -> Iterator[list[Any]]:
        batches = iter(self._batches)
        while group := list(islice(batches, self._group)):
            if len(group) == self._group or not self._drop_last:
                yield group if self._apart else list(chain.from_iterable(group))


class MicroBatches:
    """A data set whose items are the samples of a micro-batch, in a list.

    Args:
        dataset: The data set of the samples.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitem__(self, indices: Iterable[int]) -> list[Any]:
        return [self._dataset[index] for index in indices]


class CollatedApart:
    """Collates the micro-batches of a combined batch one by one, and joins their tensors.

    Args:
        collate: The program's function, which may pad the samples of a micro-batch.
    """

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, parts: list[list[Any]]) -> Any:
        """The combined batch of lists of samples; what is not a tensor is of the first list."""
        flat = [pytree.tree_flatten(served(self._collate(samples))) for samples in parts]
        columns = zip(*(leaves for leaves, _ in flat), strict=True)
        joined = [
            torch.cat(column) if isinstance(column[0], torch.Tensor) else column[0]
            for column in columns
        ]
        return pytree.tree_unflatten(joined, flat[0][1])


def _generator(seed: int, epoch: int) -> torch.Generator:
    # Scattered, so that epoch 1 of one seed is not epoch 0 of the next.
    mixed = np.random.SeedSequence([seed & (2**64 - 1), epoch]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(mixed[0] >> np.uint64(1)))


# Positions in the data, so that a resumed job reads on instead of starting over.


@dataclass
class Position:
    """A place in the data.

    Attributes:
        epoch: Index of the epoch, counted over the loader's whole life.
        batch: Batches of this epoch that the program has been given.
        random: State of the loader's generator when the epoch began; None where it has not.
    """

    epoch: int = 0
    batch: int = 0
    random: torch.Tensor | None = None

    def next_epoch(self) -> Position:
        """The start of the following epoch."""
        return Position(self.epoch + 1)

    def state_dict(self, **about: Any) -> dict[str, Any]:
        """The position as plain values, for ``torch.save`` or JSON, with what the loader adds."""
        random = None if self.random is None else self.random.tolist()
        return {"epoch": self.epoch, "batch": self.batch, "random": random, **about}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], data: str) -> Position:
        """Reads what `state_dict` wrote.

        Raises:
            DataError: It is a position in other data, or none at all.
        """
        wrong = {"data", "place", "layout", "epoch", "batch", "random"} ^ set(state)
        if wrong:
            raise DataError(
                "PD396",
                "this is not a position of a loader",
                value=sorted(state),
                accepted="what state_dict() of a loader returned",
            )
        if state["data"] != data:
            raise DataError(
                "PD396",
                "the position belongs to another loader",
                value=state["data"],
                accepted=data,
                hint="resume with the data set, batch size and options that the position was saved "
                "with",
            )
        random = state["random"]
        return cls(
            int(state["epoch"]),
            int(state["batch"]),
            None if random is None else torch.tensor(random, dtype=torch.uint8),
        )
