"""The launcher's judgement of a running job, with a clock of the test's own."""

import pytest

from popdist.poprun.machines.hosts import Host
from popdist.poprun.options.requests import Limits
from popdist.poprun.plan.placement import place
from popdist.poprun.supervisor.outcome import Outcome
from popdist.poprun.supervisor.watchdog import Watchdog
from tests.popdist.poprun.plan.test_placement import job


class Case:
    """A job of instances that have all started."""

    def __init__(self, *, instances=3, hosts=None, deadline=None, **limits):
        self.told = []
        self.outcome = Outcome()
        more = {"hosts": tuple(Host(name) for name in hosts)} if hosts else {}
        for index in range(instances):
            one = self.outcome.record(index)
            one.pid, one.guard = 100 + index, 200 + index
        self.watch = Watchdog(
            Limits(**limits),
            place(job(instances, instances, **more)),
            self.outcome,
            deadline=deadline,
            is_local=hosts is None,
            tell=self.told.append,
        )

    def note(self, index, now, **fields):
        self.watch.note(index, fields, now)

    def end(self, index, code=0):
        one = self.outcome.record(index)
        one.ended, one.code = True, code


def test_nothing_is_wrong_with_a_job_that_runs():
    case = Case()
    assert case.watch.judge(1e6) is None
    assert case.watch.wait(1e6) is None


def test_the_deadline():
    case = Case(deadline=10.0, timeout=10.0)
    assert case.watch.judge(9.0) is None
    assert case.watch.wait(9.0) == 1.0
    ending = case.watch.judge(10.0)
    assert (ending.kind, ending.exit_code, ending.with_stacks) == ("timeout", 124, True)


def test_the_missing_are_those_that_do_not_wait():
    case = Case(stall_timeout=5.0)
    case.note(0, 5.0, what="waits", where="popdist.init")
    case.note(2, 5.1, what="waits", where="popdist.init")
    assert case.watch.judge(5.2) is None  # another word may come
    ending = case.watch.judge(6.0)
    assert (ending.kind, ending.instances) == ("stall", (1,))
    assert ending.lines[0] == "instance 0 on localhost (PID 100) waits in popdist.init"
    assert ending.lines[-1] == "missing: instance 1 on localhost (PID 101)"


def test_who_moves_again_was_only_slow():
    case = Case(stall_timeout=5.0)
    case.note(0, 5.0, what="waits", where="popdist.init")
    case.note(0, 5.1, what="moves")
    assert case.watch.judge(100.0) is None


def test_who_has_ended_is_missing():
    case = Case(stall_timeout=5.0)
    case.end(2)
    for index in (0, 1):
        case.note(index, 5.0, what="waits", where="popdist.synchronize")
    assert "instance 2 on localhost (PID 102), which has ended" in case.watch.judge(6.0).lines[-1]


def test_a_deadlock_without_anybody_missing():
    case = Case(stall_timeout=5.0)
    for index in range(3):
        case.note(index, 5.0, what="waits", where=f"place {index}")
    ending = case.watch.judge(6.0)
    assert ending.instances == ()
    assert "places that do not belong together" in ending.lines[-1]


def test_horovod_knows_who_is_missing():
    case = Case(stall_timeout=5.0)
    case.note(0, 5.0, what="horovod", missing="1,2", where="allreduce.gradient")
    ending = case.watch.judge(6.0)
    assert ending.instances == (1, 2)
    assert ending.lines[0].endswith("which has not submitted allreduce.gradient")


def test_each_instance_misses_its_own_tensor():
    case = Case(stall_timeout=5.0)
    case.note(0, 5.0, what="horovod", missing="0", where="allreduce.b")
    case.note(0, 5.0, what="horovod", missing="1", where="allreduce.a")
    ending = case.watch.judge(6.0)
    assert [line.rpartition(" ")[2] for line in ending.lines] == [
        "allreduce.b", "allreduce.a", "allreduce.a",
    ]  # fmt: skip
    assert ending.lines[2].startswith("instance 2 on localhost (PID 102) waits in allreduce.b, ")


def test_an_early_end_is_remarked_on_once():
    case = Case(stall_timeout=5.0)
    case.end(0)
    assert case.watch.judge(1.0) is None
    assert case.watch.wait(1.0) == 5.0
    for now in (6.0, 7.0, 20.0):
        assert case.watch.judge(now) is None
    assert len(case.told) == 1
    assert "instance 0 ended with exit code 0" in case.told[0]
    assert "instances 1 and 2 still run;" in case.told[0]


def test_a_silent_host_is_lost():
    case = Case(instances=2, hosts=["a", "b"], host_timeout=8.0)
    for now in (1.0, 3.0, 5.0, 7.0):
        case.watch.hear(0, now)
        if now < 2:
            case.watch.hear(1, now)
        assert case.watch.judge(now + 0.1) is None
    ending = case.watch.judge(9.2)
    assert (ending.kind, ending.exit_code, ending.instances) == ("host", 1, (1,))
    assert "host b has not been heard of for 8 s" in ending.text


def test_of_two_silent_hosts_the_one_that_was_silent_first_is_lost():
    case = Case(instances=2, hosts=["a", "b"], host_timeout=8.0)
    for now in (1.0, 3.0):
        case.watch.hear(1, now)
        case.watch.hear(0, now)
        assert case.watch.judge(now) is None
    case.watch.hear(0, 4.0)  # mpirun ends what runs on the others
    for now in (5.0, 7.0, 9.0, 10.9):
        assert case.watch.judge(now) is None
    ending = case.watch.judge(12.5)
    assert "host b has not been heard of for 8 s" in ending.text


def test_a_host_whose_instances_have_ended_may_be_silent():
    case = Case(instances=2, hosts=["a", "b"], host_timeout=8.0)
    case.watch.hear(1, 1.0)
    case.end(1)
    for now in range(1, 40, 2):
        case.watch.hear(0, now)
        assert case.watch.judge(now + 0.1) is None


def test_a_host_that_never_speaks_has_longer():
    case = Case(instances=2, hosts=["a", "b"], host_timeout=8.0)
    lost = []
    for now in range(1, 40, 2):
        case.watch.hear(0, now)
        lost += [now] if case.watch.judge(now) else []
    assert lost[0] == 17  # twice the time after the first word of all


@pytest.mark.parametrize("gap", [60.0, 600.0])
def test_a_launcher_that_slept_blames_nobody(gap):
    case = Case(instances=2, hosts=["a", "b"], host_timeout=8.0)
    for index in (0, 1):
        case.watch.hear(index, 1.0)
    assert case.watch.judge(1.1) is None
    assert case.watch.judge(1.1 + gap) is None  # nobody was listening
    assert case.watch.judge(3.0 + gap) is None


def test_a_job_that_is_over_is_not_judged():
    case = Case(deadline=1.0, timeout=1.0)
    case.outcome.interrupted = 2
    assert case.watch.judge(5.0) is None
    assert case.watch.wait(0.0) is None
