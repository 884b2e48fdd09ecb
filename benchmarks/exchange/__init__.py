"""Summing buffers over two ranks: popdist's exchange beside its peers.

`cases` says what is measured; `job` measures it on the ranks, with the `contenders`; `comparison`
starts the jobs and makes the rows.
"""

from __future__ import annotations

from benchmarks.exchange.comparison import HOROVOD_AIM, SLICED_AIM, measure

__all__ = ["HOROVOD_AIM", "SLICED_AIM", "measure"]
