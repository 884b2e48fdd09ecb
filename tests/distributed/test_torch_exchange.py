"""The exchange between real instances, on numpy buffers as the ONNX adapter uses them."""

import time

import numpy as np
import pytest
import torch

from popdist import backend
from popdist.agreement import disagreements
from popdist.backend import connect
from popdist.exchange import Exchange, Item, gather, plan, views
from tests.distributed.jobs import run_job

ITEMS = [
    Item("a", 7, "float32", 4),
    Item("b", 0, "float32", 4),
    Item("c", 5, "float64", 8),
    Item("d", 40, "float32", 4),
    Item("e", 3, "int64", 8),
    Item("f", 6, "float16", 2),
]
ROUNDS = 3


def contribution(instance, round_, item):
    return np.arange(item.elements) * (instance + 1) + 10 * round_


def exchange():
    horovod = connect("torch")
    me, count = backend.current().instance_index, backend.current().num_instances
    layout = plan(ITEMS, slice_bytes=32)
    buffers = [np.zeros(arena.elements, arena.dtype) for arena in layout.arenas]
    arenas = [torch.from_numpy(buffer) for buffer in buffers]
    places = views(layout, arenas, [(item.elements,) for item in ITEMS])
    shared = Exchange(layout, arenas, horovod, name="test")
    answer = {"instances": count}
    for round_ in range(ROUNDS):
        shared.begin()
        # Every instance completes its items in another order, and some not before the end.
        for index in np.random.default_rng(me + round_).permutation(len(ITEMS)):
            places[index].copy_(torch.from_numpy(contribution(me, round_, ITEMS[index])))
            if index != me:
                shared.ready(int(index))
        shared.finish()
        for index, item in enumerate(ITEMS):
            answer[f"{round_}/{item.name}"] = places[index].numpy().copy()
    if me == 1:
        time.sleep(0.5)
    started = time.thread_time()
    shared.begin()
    shared.finish()
    answer["seconds of CPU"] = time.thread_time() - started
    # The arenas are the program's own memory, not copies of it.
    answer["own memory"] = bool((buffers[0] == arenas[0].numpy()).all())
    return answer


@pytest.mark.parametrize("instances", [2, 4])
def test_all_instances_hold_the_exact_sum(instances):
    for answer in run_job(exchange, instances=instances):
        assert answer["instances"] == instances
        assert answer["own memory"]
        assert answer["seconds of CPU"] < 0.25  # waiting takes no core from those who work
        for round_ in range(ROUNDS):
            for item in ITEMS:
                # Small whole numbers: exact in every type, whatever the order of the sum.
                wanted = sum(contribution(i, round_, item) for i in range(instances))
                np.testing.assert_array_equal(answer[f"{round_}/{item.name}"], wanted)


def disagree():
    horovod = connect("torch")
    me = backend.current().instance_index
    same = disagreements({"a": "1"}, gather(horovod))
    found = disagreements({"a": "1", "b": "x" * (1 + 100 * me), f"only {me}": ""}, gather(horovod))
    return {"same": len(same), "found": [[row.name, *row.values] for row in found]}


def test_facts_of_any_length_are_compared():
    for answer in run_job(disagree):
        assert answer["same"] == 0
        assert answer["found"] == [
            ["b", "x", "x" * 101],
            ["only 0", "", "(absent)"],
            ["only 1", "(absent)", ""],
        ]
