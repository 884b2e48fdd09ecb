import logging
import sys

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import popdist.poptorch
import popdist_torch as poptorch
from popdist_torch.data.prefetch_worker import start_method
from popdist_torch.errors import DataError


def numbers(length):
    return TensorDataset(torch.arange(length))


def options(process=0, processes=1, *, replicas=1, seed=None, accumulation=1):
    made = poptorch.Options().replicationFactor(replicas)
    made.Distributed.configureProcessId(process, processes)
    made.Training.gradientAccumulation(accumulation)
    return made if seed is None else made.randomSeed(seed)


def epoch(loader):
    return [batch[0].tolist() for batch in loader]


def read(loaders):
    return [number for loader in loaders for batch in epoch(loader) for number in batch]


def test_published_figures_of_cifar10(monkeypatch, launched):
    """50 000 images, batch size 32, 8 replicas on 4 instances."""
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    plain = poptorch.DataLoader(poptorch.Options(), numbers(50_000), batch_size=32)
    assert (len(plain), plain.combinedBatchSize) == (390, 32)
    launched(
        num_total_replicas=8,
        num_local_replicas=2,
        replica_index_offset=2,
        num_instances=4,
        instance_index=1,
    )
    with_popdist = popdist.poptorch.Options()
    loader = poptorch.DataLoader(with_popdist, numbers(50_000), batch_size=32)
    assert (len(loader), loader.combinedBatchSize) == (195, 64)
    assert with_popdist.replication_factor == 2
    assert len(epoch(loader)) == 195


def test_the_combined_batch_multiplies_every_count():
    made = options(replicas=3, accumulation=2).deviceIterations(5)
    loader = poptorch.DataLoader(made, numbers(300), batch_size=4)
    assert loader.combinedBatchSize == 4 * 5 * 3 * 2
    assert [len(batch) for batch in epoch(loader)] == [120, 120]


def test_a_forgotten_first_argument_is_named():
    with pytest.raises(
        DataError, match=r"(?s)must be a poptorch.Options.*TensorDataset.*options first"
    ):
        poptorch.DataLoader(numbers(4), batch_size=2)
    with pytest.raises(DataError, match="needs data"):
        poptorch.DataLoader(options())


def test_the_phase_says_how_many_processes_start(monkeypatch):
    phases = []
    monkeypatch.setattr("popdist_torch.data.accessor.note_phase", phases.append)
    loader = poptorch.DataLoader(options(), numbers(4), num_workers=2)
    assert len(epoch(loader)) == 4
    assert phases == ["starting_2_loader_processes"]
    assert len(epoch(loader)) == 4  # by the same workers
    epoch(poptorch.DataLoader(options(), numbers(4)))
    assert len(phases) == 1
    mode = poptorch.DataLoaderMode.Async
    loader = poptorch.DataLoader(options(), numbers(4), num_workers=1, mode=mode)
    loader.terminate()
    assert phases[1:] == ["starting_2_loader_processes", "running"]


def test_a_loader_freezes_its_options():
    made = options()
    loader = poptorch.DataLoader(made, numbers(4))
    assert loader.options is made
    with pytest.raises(AttributeError, match="frozen"):
        made.deviceIterations(2)


def test_processes_read_disjoint_ranges_that_move_by_the_leftover():
    loaders = [poptorch.DataLoader(options(p, 2), numbers(10), batch_size=2) for p in range(2)]
    assert [epoch(loader) for loader in loaders] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert [epoch(loader) for loader in loaders] == [[[2, 3], [4, 5]], [[6, 7], [8, 9]]]
    assert [epoch(loader) for loader in loaders] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


@pytest.mark.parametrize("workers", [0, 1])
def test_processes_shuffle_alike_and_differently_every_epoch(workers):
    loaders = [
        poptorch.DataLoader(
            options(p, 2, seed=5), numbers(40), batch_size=4, shuffle=True, num_workers=workers
        )
        for p in range(2)
    ]
    first, second = read(loaders), read(loaders)
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != second
    assert first != list(range(40))


def test_shuffling_does_not_depend_on_what_else_draws():
    def order(noise):
        loader = poptorch.DataLoader(options(1, 2, seed=5), numbers(40), shuffle=True)
        torch.rand(noise)
        return epoch(loader)

    assert order(1) == order(1000)


def test_shuffling_in_several_processes_needs_a_seed():
    with pytest.raises(AssertionError, match="randomSeed"):
        poptorch.DataLoader(options(0, 2), numbers(40), shuffle=True)


def test_one_process_shuffles_by_torch():
    loader = poptorch.DataLoader(options(), numbers(40), shuffle=True)
    torch.manual_seed(1)
    seen = read([loader])
    plain = torch.utils.data.DataLoader(numbers(40), shuffle=True)
    torch.manual_seed(1)
    assert seen == read([plain])


def test_keeping_the_last_batch():
    loaders = [
        poptorch.DataLoader(options(p, 2), numbers(11), batch_size=4, drop_last=False)
        for p in range(2)
    ]
    assert [len(loader) for loader in loaders] == [2, 2]
    assert sorted(read(loaders)) == list(range(11))


def test_unequal_numbers_of_batches_would_hang_and_are_refused():
    with pytest.raises(AssertionError, match="wait for ever"):
        poptorch.DataLoader(options(0, 2), numbers(9), batch_size=4, drop_last=False)


def test_a_set_too_small_for_the_job_is_refused():
    with pytest.raises(AssertionError, match="smaller than one global batch"):
        poptorch.DataLoader(options(0, 2), numbers(7), batch_size=4)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(6))


def test_streams_are_not_divided(caplog):
    with pytest.raises(AssertionError, match="IterableDataset"):
        poptorch.DataLoader(options(0, 2), Stream(), batch_size=2)
    loader = poptorch.DataLoader(
        options(0, 2), Stream(), batch_size=2, auto_distributed_partitioning=False
    )
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
    with caplog.at_level(logging.WARNING, logger="popdist.torch"):
        poptorch.DataLoader(options(), Stream(), num_workers=2)
    assert "2 times" in caplog.text


def test_a_batch_sampler_makes_micro_batches():
    sampler = BatchSampler(SequentialSampler(range(10)), 2, drop_last=True)
    loader = poptorch.DataLoader(options(replicas=2), numbers(10), batch_sampler=sampler)
    assert epoch(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(loader) == 2
    assert loader.combinedBatchSize is None
    kept = poptorch.DataLoader(
        options(replicas=2), numbers(10), batch_sampler=sampler, drop_last=False
    )
    assert epoch(kept)[-1] == [8, 9]
    assert len(kept) == 3


def padded(samples):
    """Three rows, whatever the number of samples."""
    rows = torch.stack([sample[0] if isinstance(sample, tuple) else sample for sample in samples])
    return {"x": torch.nn.functional.pad(rows, (0, 3 - len(rows)), value=-1), "name": "padded"}


@pytest.mark.parametrize("mode", list(poptorch.DataLoaderMode))
@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_function_gets_one_micro_batch_of_a_batch_sampler(mode, workers):
    micro_batches = [[0], [1, 2], [3, 4, 5], [6, 7], [8, 9], [5]]
    expected = [[0, -1, -1, 1, 2, -1], [3, 4, 5, 6, 7, -1], [8, 9, -1, 5, -1, -1]]
    loader = poptorch.DataLoader(
        options(replicas=2), numbers(10), batch_sampler=micro_batches, collate_fn=padded,
        num_workers=workers, mode=mode,
    )  # fmt: skip
    for _ in range(2):
        batches = list(loader)
        assert [batch["x"].tolist() for batch in batches] == expected
        assert {batch["name"] for batch in batches} == {"padded"}
    loader.terminate()


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({"batch_size": 2}, (0, 1)),
        ({"shuffle": True}, (0, 1)),
        ({}, (0, 2)),
    ],
)
def test_a_batch_sampler_excludes_what_it_decides(arguments, place):
    sampler = BatchSampler(SequentialSampler(range(10)), 2, drop_last=True)
    with pytest.raises(AssertionError, match="batch_sampler"):
        poptorch.DataLoader(options(*place), numbers(10), batch_sampler=sampler, **arguments)


def test_batching_can_be_off_in_one_process_only():
    loader = poptorch.DataLoader(options(), numbers(3), batch_size=None, drop_last=False)
    assert loader.combinedBatchSize is None
    assert [int(item[0]) for item in loader] == [0, 1, 2]
    with pytest.raises(AssertionError, match="batch_size"):
        poptorch.DataLoader(options(0, 2), numbers(3), batch_size=None)


def test_workers_live_on_between_epochs():
    assert poptorch.DataLoader(options(), numbers(4), num_workers=1).persistent_workers
    assert not poptorch.DataLoader(options(), numbers(4)).persistent_workers


@pytest.mark.parametrize("wrong", [{"mode": "Asynchronous"}, {"partition": "interleaved"}])
def test_modes_are_members_of_their_enumerations(wrong):
    with pytest.raises(ValueError, match="takes a member of"):
        poptorch.DataLoader(options(), numbers(4), **wrong)


@pytest.mark.parametrize("size", [0, -1, 2.5, "2", True])
def test_a_batch_has_a_positive_number_of_samples(size):
    with pytest.raises(AssertionError, match="batch_size takes a whole number"):
        poptorch.DataLoader(options(), numbers(4), batch_size=size)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"drop_last": False}, "whole global batches only"),
        ({"batch_size": None, "drop_last": False}, "batch_size cannot be None"),
        ({"sampler": range(4)}, "a sampler excludes"),
        ({"shuffle": True}, "randomSeed"),
    ],
)
def test_interleaving_has_the_rules_of_dividing(arguments, what):
    partition = poptorch.DataPartition.Interleaved
    with pytest.raises(AssertionError, match=what):
        poptorch.DataLoader(options(), numbers(8), partition=partition, **arguments)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("of_a_view", [False, True])
def test_torchs_own_sampler_means_its_flag_where_data_is_divided(shuffle, of_a_view):
    data = numbers(12)
    sampled = list(data) if of_a_view else data
    sampler = torch.utils.data.DataLoader(sampled, batch_size=2, shuffle=shuffle).sampler
    parts = []
    for process in (0, 1):
        made = options(process, 2, seed=3)
        copied = poptorch.DataLoader(made, data, batch_size=2, sampler=sampler)
        parts.append(epoch(copied))
        flagged = poptorch.DataLoader(options(process, 2, seed=3), data, 2, shuffle=shuffle)
        assert parts[-1] == epoch(flagged)
    assert sorted(number for part in parts for batch in part for number in batch) == list(range(12))


@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler(numbers(12), replacement=True),
        RandomSampler(numbers(12), num_samples=4),
        SequentialSampler(range(11)),
        RandomSampler(range(13)),
        WeightedRandomSampler([1.0] * 12, 12),
    ],
)
def test_other_samplers_are_not_divided(sampler):
    data = getattr(sampler, "data_source", None)
    data = data if isinstance(data, TensorDataset) else numbers(12)
    with pytest.raises(AssertionError, match="a sampler excludes"):
        poptorch.DataLoader(options(1, 2, seed=3), data, batch_size=2, sampler=sampler)


def test_workers_come_from_a_server_where_a_live_job_spans_hosts(monkeypatch):
    class Binding:
        init = staticmethod(lambda: None)
        is_initialized = staticmethod(lambda: True)
        size = staticmethod(lambda: 4)
        local_size = staticmethod(lambda: 4)

    monkeypatch.setitem(sys.modules, "horovod.torch", Binding)
    assert start_method() is None
    monkeypatch.setattr(Binding, "local_size", staticmethod(lambda: 2))
    assert start_method() == "forkserver"
    loader = poptorch.DataLoader(options(), numbers(8), batch_size=4, num_workers=1)
    assert epoch(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert loader.multiprocessing_context.get_start_method() == "forkserver"
    own = poptorch.DataLoader(options(), numbers(8), num_workers=1, multiprocessing_context="fork")
    assert len(epoch(own)) == 8
    assert own.multiprocessing_context.get_start_method() == "fork"
    monkeypatch.setattr(Binding, "is_initialized", staticmethod(lambda: False))
    assert start_method() is None
