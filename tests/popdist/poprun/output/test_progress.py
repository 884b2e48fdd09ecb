"""What the status line and the result say of progress, from the words of the programs."""

import time

import pytest

from popdist.poprun.output.result_json import _progress as in_result
from popdist.poprun.output.status_line import Status
from popdist.poprun.output.status_line import _progress as in_line
from popdist.poprun.supervisor.outcome import Outcome


def outcome_of(*words):
    outcome = Outcome()
    for index, fields in enumerate(words):
        one = outcome.record(index)
        one.guard = 1
        one.progress.take(dict(part.split("=") for part in fields.split()))
    return outcome


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["", ""], []),
        (["phase=importing", "phase=importing"], ["importing"]),
        (["phase=importing", "phase=connecting"], ["connecting and importing"]),
        (["phase=starting_4_loader_processes"] * 2, ["starting 4 loader processes"]),
        (["phase=running", "phase=running"], []),
        (["phase=training step=3", "phase=training step=3"], ["step 3"]),
        (
            ["phase=training step=3 total=9 loss=1 rate=10", "phase=training step=3 loss=2 rate=5"],
            ["step 3 of 9", "loss 1.5", "15 samples/s"],
        ),
        (
            ["phase=training step=30 loss=nan", "phase=training step=28 rate=x"],
            ["step 28 (instance 1 is the slowest, others are at 30)"],
        ),
    ],
)
def test_the_line_says_how_far_the_slowest_is(words, line):
    assert in_line(outcome_of(*words)) == line


def test_the_result_has_what_is_known():
    progress = outcome_of("phase=training step=30 total=40 loss=0.25 rate=12.5").record(0).progress
    assert in_result(progress) == {
        "phase": "training", "step": 30, "total_steps": 40, "loss": 0.25,
        "samples_per_second": 12.5,
    }  # fmt: skip
    for words in ("loss=nan", "loss=inf step=1e400", "step=many"):
        progress = outcome_of(words).record(0).progress
        assert set(in_result(progress).values()) == {None}


def test_a_step_ends_the_quiet():
    status = Status("always", 1)
    outcome = Outcome()
    outcome.record(0).guard = 1
    began = time.monotonic()
    assert "quiet for 1:40" in status.text(outcome, began + 100.5)
    outcome.record(0).progress.take({"phase": "training", "step": "7"})
    assert "quiet for 0:00" in status.text(outcome, began + 101.5)
    assert "quiet for 0:30" in status.text(outcome, began + 132)
