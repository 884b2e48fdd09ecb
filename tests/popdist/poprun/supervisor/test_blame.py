"""Which failure is the root cause."""

from popdist.poprun.options.parser import parse
from popdist.poprun.output.failure_report import headline
from popdist.poprun.plan.job import make_job
from popdist.poprun.plan.placement import place
from popdist.poprun.supervisor.outcome import Outcome, may_restart, root_cause

TRACE = b"Traceback (most recent call last)\n"
FOLLOWED = TRACE + b"horovod.common.exceptions.HorovodInternalError: Horovod has been shut down."


def failed(outcome, index, code=0, number=0, tail=b""):
    one = outcome.record(index)
    one.ended, one.code, one.signal, one.tail = True, code, number, tail
    outcome.first_failure = outcome.first_failure or one
    return one


def test_the_first_one_usually():
    outcome = Outcome()
    failed(outcome, 1, code=3, tail=TRACE)
    failed(outcome, 0, code=1, tail=TRACE)
    assert root_cause(outcome).index == 1
    assert outcome.exit_code == 3


def test_not_one_that_only_followed():
    outcome = Outcome()
    failed(outcome, 0, code=1, tail=FOLLOWED)
    failed(outcome, 2, code=1, tail=FOLLOWED)
    failed(outcome, 1, code=9, tail=TRACE + b"ValueError: the reason")
    assert root_cause(outcome).index == 1
    assert outcome.exit_code == 9


def test_a_killed_one_is_no_reason_if_it_was_killed_for_the_end():
    outcome = Outcome()
    first = failed(outcome, 0, code=1, tail=FOLLOWED)
    failed(outcome, 1, number=15)
    assert root_cause(outcome) is first


def test_one_that_was_ended_while_it_was_exiting_has_raised_its_error():
    outcome = Outcome()
    failed(outcome, 0, code=1, tail=FOLLOWED)
    cause = failed(outcome, 1, number=15, tail=TRACE + b"ValueError: the reason")
    assert root_cause(outcome) is cause
    assert outcome.exit_code == 128 + 15  # somebody else may have sent it
    cause.asked = True
    assert outcome.exit_code == 1
    instances = place(make_job(parse(["-np", "2", "true"]), {}))
    assert "instance 1 on localhost (rank 1, PID 0) failed first" in headline(outcome, instances)


def test_nobody():
    assert root_cause(Outcome()) is None


def test_what_is_worth_another_start():
    for code, worth in ((1, True), (3, True), (0, False), (2, False), (126, False), (127, False)):
        outcome = Outcome()
        if code:
            failed(outcome, 0, code=code)
        assert may_restart(outcome) is worth, code
    killed = Outcome()
    failed(killed, 0, number=9)
    assert may_restart(killed)
    killed.interrupted = 2
    assert not may_restart(killed)
    never_started = Outcome()
    never_started.mpirun_code = 1
    assert not may_restart(never_started)
