"""A warning where a torch loader gives all instances the same rows.

``torch.utils.data.DataLoader`` does not divide data over instances. If a program
does not divide its data, every update counts the same samples once for each instance, without an
error. Rows that are equal for a good reason cause no warning: no torch loader is being read then,
or its samples are equal.
"""

from __future__ import annotations

import gc
import logging
import pickle
import random
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from popdist.agreement import digest
from popdist.checks import is_enabled
from popdist.exchange import gather
from popdist_torch.checks import ROWS
from popdist_torch.data.sampler import PartitionSampler, selection
from popdist_torch.errors import DataError
from popdist_torch.rounds import ROUNDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sized

logger = logging.getLogger("popdist.torch")

_NOTHING = digest(b"nothing")
_OF_STREAMS = (
    "divide the stream in its __iter__, such as by "
    "itertools.islice(samples, hvd.rank(), None, hvd.size())"
)
_UPDATES = 2


class EqualRows:
    """Compares what instances train on in their first updates; all must make the same calls.

    Args:
        horovod: The module ``horovod.torch``, initialised.
        remedy: What gives each instance rows of its own.

    Attributes:
        are_compared: Whether `look` is still to be called.
    """

    def __init__(self, horovod: Any, remedy: str) -> None:
        self._horovod = horovod
        self._remedy = remedy
        self._seen: list[str] = []
        self.are_compared = True

    def look(self, rows: Iterable[Any]) -> None:
        """Takes the rows of an update; those of the first two are compared, then no more.

        Rows that are the same in both updates come from no loader: they are a benchmark's.
        """
        mine = digest_of(rows)
        self._seen.append(mine)
        is_equal = self._equal(mine)
        self.are_compared = is_equal and len(self._seen) < _UPDATES
        if is_equal and len(set(self._seen)) == _UPDATES:
            self._warn(_readers())

    def look_at_gradients(self, gradients: str) -> None:
        """Takes a digest of the gradients of the first backward pass, before they are exchanged.

        They are equal where rows and random streams are. Samples of a stream are not known, so a
        stream of equal samples is named as well.
        """
        if self._equal(gradients):
            self._warn([reader for reader in _readers() if _differ(reader._dataset)])  # noqa: SLF001 - no public name

    def _equal(self, mine: str) -> bool:
        ROUNDS.settle()
        return set(gather(self._horovod)(mine.encode())) == {mine.encode()} and mine != _NOTHING

    def _warn(self, readers: list[Any]) -> None:
        if not readers or self._horovod.rank() != 0 or not is_enabled(ROWS):
            return
        count = self._horovod.size()
        warning = DataError(
            "PD326",
            f"all {count} instances train on the same rows, so every update counts each sample "
            f"{count} times",
            value="; ".join(map(_named, readers)),
            hint=_OF_STREAMS if any(map(_is_stream, readers)) else self._remedy,
        )
        logger.warning("%s", warning)


def divided_selections() -> dict[str, str]:
    """The samples of each set that torch loaders are reading and a sampler divides.

    A set that each instance has drawn for itself, as by ``random_split`` without a seed, would be
    divided into parts that overlap.
    """
    stated = {}
    for reader in _of_torch():
        data, index = reader._dataset, reader._index_sampler  # noqa: SLF001 - no public names
        divides = hasattr(getattr(index, "sampler", index), "num_replicas")
        if divides and reader._num_yielded and (chosen := selection(data)):  # noqa: SLF001 - as above
            stated[f"data set of {len(data)} samples"] = f"selection {chosen}"
    return stated


def digest_of(values: Iterable[Any]) -> str:
    """A digest of tensors; a constant where there is none, or all are zero."""
    parts = [
        digest(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        for value in values
        if isinstance(value, torch.Tensor) and value.layout == torch.strided and bool(value.any())
    ]
    return digest("".join(parts).encode()) if parts else _NOTHING


def _readers() -> list[Any]:
    """Torch loaders that are being read now, and that do not divide their data set."""
    found = []
    for reader in _of_torch():
        data, index = reader._dataset, reader._index_sampler  # noqa: SLF001 - no public names
        sampler: Any = getattr(index, "sampler", index)
        divides = hasattr(sampler, "num_replicas") or (
            isinstance(sampler, PartitionSampler) and len(sampler) < len(cast("Sized", data))
        )
        if reader._num_yielded and not divides:  # noqa: SLF001 - as above
            found.append(reader)
    return found


def _of_torch() -> list[Any]:
    # Not isinstance: that asks weak proxies for the class of an object that may be gone.
    return [o for o in gc.get_objects() if issubclass(type(o), _BaseDataLoaderIter)]


def _is_stream(reader: Any) -> bool:
    return isinstance(reader._dataset, IterableDataset)  # noqa: SLF001 - no public name


def _named(reader: Any) -> str:
    data, sampler = reader._dataset, reader._index_sampler  # noqa: SLF001 - no public name
    if _is_stream(reader):
        return f"DataLoader({type(data).__name__}, a stream)"
    size = f" of {len(data)} samples" if hasattr(data, "__len__") else ""
    order = type(getattr(sampler, "sampler", sampler)).__name__
    rows = getattr(sampler, "batch_size", None)
    return f"DataLoader({type(data).__name__}{size}, batch_size={rows}, sampler={order})"


def _differ(data: Any) -> bool:
    """Whether the first two samples of a data set differ; yes for a stream."""
    if isinstance(data, IterableDataset):
        return True
    numbers, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002 - what programs use
    try:
        # Samples may be drawn at random; the program's streams are to stay where they are.
        with torch.random.fork_rng(devices=[]):
            return _plain(data[0]) != _plain(data[1])
    except Exception:  # noqa: BLE001 - a program's own code; without its samples nothing is known
        return False
    finally:
        random.setstate(numbers)
        np.random.set_state(arrays)  # noqa: NPY002 - as above


def _plain(sample: Any) -> bytes:
    """A sample's content, without the memory that its tensors are parts of."""
    leaves = pytree.tree_leaves(sample)
    return pickle.dumps([v.numpy(force=True) if isinstance(v, torch.Tensor) else v for v in leaves])
