"""Which job goes on with the hosts that are left; sums and shares are checked by hand."""

import pytest

from popdist.errors import UsageError
from popdist.poprun.options.parser import parse
from popdist.poprun.plan.fewer_hosts import check_min_instances, without_hosts
from popdist.poprun.plan.job import make_job
from popdist.poprun.plan.placement import place

ENVIRON = {"PATH": "/usr/bin:/bin"}


def job_of(words):
    return make_job(parse([*words.split(), "true"]), ENVIRON)


@pytest.mark.parametrize(
    ("words", "lost", "shares"),
    [
        ("-H a,b -np 4 --num-replicas 8", "b", [("a", 0, 4), ("a", 4, 4)]),
        ("-H a,b -np 4 --num-replicas 8", "a", [("b", 0, 4), ("b", 4, 4)]),
        ("-H a:1,b:2,c:1 -np 4 --num-replicas 7", "a", [("b", 0, 3), ("b", 3, 2), ("c", 5, 2)]),
        ("-H a,b -np 2 --only-output-from-instance 1", "a", [("b", 0, 2)]),
    ],
)
def test_all_replicas_are_dealt_out_to_the_instances_that_are_left(words, lost, shares):
    job = job_of(f"{words} --max-restarts 1 --min-instances 1")
    here = without_hosts(job, place(job), set(lost))
    placed = place(here)
    assert [
        (one.host.name, one.fields["replica_index_offset"], one.num_local_replicas)
        for one in placed
    ] == shares
    assert here.num_replicas == job.num_replicas
    assert {one.fields["num_instances"] for one in placed} == {len(shares)}
    assert here.only_output_from in (None, 0)


def test_too_few_are_no_job_and_all_are_the_same_job():
    job = job_of("-H a,b -np 4 --max-restarts 1 --min-instances 3")
    assert without_hosts(job, place(job), {"b"}) is None
    assert without_hosts(job, place(job), set()) is job
    assert without_hosts(job, place(job), {"a", "b"}) is None


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("-np 2 --max-restarts 1 --min-instances 3", "--min-instances 2"),
        ("-np 2 --min-instances 1", "--max-restarts 3"),
        ("-np 2 --max-restarts 1 --min-instances 1 --num-ilds 2", "leave --num-ilds out"),
    ],
)
def test_what_makes_no_sense_is_refused(words, hint):
    with pytest.raises(UsageError, match="PD101") as raised:
        check_min_instances(job_of(words))
    assert hint in str(raised.value)
    check_min_instances(job_of("-np 2 --max-restarts 1 --min-instances 2"))
    check_min_instances(job_of("-np 2"))
