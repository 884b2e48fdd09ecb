"""The published queries: values, defaults and restrictions."""

import pkgutil
import subprocess
import sys

import pytest

import popdist
from popdist.errors import ArgumentError, NonUniformError
from popdist.popdist_core import Topology

UNIFORM = {
    "num_total_replicas": 8,
    "num_local_replicas": 2,
    "replica_index_offset": 6,
    "num_ipus_per_replica": 4,
    "num_instances": 4,
    "instance_index": 3,
    "local_instance_index": 1,
    "device_id": 8,
}
NON_UNIFORM = {
    "num_total_replicas": 3,
    "num_local_replicas": 1,
    "replica_index_offset": 2,
    "uniform": False,
    "num_instances": 2,
    "instance_index": 1,
}


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in Topology(launched=True, **NON_UNIFORM).to_environ():
        monkeypatch.delenv(name, raising=False)


def test_defaults_without_a_launcher():
    assert popdist.isPopdistEnvSet() is False
    assert popdist.getNumTotalReplicas() == 1
    assert popdist.getNumLocalReplicas() == 1
    assert popdist.getReplicaIndexOffset() == 0
    assert popdist.getNumIpusPerReplica() == 1
    assert popdist.isUniformReplicasPerInstance() is True
    assert popdist.getNumInstances() == 1
    assert popdist.getInstanceIndex() == 0
    assert popdist.getLocalInstanceIndex() == 0
    assert popdist.getDeviceId() == 0
    assert popdist.getDeviceId(2) == 0
    assert popdist.checkNumIpusPerReplica(1) is True
    assert popdist.checkNumIpusPerReplica(2) is False


def test_values_of_a_launched_instance(launched):
    launched(**UNIFORM)
    assert popdist.isPopdistEnvSet() is True
    assert popdist.getNumTotalReplicas() == 8
    assert popdist.getNumLocalReplicas() == 2
    assert popdist.getReplicaIndexOffset() == 6
    assert popdist.getNumIpusPerReplica() == 4
    assert popdist.isUniformReplicasPerInstance() is True
    assert popdist.getNumInstances() == 4
    assert popdist.getInstanceIndex() == 3
    assert popdist.getLocalInstanceIndex() == 1
    assert popdist.checkNumIpusPerReplica(4) is True
    assert popdist.checkNumIpusPerReplica(1) is False


def test_device_id_accepts_both_published_argument_names(launched):
    launched(**UNIFORM)
    assert popdist.getDeviceId() == popdist.getDeviceId(0) == 8
    assert popdist.getDeviceId(ipusPerReplica=4) == popdist.getDeviceId(ipus_per_replica=4) == 8
    with pytest.raises(ArgumentError, match="--ipus-per-replica 2"):
        popdist.getDeviceId(2)


@pytest.mark.parametrize("query", [popdist.getNumInstances, popdist.getInstanceIndex])
def test_uniform_only_queries_refuse_non_uniform_jobs(launched, query):
    launched(**NON_UNIFORM)
    assert popdist.isUniformReplicasPerInstance() is False
    with pytest.raises(NonUniformError, match="PD003"):
        query()
    assert (popdist.topology().num_instances, popdist.topology().instance_index) == (2, 1)


def test_every_published_name_is_there_and_on_popdist_core():
    from inspect import ismodule

    from popdist import popdist_core

    for name in popdist.__all__:
        assert getattr(popdist, name) is not None
    for name in dir(popdist):
        if ismodule(getattr(popdist, name)) or name == "isBackendInitialized":
            continue
        if name.startswith(("get", "is", "check")):
            assert getattr(popdist_core, name) is getattr(popdist, name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'getNumReplicas'"):
        popdist.getNumReplicas  # noqa: B018


def test_a_name_of_other_libraries_is_answered_with_ours():
    with pytest.raises(AttributeError, match=r"'rank'; it is popdist.getInstanceIndex\(\)"):
        popdist.rank()
    for meant in popdist.OTHER_NAMES.values():
        place = meant.removeprefix("import ").partition(",")[0].removesuffix("()")
        assert pkgutil.resolve_name(place) is not None


LAUNCH = "from popdist.poprun.cli import main; main(['true'])"


@pytest.mark.parametrize("statement", ["import popdist", LAUNCH])
def test_importing_loads_no_framework_and_nothing_slow(statement):
    # Sizes of these imports are what keeps `import popdist` and the launcher fast.
    heavy = ["torch", "tensorflow", "onnx", "onnxruntime", "numpy", "horovod", "typing", "inspect"]
    heavy += ["contextlib", "re", "subprocess", "dataclasses", "importlib.util"]
    code = f"import sys; old = set(sys.modules); {statement}; print(*(set(sys.modules) - old))"
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert any(name.startswith("popdist") for name in loaded)
    assert not set(heavy) & set(loaded)
