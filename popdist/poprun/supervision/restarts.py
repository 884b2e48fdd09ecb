"""Whether a failed job is worth another start."""

from __future__ import annotations

from popdist.poprun.supervision.blame import root_cause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from popdist.poprun.supervision.outcome import Outcome

PAUSE_SECONDS = 1.0
"""Between the end of a job and its next start, so that a hopeless one does not spin."""

MISTAKES = {2: "a mistake on its command line", 126: "not executable", 127: "not found"}
"""Exit codes by which programs and shells say that the user has to change something; 2 is what
``argparse`` and most tools use."""


def may_restart(outcome: Outcome) -> bool:
    """Whether the same job could end better next time.

    Args:
        outcome: How it ended.

    Returns:
        False where it ended well, was interrupted or timed out, was not started by mpirun at all,
        or made a mistake that it would make again.
    """
    if outcome.exit_code == 0 or outcome.interrupted:
        return False
    if outcome.ending is not None:
        return outcome.ending.kind != "timeout"
    cause = root_cause(outcome)
    if cause is None:
        return bool(outcome.instances)
    return bool(cause.signal) or cause.code not in MISTAKES
