"""The environment contract: reading, writing, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popdist.contract import VARIABLES
from popdist.errors import ContractError
from popdist.popdist_core import Topology


@st.composite
def topologies(draw):
    """Every instance of jobs with any division of replicas."""
    replicas = draw(st.lists(st.integers(1, 9), min_size=1, max_size=12))
    index = draw(st.integers(0, len(replicas) - 1))
    return Topology(
        launched=True,
        num_total_replicas=sum(replicas),
        num_local_replicas=replicas[index],
        replica_index_offset=sum(replicas[:index]),
        num_ipus_per_replica=draw(st.sampled_from([1, 2, 4])),
        uniform=len(set(replicas)) == 1,
        num_instances=len(replicas),
        instance_index=index,
        local_instance_index=draw(st.integers(0, index)),
        device_id=draw(st.integers(0, 99)),
        offline=draw(st.booleans()),
        ipu_version=draw(st.none() | st.sampled_from([1, 2, 21])),
        executable_cache_path=draw(st.none() | st.just("/some/where")),
        run_folder=draw(st.none() | st.just("/logs/a run")),
    )


@given(topologies())
def test_what_is_written_is_read_back(topology):
    assert Topology.from_environ(topology.to_environ()) == topology


@given(topologies(), st.data())
def test_published_variables_alone_are_enough_for_uniform_jobs(topology, data):
    environ = topology.to_environ()
    ours = ["POPDIST_NUM_INSTANCES", "POPDIST_INSTANCE_INDEX", "POPDIST_DEVICE_ID"]
    dropped = data.draw(st.lists(st.sampled_from(ours), unique=True))
    for name in dropped:
        del environ[name]
    alone = dropped.count(ours[0]) != dropped.count(ours[1]) and not topology.uniform
    if alone:
        with pytest.raises(ContractError, match="go together"):
            Topology.from_environ(environ)
    else:
        read = Topology.from_environ(environ)
        if topology.uniform:
            assert (read.num_instances, read.instance_index) == (
                topology.num_instances,
                topology.instance_index,
            )
        elif set(dropped) >= set(ours[:2]):
            assert read.num_instances is None


def test_no_variables_mean_one_instance_with_one_replica():
    topology = Topology.from_environ({"HOME": "/root"})
    assert topology == Topology()
    assert not topology.launched
    assert (topology.num_instances, topology.num_total_replicas) == (1, 1)


def test_total_alone_takes_the_published_defaults():
    topology = Topology.from_environ({"POPDIST_NUM_TOTAL_REPLICAS": "8"})
    assert topology.launched
    assert (topology.num_local_replicas, topology.replica_index_offset) == (1, 0)
    assert (topology.num_instances, topology.instance_index) == (8, 0)


def test_device_follows_from_the_local_index_where_the_launcher_does_not_say():
    topology = Topology.from_environ(
        {
            "POPDIST_NUM_TOTAL_REPLICAS": "8",
            "POPDIST_NUM_LOCAL_REPLICAS": "2",
            "POPDIST_REPLICA_INDEX_OFFSET": "6",
            "POPDIST_NUM_IPUS_PER_REPLICA": "4",
            "POPDIST_LOCAL_INSTANCE_INDEX": "3",
        }
    )
    assert topology.device_id == 3 * 2 * 4


MALFORMED = [
    pytest.param(variable, text, id=f"{variable.name}={text}")
    for variable in VARIABLES
    for text in ["", " 1", "-1", "1.0", "one", "0x1", "1" * 10, "\u0661"]
    if variable.accepted != "a path" or not text
]


@pytest.mark.parametrize(("variable", "text"), MALFORMED)
def test_a_malformed_variable_is_named_with_value_and_rule(variable, text):
    with pytest.raises(ContractError) as caught:
        Topology.from_environ({variable.name: text})
    assert caught.value.code == "PD001"
    message = str(caught.value)
    assert variable.name in message
    assert repr(text) in message
    assert variable.accepted in message


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"num_total_replicas": 2, "num_local_replicas": 4}, "must not exceed the total"),
        ({"num_total_replicas": 5, "num_local_replicas": 2}, "must be a multiple"),
        (
            {"num_total_replicas": 4, "num_local_replicas": 2, "replica_index_offset": 1},
            "must be a multiple",
        ),
        ({"num_instances": 2, "instance_index": 2, "uniform": False}, "smaller than"),
        ({"num_instances": 2}, "total / local instances"),
        ({"num_instances": None, "instance_index": 0}, "go together"),
        ({"num_instances": None, "instance_index": None}, "always has both"),
        (
            # Three instances, of which the two others share one replica.
            {
                "num_total_replicas": 3,
                "num_local_replicas": 2,
                "num_instances": 3,
                "uniform": False,
            },
            "cannot be divided over the other",
        ),
        (
            # The first instance does not start at the first replica.
            {
                "num_total_replicas": 3,
                "replica_index_offset": 1,
                "num_local_replicas": 1,
                "num_instances": 2,
                "uniform": False,
            },
            "cannot be divided over the other",
        ),
    ],
)
def test_contradictions_are_refused_by_rule(fields, rule):
    with pytest.raises(ContractError, match=rule) as caught:
        Topology(launched=True, **fields)
    assert caught.value.code == "PD002"
    assert "POPDIST_" in str(caught.value)


@pytest.mark.parametrize(
    "name", [v.name for v in VARIABLES if v.needs_total and v.field != "num_total_replicas"]
)
def test_a_variable_of_a_job_without_the_job_is_refused(name):
    with pytest.raises(ContractError, match="POPDIST_NUM_TOTAL_REPLICAS is not"):
        Topology.from_environ({name: "1"})
