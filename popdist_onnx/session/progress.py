"""Progress bars: one per job, where somebody watches."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from popdist.popdist_core import topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def bar(title: str, unit: str = "stage") -> Iterator[Callable[[int, int], None]]:
    """Shows how far something is.

    It is shown on a terminal only, and only by a job's first instance.

    Args:
        title: What is done.
        unit: What is counted.

    Yields:
        A function to call with how many of how many are done.
    """
    try:
        from tqdm import tqdm
    except ImportError:  # it is shown for convenience only
        yield lambda _done, _total: None
        return
    first = not topology().instance_index
    with tqdm(
        desc=title, unit=unit, disable=None if first else True, file=sys.stderr, leave=False
    ) as shown:

        def advance(done: int, total: int) -> None:
            shown.total = total
            shown.n = done
            shown.refresh()

        yield advance
