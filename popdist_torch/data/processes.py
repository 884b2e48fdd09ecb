"""How data processes start beside a live MPI."""

from __future__ import annotations

import multiprocessing
import sys
from typing import Any


def start_method() -> str | None:
    """How torch's data workers start where the program has not said.

    Forking is quick and needs neither picklable data sets nor a ``__main__`` guard, and works while
    MPI talks through shared memory. Over a fabric that registers memory with the network card, the
    copy of a process whose MPI is live can corrupt transfers of the original; there a fresh server
    process does the forking.

    Returns:
        ``"forkserver"`` where host communication is live and spans hosts; else None, for the
        platform's own way.
    """
    if multiprocessing.get_start_method(allow_none=True) not in (None, "fork"):
        return None
    return "forkserver" if _spans_hosts() else None


def communicating() -> bool:
    """Whether host communication is live in this process.

    Returns:
        True once Horovod was initialised, by popdist or by the program.
    """
    return _horovod() is not None


def _spans_hosts() -> bool:
    horovod = _horovod()
    return horovod is not None and int(horovod.local_size()) < int(horovod.size())


def _horovod() -> Any | None:
    # Looked up, not imported: a program that has not imported it has no live Horovod.
    for name in ("horovod.torch", "horovod.tensorflow"):
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "init") and module.is_initialized():
            return module
    return None
