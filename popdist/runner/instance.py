"""The program of an instance of `popdist.run`: fetches the call, runs it, and sends the answer."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress

from popdist.popdist_core import topology
from popdist.runner.messages import CONTACT, fetch, give
from popdist.runner.pickles import dump, facts, load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from popdist.runner.pickles import Parts


def main(index: int | None = None) -> None:
    """Runs the caller's function and sends the answer or the exception.

    ``index`` is the instance's index; None for the launcher's value.
    """
    contact = os.environ.pop(CONTACT)
    if index is None:
        # Not `getInstanceIndex`, which needs as many replicas in every instance.
        index = topology().instance_index or 0
    about, *call = fetch(contact, index)
    packed = load([about])
    # The caller's module path comes before this process's.
    sys.path[:0], sys.argv = packed["path"], packed["argv"]
    try:
        function, args, kwargs = load(call)
        value = function(*args, **kwargs)
    except SystemExit as end:
        if end.code:
            raise
        value = None
    except Exception as error:  # noqa: BLE001 - it is raised again where it can be caught
        _fail(contact, index, error)
    try:
        answer = [facts({}), *dump(value)]
    except Exception as error:  # noqa: BLE001 - as above
        _fail(contact, index, error, unsent=type(value).__name__)
    give(contact, index, answer)


def _fail(contact: str, index: int, error: Exception, unsent: str = "") -> NoReturn:
    """Sends the exception to the caller, and exits as Python does."""
    # Without the frame of this file, which says nothing to a user; nothing else is left of an
    # answer that cannot be sent.
    if unsent:
        error.__cause__ = None
    trace = error.__traceback__.tb_next if error.__traceback__ and not unsent else None
    error = error.with_traceback(trace)
    about = {
        "raised": f"{type(error).__name__}: {error}",
        "traceback": "".join(traceback.format_exception(error)),
        "unsent": unsent,
    }
    pickled: Parts = []
    with suppress(Exception):  # else its text is enough
        pickled = dump(error)
    with suppress(OSError):  # the caller may have gone, which ends the job
        give(contact, index, [facts(about), *pickled])
    sys.excepthook(type(error), error, trace)
    sys.exit(1)
