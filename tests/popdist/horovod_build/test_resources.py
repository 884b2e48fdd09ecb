from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from popdist.horovod_build.plan import BYTES_PER_JOB, choose_jobs
from tests.popdist.horovod_build.samples import GB, facts

MACHINE = facts().machine


def machine(cpus, memory):
    return replace(MACHINE, cpus=cpus, available_memory=memory)


@given(st.integers(1, 512), st.integers(0, 4000 * GB))
def test_jobs_fit_processors_and_memory(cpus, memory):
    jobs = choose_jobs(machine(cpus, memory), None)
    assert 1 <= jobs.count <= cpus
    assert jobs.count == 1 or jobs.count * BYTES_PER_JOB <= memory
    # One more would not have fitted, and who gets fewer than processors is told why.
    assert jobs.count == cpus or (jobs.count + 1) * BYTES_PER_JOB > memory
    assert (jobs.note is None) == (jobs.count == cpus and memory >= BYTES_PER_JOB)


@given(st.integers(1, 64), st.integers(0, 200 * GB), st.integers(1, 64))
def test_a_number_asked_for_is_taken_and_warned_of(cpus, memory, asked):
    jobs = choose_jobs(machine(cpus, memory), asked)
    assert jobs.count == asked
    assert (jobs.note is not None) == (asked > max(1, memory // BYTES_PER_JOB))


def test_the_note_names_memory_and_need():
    note = choose_jobs(machine(16, 6 * GB), None).note
    assert "6.0 GB" in note
    assert "2.4 GB" in note
    assert "2 at a time, not 16" in note
