"""Progress bars: one per job, where somebody watches."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tqdm import tqdm

from popdist.popdist_core import topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Shows how many stages of something are done.

    It is shown on a terminal only, and only by a job's first instance.

    Args:
        title: What is done.

    Yields:
        A function to call with how many of how many are done.
    """
    first = not topology().instance_index
    with tqdm(
        desc=title, unit="stage", disable=None if first else True, file=sys.stderr, leave=False
    ) as shown:

        def advance(done: int, total: int) -> None:
            shown.total = total
            shown.n = done
            shown.refresh()

        yield advance
