"""Atomic reading and writing of a checkpoint's file, and the host's random streams."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import random
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch

from popdist.whole_files import target
from popdist_torch.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def write(path: Path, content: Any) -> None:
    """Replaces a file with tensors and plain values, nested.

    The new content is complete on the disk before it gets the file's name, so a process that is
    killed at any moment leaves a whole file.

    Raises:
        CheckpointError: It cannot be written; the file is unchanged.
    """
    _replace(path, lambda stream: torch.save(content, stream))


def write_bytes(path: Path, content: bytes) -> None:
    """Replaces a file with some bytes, as `write` does.

    Raises:
        CheckpointError: It cannot be written; the file is unchanged.
    """
    _replace(path, lambda stream: stream.write(content))


def _replace(path: Path, fill: Callable[[IO[bytes]], Any]) -> None:
    path = Path(target(str(path)))
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.unlink(missing_ok=True)  # a killed process has left it
        with unfinished.open("xb") as stream:  # follows no link
            fill(stream)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(path)
        _sync_folder(path.parent)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise CheckpointError(
            "PD307",
            f"the checkpoint {path} cannot be written; an earlier one is as it was",
            value=str(error),
            hint="give a folder that exists, may be written to and has room",
        ) from error


def read(path: Path) -> Any:
    """Reads what `write` wrote; nothing in the file is executed.

    Raises:
        CheckpointError: It is not there, damaged, or holds something else.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise CheckpointError(
            "PD307",
            f"the checkpoint {path} cannot be read",
            value=_reason(error),
            accepted="a file that Checkpoint.save wrote",
        ) from error


def packed(content: Any, name: str) -> bytes:
    """A state as bytes, checked to be readable again; ``name`` is for the message.

    Raises:
        CheckpointError: It holds something that is neither a tensor nor a plain value.
    """
    stream = io.BytesIO()
    try:
        torch.save(content, stream)
        unpacked(stream.getvalue())
    except (pickle.PickleError, AttributeError, TypeError) as error:
        raise CheckpointError(
            "PD307",
            f"the state of {name} cannot be kept in a checkpoint",
            value=_reason(error),
            accepted="tensors, numbers, text, and lists, tuples and dictionaries of them",
        ) from error
    return stream.getvalue()


def unpacked(content: bytes) -> Any:
    """Reads what `packed` made."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _reason(error: Exception) -> str:
    """The line of torch's advice that says what was wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Unsupported" in line]
    return [*named, *lines, type(error).__name__][0]


def _sync_folder(folder: Path) -> None:
    # The new name is on the disk only once the folder is.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# The host's random streams, for augmentations, masks and orders.


def state() -> dict[str, Any]:
    """The positions of torch's, Python's and (if imported) numpy's streams, as plain values."""
    version, numbers, gauss = random.getstate()
    kept: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, list(numbers), gauss],
    }
    if torch.cuda.is_available():
        kept["cuda"] = torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        kept["numpy"] = [name, keys.tolist(), *rest]
    return kept


def restore(kept: dict[str, Any]) -> None:
    """Sets the streams of this process to the positions that `state` returned."""
    torch.set_rng_state(kept["torch"])
    version, numbers, gauss = kept["python"]
    random.setstate((version, tuple(numbers), gauss))
    if "cuda" in kept and torch.cuda.device_count() == len(kept["cuda"]):
        torch.cuda.set_rng_state_all(kept["cuda"])
    if "numpy" in kept:
        import numpy as np

        name, keys, *rest = kept["numpy"]
        np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002 - theirs


def moved(states: Sequence[dict[str, Any]], owner: int, offset: int) -> dict[str, Any]:
    """The streams of an instance in another layout than that of the instances that saved them.

    Streams that were equal on all instances stay so, as programs draw common decisions from them.
    Others belong to one instance: it is the new one that has the ``owner``'s first replica. Further
    ones, whose first replica is that of the owner plus ``offset``, begin streams of their own.
    """
    chosen = states[owner]
    kept = {}
    for name, state in chosen.items():
        own = offset > 0 and any(not equal(other.get(name), state) for other in states)
        kept[name] = _forked(name, state, offset) if own else state
    return kept


def moved_generator(states: Sequence[torch.Tensor], owner: int, offset: int) -> torch.Tensor:
    """The state of one CPU generator of torch, as `moved` chooses those of the host."""
    generator: torch.Tensor = moved([{"torch": state} for state in states], owner, offset)["torch"]
    return generator


def equal(first: Any, second: Any) -> bool:
    """Whether two states of tensors and plain values are the same."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        return all(map(equal, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(equal(first[k], second[k]) for k in first)
    return bool(first == second)


def _forked(name: str, state: Any, offset: int) -> Any:
    """A stream that begins where another one's state and an offset say."""
    words = pickle.dumps(state.tolist() if isinstance(state, torch.Tensor) else state)
    mixed = hashlib.sha256(words + offset.to_bytes(4, "big")).digest()
    seed = int.from_bytes(mixed[:4], "big")
    if name == "torch":
        return torch.Generator().manual_seed(seed).get_state()
    if name == "python":
        version, numbers, gauss = random.Random(seed).getstate()  # noqa: S311 - no secret
        return [version, list(numbers), gauss]
    if name == "numpy":
        import numpy as np

        name, keys, *rest = np.random.RandomState(seed).get_state()
        return [name, np.asarray(keys).tolist(), *rest]
    return state
