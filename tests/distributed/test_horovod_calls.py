"""Every kind of call of the real Horovod gives its result under poprun, with poprun's settings."""

import contextlib
import os
import signal
import subprocess
import time

import pytest
import torch

from tests.distributed.jobs import run_job


def joined(hvd):
    """Turns in which one rank joins while the others sum known and new tensors."""
    wrong = []
    for turn in range(20):
        for name, size in (("a", 5), ("b", 17 + turn % 2)):
            hvd.allreduce(torch.ones(size), name=name, op=hvd.Sum)
        handles = []
        if hvd.rank() != turn % hvd.size():
            pairs = [(name, torch.ones(size)) for name, size in (("a", 5), ("b", 17 + turn % 2))]
            handles = [hvd.allreduce_async(t, name=n, op=hvd.Sum) for n, t in pairs]
        wrong += [turn for h in handles if not (hvd.synchronize(h) == hvd.size() - 1).all()]
        hvd.join()
    return wrong


def calls():
    import horovod.torch as hvd

    hvd.init(process_sets="dynamic")
    rank, size = hvd.rank(), hvd.size()
    seen = {}
    mine = torch.arange(12.0).view(6, 2) + 100 * rank
    everyone = torch.stack([torch.arange(12.0).view(6, 2) + 100 * r for r in range(size)])

    def check(name, got, wanted):
        seen[name] = bool(torch.equal(got, wanted))

    # Of 8 MB, more than any slice.
    large = torch.full((2 << 20,), float(rank + 1))
    part = hvd.reducescatter(large, op=hvd.Sum, prescale_factor=0.5)
    check("reducescatter, prescaled", part, torch.full_like(part, size * (size + 1) / 4))
    rows = hvd.reducescatter(mine, op=hvd.Average, postscale_factor=2.0)
    check("reducescatter", rows, (everyone.mean(0) * 2).chunk(size)[rank])
    scaled = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    check("allreduce, scaled", scaled, everyone.sum(0) * 2)
    for op, wanted in (("Min", everyone.min(0)[0]), ("Max", everyone.max(0)[0])):
        check(op, hvd.allreduce(mine, op=getattr(hvd, op)), wanted)
    pair = hvd.grouped_allreduce([mine, mine.double() * 2], op=hvd.Sum)
    check("grouped allreduce", pair[0], everyone.sum(0))
    check("grouped allreduce, other type", pair[1], everyone.sum(0).double() * 2)
    gathered = hvd.grouped_allgather([mine[: rank + 1], mine[:, :1].contiguous()])
    check("grouped allgather", gathered[0], torch.cat([everyone[r, : r + 1] for r in range(size)]))
    scattered = hvd.grouped_reducescatter([mine, mine + 1], op=hvd.Sum, prescale_factor=0.5)
    check("grouped reducescatter", scattered[1], ((everyone + 1) * 0.5).sum(0).chunk(size)[rank])
    sent, counts = hvd.alltoall(mine, splits=torch.full((size,), 6 // size, dtype=torch.int32))
    check("alltoall", sent, torch.cat([one.chunk(size)[rank] for one in everyone]))
    check("alltoall, counts", counts, torch.full((size,), 6 // size, dtype=counts.dtype))
    check("broadcast", hvd.broadcast(mine, size - 1), everyone[-1])
    check(
        "sparse",
        hvd.sparse_allreduce_async(
            torch.eye(3).to_sparse() * (rank + 1), name="sparse", op=hvd.Sum
        )().to_dense(),
        torch.eye(3) * size * (size + 1) / 2,
    )

    members = [0, size - 1] if size > 2 else [1]  # Horovod refuses a second set of all ranks
    ends = hvd.add_process_set(members)
    if ends.included():
        total = hvd.allreduce(mine, op=hvd.Sum, process_set=ends, name="ends")
        check("process set", total, everyone[members].sum(0))
    hvd.remove_process_set(ends)
    seen["join"] = joined(hvd) == []

    # Many at once, in another order on each rank.
    order = [(index + 7 * rank) % 50 for index in range(50)]
    handles = {i: hvd.allreduce_async(mine + i, op=hvd.Sum, name=f"many {i}") for i in order}
    answers = [hvd.synchronize(handles[index]) for index in range(50)]
    check("many", torch.stack(answers), torch.stack([(everyone + i).sum(0) for i in range(50)]))

    # Orthogonal vectors are added by Adasum, equal ones are not.
    if size == 2:
        adasum = hvd.allreduce(torch.eye(2)[rank].clone(), op=hvd.Adasum, name="orthogonal")
        check("adasum", adasum, torch.ones(2))
        # Named: Horovod numbers other calls, and one rank made a call more, in its process set.
        equal = hvd.allreduce(torch.ones(4), op=hvd.Adasum, name="equal")
        check("adasum, equal", equal, torch.ones(4))

    # Rank 0 has one batch less than the others.
    totals = [
        hvd.allreduce(torch.ones(3), op=hvd.Sum, name=f"batch {batch}")
        for batch in range(2 if rank == 0 else 3)
    ]
    last = hvd.join()
    check("join", totals[-1], torch.full((3,), float(size if rank == 0 else size - 1)))
    seen["join, last"] = last != 0
    return seen


THRESHOLD = 64 << 10
"""Bytes up to which Horovod joins small tensors; the inputs of some calls are scaled there too."""


def single_calls(hvd, everyone):
    """Results of calls of one tensor, and what they should be; ``everyone`` has a row a rank."""
    rank, size, mine = hvd.rank(), hvd.size(), everyone[hvd.rank()]
    total, part = everyone.sum(0), everyone.sum(0).tensor_split(size)[rank]
    for before, after in ((1.0, 1.0), (0.5, 1.0), (1.0, 4.0), (0.5, 4.0)):
        scale = {"op": hvd.Sum, "prescale_factor": before, "postscale_factor": after}
        factor = before * after
        yield f"allreduce x {factor}", hvd.allreduce(mine, **scale), total * factor
        yield f"in place x {factor}", hvd.allreduce_(mine.clone(), **scale), total * factor
        yield f"reducescatter x {factor}", hvd.reducescatter(mine, **scale), part * factor
    yield "allgather", hvd.allgather(mine), everyone.flatten()
    yield "broadcast", hvd.broadcast(mine, size - 1), everyone[-1]
    shares = torch.tensor([len(share) for share in mine.tensor_split(size)])
    sent, _ = hvd.alltoall(mine, splits=shares.int())
    yield "alltoall", sent, torch.cat([one.tensor_split(size)[rank] for one in everyone])


def joint_calls(hvd, of):
    """The same of calls of several tensors; ``of`` has a tensor like ``everyone`` for each size."""
    rank, size, scale = hvd.rank(), hvd.size(), {"op": hvd.Sum, "prescale_factor": 0.5}
    mine = [everyone[rank] for everyone in of.values()]
    totals = [everyone.sum(0) / 2 for everyone in of.values()]
    parts = [total.tensor_split(size)[rank] for total in totals]
    together = [everyone.flatten() for everyone in of.values()]
    for call, got, wanted in (
        ("allreduce", hvd.grouped_allreduce(mine, **scale), totals),
        ("reducescatter", hvd.grouped_reducescatter(mine, **scale), parts),
        ("allgather", hvd.grouped_allgather(mine), together),
    ):
        for pair in zip(got, wanted, strict=True):
            yield f"grouped {call}", *pair
    # All at once, so that small ones are joined while large ones are scaled.
    handles = [
        (hvd.reducescatter_async(one, name=f"{one.dtype} {turn} {index}", **scale), parts[index])
        for turn in range(3)
        for index, one in enumerate(mine)
    ]
    for handle, wanted in handles:
        yield "many", hvd.synchronize(handle), wanted


def sizes():
    """Calls with tensors smaller than, of, and larger than the threshold, scaled and not."""
    import horovod.torch as hvd

    hvd.init(process_sets="dynamic")
    wrong = []
    for dtype in (torch.float32, torch.float64, torch.float16):
        full = THRESHOLD // dtype.itemsize
        of = {
            count: torch.stack([(torch.arange(count) % 7 + r).to(dtype) for r in range(hvd.size())])
            for count in (6, full // 2, full - 1, full, full + 1, 3 * full + 5)
        }
        for count, everyone in of.items():
            answers = single_calls(hvd, everyone)
            wrong += [f"{name} {dtype} {count}" for name, a, b in answers if not torch.equal(a, b)]
        answers = joint_calls(hvd, of)
        wrong += [f"{name} {dtype} {len(b)}" for name, a, b in answers if not torch.equal(a, b)]
    return {"wrong": wrong}


def calls_and_sizes():
    seen = sizes()
    return seen | calls()  # the last: ranks join


@pytest.mark.parametrize("instances", [2, 3])
def test_calls_of_horovod_give_their_results(instances):
    for answer in run_job(calls, instances=instances):
        assert [name for name, right in answer.items() if not right] == []
        assert len(answer) >= 14


@pytest.mark.parametrize("instances", [2, 3])
def test_calls_beyond_the_fusion_threshold_give_their_results(instances):
    env = {"HOROVOD_FUSION_THRESHOLD": str(THRESHOLD)}
    for answer in run_job(calls_and_sizes, instances=instances, env=env):
        assert answer.pop("wrong") == []
        assert [name for name, right in answer.items() if not right] == []


def rest():
    import horovod.torch as hvd

    hvd.init()
    total = hvd.allreduce(torch.ones(3), op=hvd.Sum)
    time.sleep(1)
    return {"total": float((total + hvd.allreduce(torch.ones(3), op=hvd.Sum)).sum())}


def test_horovod_rests_while_there_is_nothing_to_reduce(tmp_path):
    cycles = {}
    for name, longest in (("rests", "500"), ("polls", "0")):
        timeline = tmp_path / f"{name}.json"
        env = {
            "HOROVOD_TIMELINE": str(timeline),
            "HOROVOD_TIMELINE_MARK_CYCLES": "1",
            "HOROVOD_CYCLE_TIME": "1",
            "HOROVOD_IDLE_CYCLE_TIME": longest,
        }
        assert [answer["total"] for answer in run_job(rest, env=env)] == [12.0, 12.0]
        cycles[name] = timeline.read_text().count("CYCLE_START")
    assert 0 < cycles["rests"] < cycles["polls"] / 4


def submits_until_the_other_rank_has_ended():
    import horovod.torch as hvd
    import torch

    hvd.init()
    hvd.allreduce(torch.ones(1))
    if hvd.rank() == 0:
        return {}
    with contextlib.suppress(hvd.HorovodInternalError):
        # Horovod alone has a tensor by the next one, and frees all of them at the end.
        for number in range(10**7):
            hvd.allreduce_async(torch.ones(1), name=str(number))
        return {"refused": False}
    return {"refused": True}


def test_tensors_that_wait_are_freed_while_others_are_submitted():
    answers = run_job(submits_until_the_other_rank_has_ended, timeout=60)
    assert answers == [{}, {"refused": True}]


def wait_for_a_stopped_rank():
    import horovod.torch as hvd
    import torch

    hvd.init()
    hvd.allreduce(torch.ones(1), name="connected")
    if hvd.rank() == 1:
        here = os.getpid()
        with subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {here}"]):
            os.kill(here, signal.SIGSTOP)
        return {"total": hvd.allreduce(torch.ones(3), op=hvd.Sum, name="late").tolist()}

    def interrupt(*_):
        raise InterruptedError

    signal.signal(signal.SIGALRM, interrupt)
    handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="late")
    began = time.process_time()
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        hvd.synchronize(handle)
        interrupted = False
    except InterruptedError:
        interrupted = True
    total = hvd.synchronize(handle).tolist()
    return {
        "total": total,
        "interrupted": interrupted,
        "processor seconds": time.process_time() - began,
    }


def test_a_rank_that_waits_leaves_its_processor_and_sees_signals():
    first, second = run_job(wait_for_a_stopped_rank)
    assert first["total"] == second["total"] == [2, 2, 2]
    assert first["interrupted"]
    # Both of its threads wait for two seconds; by polling they take up to four.
    assert first["processor seconds"] < 0.5
