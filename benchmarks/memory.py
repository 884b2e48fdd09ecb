"""Peak memory of ranks, beside their time: each contender in processes of its own."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from benchmarks.rows import Row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MIB = 2**20


def peak_bytes() -> int:
    """The most memory that this process had so far.

    Returns:
        Resident bytes; Linux counts them in KiB.
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def compare_memory(
    name: str,
    peaks: Sequence[int] | str,
    *,
    peer: str,
    against: Sequence[int] | str,
    parameters: Mapping[str, str | int | float] | None = None,
) -> Row:
    """Makes a row from peaks.

    Args:
        name: What was measured.
        peaks: Bytes of each rank, or why there are none.
        peer: Whom it is compared with.
        against: The peer's bytes of each rank, or why there are none.
        parameters: What distinguishes this row within its benchmark.

    Returns:
        The row; a job needs what its largest rank needs.
    """
    gaps = [
        f"{whose}not available: {bytes_}"
        for whose, bytes_ in (("", peaks), (f"{peer} ", against))
        if isinstance(bytes_, str)
    ]
    return Row(
        name=f"peak memory of a rank, {name}",
        unit="MiB",
        value=None if isinstance(peaks, str) else max(peaks) / _MIB,
        samples=0 if isinstance(peaks, str) else len(peaks),
        peer=peer,
        peer_value=None if isinstance(against, str) else max(against) / _MIB,
        note="; ".join(gaps),
        parameters=dict(parameters or {}),
    )
