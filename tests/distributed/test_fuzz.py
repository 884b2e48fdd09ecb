"""Some of the fuzzed command lines are run for real; `tests.distributed.fuzz` runs all."""

import json

from tests.distributed.fuzz import RECORD, session


def test_no_line_ends_in_a_traceback_or_with_another_exit_code():
    problems = []
    counts, wrong = session(1200, 25, every=10, report=problems.append)
    assert not wrong, "\n".join(problems)
    assert counts["jobs"] == 25
    assert counts["refused"] > 100


def test_the_whole_session_was_recorded():
    recorded = json.loads(RECORD.read_text())
    assert recorded["lines"] >= 20_000
    assert recorded["jobs"] >= 2_000
    assert recorded["wrong"] == []
