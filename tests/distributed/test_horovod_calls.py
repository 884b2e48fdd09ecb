"""Every kind of call of the real Horovod gives its result under poprun, with poprun's settings."""

import pytest
import torch

from tests.distributed.jobs import run_job


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


@pytest.mark.parametrize("instances", [2, 3])
def test_calls_of_horovod_give_their_results(instances):
    for answer in run_job(calls, instances=instances):
        assert [name for name, right in answer.items() if not right] == []
        assert len(answer) >= 14
