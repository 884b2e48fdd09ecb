"""Which instance's failure is the root cause, and which only followed from it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from popdist.poprun.supervision.outcome import InstanceRecord, Outcome

_FOLLOWING = (
    b"HorovodInternalError",
    b"Horovod has been shut down",
    b"[PD021]",
    b"Connection closed by peer",
    b"Connection reset by peer",
)
"""What programs say when another instance has gone; the words are Horovod's, ours and gloo's."""

_OWN = b"Traceback (most recent call last)"


def follows(one: InstanceRecord) -> bool:
    """Whether an instance failed because another had gone, by its last words.

    Args:
        one: The instance.

    Returns:
        True if it says so.
    """
    return any(words in one.tail for words in _FOLLOWING)


def root_cause(outcome: Outcome) -> InstanceRecord | None:
    """The instance whose failure came first.

    Usually that is the first to end. But a program that fails in Python tells the others before it
    has ended itself, and they may be quicker: where the first to end says that another had gone,
    an instance that failed for reasons of its own is to blame.

    Args:
        outcome: How the job ended.

    Returns:
        The instance; None where none failed.
    """
    first = outcome.first_failure
    if first is None or not follows(first):
        return first
    others = [one for one in outcome.instances.values() if one.failed and not follows(one)]
    own = [one for one in others if _OWN in one.tail] or [one for one in others if not one.signal]
    return own[0] if own else first
