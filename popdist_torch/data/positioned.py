"""A torch loader that knows where it stands, and can be sent there again."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data

from popdist_torch.data.position import Position
from popdist_torch.data.processes import start_method

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from popdist_torch.data.reading import Reading


class PositionedLoader(torch.utils.data.DataLoader[Any]):
    """Reads batches, and counts those that the program has been given.

    Args:
        dataset: The data.
        reading: What of it is read, and in which order.
        **kwargs: As for ``torch.utils.data.DataLoader``, without samplers and batch size.
    """

    def __init__(self, dataset: Any, reading: Reading, **kwargs: Any) -> None:
        self._reading = reading
        self._position = Position()
        # Whether the next iteration starts at `_position`, and not in the epoch after it.
        self._waiting = True
        self._default_start = kwargs.get("multiprocessing_context") is None
        super().__init__(dataset, **reading.loader_arguments(), **kwargs)

    def state_dict(self) -> dict[str, Any]:
        """Where in the data the program stands: behind the last batch that it was given.

        Returns:
            Plain values. Read ahead by data workers does not count.
        """
        position = self._position
        if self._waiting and position.random is None and self.generator is not None:
            position = Position(position.epoch, position.batch, self.generator.get_state())
        return position.state_dict(self._reading.data)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration go on where another run's loader stood.

        What was read already is skipped by index; only an ``IterableDataset`` is read again up to
        there. Torch's global generator is left as it is. Random transformations in data workers are
        not replayed: draw them from the sample's index where a resumed run must repeat them.

        Args:
            state: What `state_dict` returned; the loader must read the same data in the same way.

        Raises:
            DataError: It is a position of another loader.
        """
        self._position = Position.from_state_dict(state, self._reading.data)
        self._waiting = True

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if not self._waiting:
            self._position = self._position.next_epoch()
        self._waiting = False
        if self.num_workers and self._default_start and self._iterator is None:
            self.multiprocessing_context = start_method()
        position, sampler = self._position, self._reading.sampler
        with self._as_when_the_epoch_began(position):
            skip = position.batch
            if sampler is not None:
                sampler.start(position.epoch, skip * self._reading.items_per_batch)
                skip = 0
            batches = super().__iter__()
            if sampler is not None:
                sampler.draw()
            for _ in islice(batches, skip):
                pass
        return self._counted(batches, position)

    def _counted(self, batches: Iterator[Any], position: Position) -> Iterator[Any]:
        for batch in batches:
            position.batch += 1
            yield batch
        if self._position is position:  # no other iteration has begun meanwhile
            self._position = position.next_epoch()
            self._waiting = True

    @contextmanager
    def _as_when_the_epoch_began(self, position: Position) -> Iterator[None]:
        """Repeats what an epoch draws as it begins, past the generator that a resumed run has."""
        now = self._random_state()
        if position.random is None:
            position.random = now
            yield
            return
        self._set_random_state(position.random)
        yield
        if self.generator is None:
            self._set_random_state(now)

    def _random_state(self) -> torch.Tensor:
        return torch.get_rng_state() if self.generator is None else self.generator.get_state()

    def _set_random_state(self, state: torch.Tensor) -> None:
        if self.generator is None:
            torch.set_rng_state(state)
        else:
            self.generator.set_state(state)
