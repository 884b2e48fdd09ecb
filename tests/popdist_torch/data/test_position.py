"""A loader that is built anew and sent to a saved position reads on as if nothing had happened."""

import json

import pytest
import torch
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, TensorDataset

import popdist_torch as poptorch
from popdist_torch.options import Placement

LENGTH = 43


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(LENGTH))


def loader(place=(0, 1), *, seed=3, **arguments):
    options = poptorch.Options().randomSeed(seed).replicationFactor(2)
    options.Distributed.configureProcessId(*place)
    return poptorch.DataLoader(
        options, arguments.pop("dataset", TensorDataset(torch.arange(LENGTH))), **arguments
    )


def values(batch):
    return (batch[0] if isinstance(batch, list) else batch).tolist()


class Reader:
    """Reads over the ends of epochs, as a training program does."""

    def __init__(self, loader):
        self.loader = loader
        self.batches = iter(loader)

    def read(self, count):
        seen = []
        while len(seen) < count:
            for batch in self.batches:
                seen.append(values(batch))
                if len(seen) == count:
                    return seen
            self.batches = iter(self.loader)
        return seen


def way(kind):
    divided = {"place": (1, 2), "batch_size": 3}
    generator = torch.Generator().manual_seed(8)
    return {
        "in order": lambda: loader(batch_size=3),
        "shuffled": lambda: loader(batch_size=3, shuffle=True),
        "generator": lambda: loader(batch_size=3, shuffle=True, generator=generator),
        "divided": lambda: loader(**divided),
        "divided, shuffled": lambda: loader(**divided, shuffle=True),
        "interleaved": lambda: loader(
            **divided, shuffle=True, partition=poptorch.DataPartition.Interleaved
        ),
        "workers": lambda: loader(**divided, shuffle=True, num_workers=1),
        "short last batch": lambda: loader(batch_size=3, drop_last=False),
        "stream": lambda: loader(batch_size=3, dataset=Stream(), drop_last=False),
        "no batches": lambda: loader(batch_size=None, drop_last=False),
        "sampler": lambda: loader(batch_size=3, sampler=range(LENGTH - 1, -1, -1)),
        "batch sampler": lambda: loader(
            batch_sampler=BatchSampler(RandomSampler(range(LENGTH)), 4, drop_last=True)
        ),
    }[kind]


@pytest.mark.parametrize("taken", [0, 1, 4, 7, 9])
@pytest.mark.parametrize(
    "kind",
    [
        "in order",
        "shuffled",
        "generator",
        "divided",
        "divided, shuffled",
        "interleaved",
        "short last batch",
        "stream",
        "no batches",
        "sampler",
        "batch sampler",
        "workers",
    ],
)
def test_reading_goes_on_where_it_stood(kind, taken):
    straight = Reader(way(kind)())
    straight.read(taken)
    saved, host = json.loads(json.dumps(straight.loader.state_dict())), torch.get_rng_state()
    rest = straight.read(20)
    resumed = way(kind)()
    resumed.load_state_dict(saved)
    torch.set_rng_state(host)  # what a checkpoint restores as well
    assert Reader(resumed).read(20) == rest


def test_a_finished_epoch_is_the_start_of_the_next():
    straight = loader(place=(0, 2), batch_size=3, shuffle=True)
    first, state = [values(b) for b in straight], straight.state_dict()
    assert (state["epoch"], state["batch"]) == (1, 0)
    resumed = loader(place=(0, 2), batch_size=3, shuffle=True)
    resumed.load_state_dict(state)
    second = [values(b) for b in resumed]
    assert second == [values(b) for b in straight]
    assert second != first


@pytest.mark.parametrize(
    "kind", ["in order", "generator", "divided, shuffled", "stream", "batch sampler", "workers"]
)
def test_behind_the_last_batch_comes_the_next_epoch(kind):
    """A position that was saved in the loop, before the loader said that its epoch was over."""
    straight = way(kind)()
    for _ in straight:
        state = straight.state_dict()
    host = torch.get_rng_state()
    second = [values(b) for b in straight]
    resumed = way(kind)()
    resumed.load_state_dict(state)
    torch.set_rng_state(host)
    assert [values(b) for b in resumed] == second != []
    assert resumed.state_dict()["epoch"] == 2


def test_the_data_set_of_a_divided_loader_is_this_process_part():
    data = TensorDataset(torch.arange(LENGTH))
    data.classes = "an attribute of the program's own"
    divided = loader(place=(1, 2), batch_size=3, shuffle=True, dataset=data)
    for _ in range(2):  # in the order of each epoch
        read = [row for batch in divided for row in values(batch)]
        assert [int(row[0]) for row in divided.dataset] == read
        assert len(divided.dataset) == len(read) < LENGTH
    assert divided.dataset.classes == data.classes
    assert loader(batch_size=3, dataset=data).dataset is data


def test_an_abandoned_epoch_is_over():
    straight = loader(place=(0, 2), batch_size=3, shuffle=True)
    next(iter(straight))
    again = [values(b) for b in straight]
    resumed = loader(place=(0, 2), batch_size=3, shuffle=True)
    assert [values(b) for b in resumed] != again
    assert [values(b) for b in resumed] == again


@pytest.mark.parametrize("other", [{"batch_size": 2}, {"seed": 4}, {"shuffle": True}])
def test_a_position_belongs_to_one_way_of_reading(other):
    state = loader(batch_size=3).state_dict()
    with pytest.raises(AssertionError, match="belongs to another loader"):
        loader(**{"batch_size": 3, **other}).load_state_dict(state)
    with pytest.raises(AssertionError, match="not a position"):
        loader(batch_size=3).load_state_dict({"epoch": 1})


def test_reading_on_leaves_the_programs_generator_alone():
    straight = loader(batch_size=3, shuffle=True)
    next(iter(straight))
    resumed = loader(batch_size=3, shuffle=True)
    resumed.load_state_dict(straight.state_dict())
    before = torch.get_rng_state()
    next(iter(resumed))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loaded_position_is_the_position_at_once():
    generator = torch.Generator().manual_seed(8)
    straight = loader(batch_size=3, shuffle=True, generator=generator)
    next(iter(straight))
    saved = straight.state_dict()
    resumed = loader(batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(1))
    resumed.load_state_dict(saved)
    assert resumed.state_dict() == saved


def placed(locals_, index):
    """Options of one process of a job with such numbers of replicas, as poprun would make them."""
    here = Placement(
        first_replica=sum(locals_[:index]),
        local_replicas=locals_[index],
        total_replicas=sum(locals_),
        process_id=index,
        num_processes=len(locals_),
    )
    kind = type("Placed", (poptorch.Options,), {"placement": property(lambda _self: here)})
    options = kind().randomSeed(3).deviceIterations(2).replicationFactor(here.local_replicas)
    options.Training.gradientAccumulation(2)
    return options


def by_replica(locals_, **arguments):
    """Loaders of a job, and a function that reads each replica's rows of the next batches."""
    loaders = []
    for index in range(len(locals_)):
        data = TensorDataset(torch.arange(200))
        options = placed(locals_, index)
        loaders.append(poptorch.DataLoader(options, data, batch_size=3, **arguments))
    readers = []

    def read(count):
        readers.extend(Reader(loader) for loader in loaders[len(readers) :])
        parts = [torch.tensor(reader.read(count)) for reader in readers]
        return torch.cat(
            [p.view(count, 4, n, 3) for p, n in zip(parts, locals_, strict=True)], dim=2
        ).tolist()

    return loaders, read


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("partition", poptorch.DataPartition)
@pytest.mark.parametrize("layouts", [((2, 2), (1, 3), (4,)), ((3, 1), (4,), (1, 1, 2))])
def test_replicas_read_on_in_another_layout(layouts, partition, shuffle):
    """Mid-epoch, over an epoch's end, and in a third layout after that: each replica's own rows."""
    arguments = {"partition": partition, "shuffle": shuffle}
    first, undisturbed = by_replica(layouts[0], **arguments)
    undisturbed(2)
    for layout in layouts[1:]:
        states = [json.loads(json.dumps(loader.state_dict())) for loader in first]
        resumed, read = by_replica(layout, **arguments)
        here, past = range(len(layout)), first_and_count(layouts[0])
        for index in here:
            known = states[0]["layout"] or past
            resumed[index].load_state_dict({**states[0], "layout": known})
            assert len(resumed[index]) == 4
        assert read(6) == undisturbed(6)
        first = resumed


def first_and_count(locals_):
    return [[sum(locals_[:index]), local] for index, local in enumerate(locals_)]


@pytest.mark.parametrize(
    ("then", "now", "arguments"),
    [
        ((4,), (2, 2), {"shuffle": True}),
        ((2, 2), (4,), {"drop_last": False}),
        ((2, 2), (4,), {"auto_distributed_partitioning": False}),
        ((2, 2), (2, 1), {}),
    ],
)
def test_what_belongs_to_one_process_is_not_moved(then, now, arguments):
    state = by_replica(then, **arguments)[0][0].state_dict()
    with pytest.raises(AssertionError, match="PD324"):
        by_replica(now, **arguments)[0][0].load_state_dict(
            {**state, "layout": first_and_count(then)}
        )
