"""Creating strategies, their variables and their data sets.

Two instances, of one or two local replicas. The other instance is `Peers`, a stand-in for Horovod:
it hands in ten times what this one does.
"""

import json
import warnings

import pytest
import tensorflow as tf

from popdist import backend
from popdist_tf.errors import AgreementError, StrategyError, TooLateError
from popdist_tf.strategies import popdist_strategy as strategies
from popdist_tf.strategies import variables
from popdist_tf.strategies.devices import replica_devices
from popdist_tf.strategies.extended import device_code, on_device
from popdist_tf.strategies.multi_worker_strategy import IPUMultiWorkerStrategy
from tests.popdist_tf.peers import Peers
from tests.popdist_tf.strategies.job import Job, replica_number, run

CLUSTER = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
Aggregation, Synchronization = tf.VariableAggregation, tf.VariableSynchronization


@pytest.fixture(params=[1, 2], ids=["one replica", "two replicas"])
def replicas(request):
    return request.param


# Creation.


def test_horovod_must_be_initialised(monkeypatch):
    monkeypatch.setattr(backend, "started", lambda *_: None)
    with pytest.raises(StrategyError, match="has not been initialised") as caught:
        strategies.IPUHorovodStrategy()
    assert caught.value.code == "PD411"
    assert "ipu.horovod.init()" in caught.value.hint


def test_a_cluster_is_refused_where_horovod_knows_the_workers(monkeypatch, launched):
    launched(num_total_replicas=2, num_local_replicas=1, num_instances=2, instance_index=0)
    monkeypatch.setenv("TF_CONFIG", json.dumps(CLUSTER))
    for create in (strategies.IPUHorovodStrategy, strategies.PopDistStrategy):
        with pytest.raises(StrategyError, match=f"and {create.__name__} takes") as caught:
            create()
        assert caught.value.code == "PD411"
        assert caught.value.value == CLUSTER["cluster"]
        assert caught.value.hint.startswith("unset TF_CONFIG")


def test_a_cluster_that_cannot_be_read(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(StrategyError, match="TF_CONFIG cannot be read") as caught:
        strategies.IPUHorovodStrategy()
    assert (caught.value.code, caught.value.hint) == ("PD411", None)


def test_a_strategy_for_clusters_needs_a_resolver():
    with pytest.raises(StrategyError, match="needs a cluster resolver") as caught:
        IPUMultiWorkerStrategy("/device:IPU:0")
    assert (caught.value.code, caught.value.hint) == ("PD411", None)
    assert "TFConfigClusterResolver" in caught.value.accepted


def test_a_strategy_for_clusters_needs_a_cluster(monkeypatch, launched):
    launched(num_total_replicas=2, num_local_replicas=1, num_instances=2, instance_index=0)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(StrategyError, match="each of the 2 instances would train") as caught:
        IPUMultiWorkerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    assert caught.value.code == "PD415"
    assert "--tf-config yes" in caught.value.hint


def test_more_replicas_than_tensorflow_has_started_with_are_refused():
    tf.config.list_logical_devices()
    assert replica_devices(2) == ("/device:CPU:0", "/device:CPU:1")
    with pytest.raises(TooLateError, match="has 3 replicas, and TensorFlow has") as caught:
        replica_devices(3)
    assert caught.value.code == "PD402"
    assert caught.value.value == "2 logical CPU device(s)"
    assert caught.value.hint.startswith("create the strategy")


def test_a_strategy_for_one_instance_warns_in_a_job_of_several(launched):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert strategies.IPUStrategy().num_replicas_in_sync == 1
    launched(num_total_replicas=2, num_local_replicas=1, num_instances=2, instance_index=0)
    with pytest.warns(UserWarning, match="each trains a model of its own"):
        assert strategies.IPUStrategy().num_replicas_in_sync == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_replicas_are_counted_over_all_instances(replicas, rank):
    strategy = Job(replicas, rank)
    extended = strategy.extended
    assert strategy.num_replicas_in_sync == 2 * replicas
    assert extended.replicas_per_step == replicas
    assert extended.should_checkpoint == extended.should_save_summary == (rank == 0)
    numbers = run(strategy, lambda: tf.distribute.get_replica_context().replica_id_in_sync_group)
    assert [int(one) for one in numbers] == [rank * replicas + i for i in range(replicas)]
    places = extended._experimental_distribute_values_from_function(
        lambda one: f"{one.replica_id_in_sync_group} of {one.num_replicas_in_sync}"
    )
    expected = [f"{rank * replicas + i} of {2 * replicas}" for i in range(replicas)]
    assert list(strategy.experimental_local_results(places)) == expected


def test_a_horovod_strategy_counts_ranks(monkeypatch):
    monkeypatch.setattr(backend, "started", lambda *_: Peers((10, 10, 1), 2))
    strategy = strategies.IPUHorovodStrategy(variables_on_host=True)
    assert strategy.num_replicas_in_sync == 3
    with strategy.scope():
        assert tf.Variable(1.0).device.endswith("CPU:0")
    assert strategy.experimental_run_v2(lambda x: x + 1, args=(1,)) == 2


def test_device_code_is_what_runs_in_a_strategy(replicas):
    assert not on_device()

    def replica():
        # Replicas run in threads; what they do together runs here.
        context = tf.distribute.get_replica_context()
        return context.merge_call(lambda _: tf.constant(on_device()))

    assert run(Job(replicas), replica)[0].numpy()
    with device_code():
        assert on_device()
    assert not on_device()


# Variables.


def test_variables_start_from_the_first_instance(replicas):
    for rank, expected in ((0, 2), (1, 20)):
        strategy = Job(replicas, rank)
        with strategy.scope():
            weight = tf.Variable(lambda: tf.constant(2.0), name="weight")
        assert isinstance(weight, variables.IPUMirroredVariable)
        assert [float(one) for one in weight.values] == [expected] * replicas
        assert len(strategy.peers.names("broadcast")) == 1
    assert [one.name for one in weight.values] == ["weight:0", "weight/replica_1:0"][:replicas]


def test_variables_outside_of_the_scope_are_left_alone():
    strategy = Job(1)
    assert not isinstance(tf.Variable(1.0), variables.IPUDistributedVariable)
    with strategy.scope():
        held = tf.Variable(1.0)
    with Job(1).scope(), pytest.raises(RuntimeError, match="Mixing different"):
        strategy.run(lambda: held.assign(2.0))
    assert len(strategy.peers.names("broadcast")) == 1


# From 1, replica number n adds n: of one replica 1 and the peer's 10, of two also 2 and 20.
@pytest.mark.parametrize(
    ("aggregation", "synchronization", "parts", "read"),
    [
        ("SUM", "ON_WRITE", {1: [12], 2: [34, 34]}, {1: 12, 2: 34}),
        ("MEAN", "ON_WRITE", {1: [6.5], 2: [9.25, 9.25]}, {1: 6.5, 2: 9.25}),
        # Of each instance, as under TensorFlow's own strategies of several workers.
        ("ONLY_FIRST_REPLICA", "ON_WRITE", {1: [2], 2: [2, 2]}, {1: 2, 2: 2}),
        ("NONE", "ON_WRITE", {1: [2], 2: [2, 3]}, {1: 2, 2: 2}),
        ("SUM", "ON_READ", {1: [2], 2: [2, 3]}, {1: 22, 2: 55}),
        ("MEAN", "ON_READ", {1: [2], 2: [2, 3]}, {1: 11, 2: 13.75}),
        ("ONLY_FIRST_REPLICA", "ON_READ", {1: [2], 2: [2, 3]}, {1: 2, 2: 2}),
    ],
)
def test_variables_are_aggregated_as_they_say(replicas, aggregation, synchronization, parts, read):
    strategy = Job(replicas)
    with strategy.scope():
        held = tf.Variable(
            1.0,
            trainable=False,
            aggregation=Aggregation[aggregation],
            synchronization=Synchronization[synchronization],
        )

    def replica():
        held.assign_add(replica_number())

    tf.function(lambda: strategy.run(replica))()
    is_read = synchronization == "ON_READ"
    kind = variables.IPUSyncOnReadVariable if is_read else variables.IPUMirroredVariable
    assert isinstance(held, kind)
    assert [float(one) for one in held.values] == parts[replicas]
    with strategy.scope():
        assert float(held.read_value()) == read[replicas]


def test_a_variable_without_aggregation_cannot_be_read_over_replicas(replicas):
    strategy = Job(replicas)
    with strategy.scope():
        held = tf.Variable(1.0, synchronization=Synchronization.ON_READ)
        with pytest.raises(ValueError, match="NONE"):
            held.read_value()


def test_instances_that_create_other_variables_are_told():
    strategy = Job(1)

    def says(row):
        if row.shape[1] == 40:  # a digest and a length
            return tf.concat([tf.zeros([1, 32], tf.uint8), row[:, 32:]], 1)
        text = json.dumps({"statement": "the first step"}).encode()
        return tf.constant([list(text.ljust(row.shape[1]))], tf.uint8)

    strategy.peers.says = says
    with strategy.scope(), pytest.raises(AgreementError, match="PD007") as caught:
        tf.Variable(1.0, name="a_variable_more_than_there_is_elsewhere")
    assert caught.value.value.endswith("float32() on instance 0; the first step on instance 1")


# Data.


@pytest.mark.parametrize("rank", [0, 1])
def test_a_data_set_is_neither_sharded_nor_batched_again(replicas, rank):
    strategy = Job(replicas, rank)
    data = tf.data.Dataset.range(8).batch(2)  # 4 batches, one for a replica and step
    steps = [
        [one.numpy().tolist() for one in strategy.experimental_local_results(element)]
        for element in strategy.experimental_distribute_dataset(data)
    ]
    batches = [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert steps == [batches[i : i + replicas] for i in range(0, 4, replicas)]


def test_replicas_without_a_batch_end_the_data_for_all():
    strategy = Job(2)
    data = strategy.experimental_distribute_dataset(tf.data.Dataset.range(3))
    assert len(list(data)) == 1


def test_a_data_set_from_a_function_is_told_its_place(replicas):
    strategy, seen = Job(replicas, 1), []

    def make(context):
        place = (context.num_input_pipelines, context.input_pipeline_id)
        seen.append((*place, context.get_per_replica_batch_size(8 * replicas)))
        return tf.data.Dataset.range(4)

    assert len(list(strategy.distribute_datasets_from_function(make))) == 4 // replicas
    assert seen == [(2, 1, 4)]


@pytest.mark.parametrize(("factor", "ends"), [(1, True), (0, False)])
def test_the_end_of_data_of_unknown_length_is_agreed_upon(replicas, factor, ends):
    # The stand-in announces a batch where this instance does (1), or never again (0).
    strategy = Job(replicas, factor=factor)
    data = tf.data.Dataset.range(4).filter(lambda _: True)
    distributed = strategy.experimental_distribute_dataset(data)
    if ends:
        assert len(list(distributed)) == 4 // replicas
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match="different numbers of batches"):
            list(distributed)
    assert set(strategy.peers.names("allreduce")) == {"popdist_batches_of_data_set_1"}
