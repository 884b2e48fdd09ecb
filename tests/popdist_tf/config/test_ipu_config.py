import copy
import json
import warnings
from dataclasses import replace

import pytest
import tensorflow as tf

import popdist
import popdist.tensorflow
from popdist_tf import ipu
from popdist_tf.config import legacy
from popdist_tf.errors import ConfigConflictError, ConfigError, ConfigTypeError
from popdist_tf.ipu.config import IPUConfig, SchedulingAlgorithm, configure_ipu_system
from popdist_tf.strategies.devices import note_selected


def test_nested_attributes_are_set_and_printed():
    config = IPUConfig()
    config.matmuls.clear_pass_type = True
    config.scheduling.algorithm = SchedulingAlgorithm.SHORTEST_PATH
    config.floating_point_behaviour.esr = True
    assert config.attributes()["matmuls.clear_pass_type"] is True
    assert "scheduling.algorithm = <SchedulingAlgorithm.SHORTEST_PATH" in repr(config)


def test_a_configuration_travels_as_a_dict_or_as_json():
    config = IPUConfig()
    config.auto_select_ipus = [1, 2]
    config.matmuls.poplar_options = {"availableMemoryProportion": "0.1"}
    config.scheduling.algorithm = SchedulingAlgorithm.SHORTEST_PATH
    values = json.loads(config.to_json())
    assert values == config.to_dict()
    assert values["auto_select_ipus"] == [1, 2]
    assert values["scheduling.algorithm"] == 4  # the published number
    assert config.matmuls.to_dict() == {
        "matmuls.clear_pass_type": False,
        "matmuls.poplar_options": {"availableMemoryProportion": "0.1"},
    }
    other = IPUConfig()
    other.allow_recompute = True  # which the dict below does not have
    del values["allow_recompute"]
    other.from_json(json.dumps(values))
    assert other.scheduling.algorithm is SchedulingAlgorithm.SHORTEST_PATH
    assert other.attributes() == config.attributes() | {"allow_recompute": True}
    with pytest.raises(ConfigTypeError, match="wrong type"):
        other.from_dict({"allow_recompute": 1})


def test_attributes_have_metadata():
    config = IPUConfig()
    found = config.get_attribute_metadata("ipu_model.version")
    assert (found.name, found.default, found.type, found.actual_type) == (
        "ipu_model.version",
        "ipu2",
        "str",
        str,
    )
    assert not found.deprecated
    found.check_type("ipu1")
    with pytest.raises(TypeError, match=r"ipu_model\.version was assigned a value"):
        found.check_type(1)
    group = config.norms.get_attribute_metadata("experimental")
    assert (group.name, group.default, group.type) == ("norms.experimental", None, None)
    for name in ("matmul", "matmuls.none", "allow_recompute.more"):
        with pytest.raises(ValueError, match=f"Could not get attribute metadata for '{name}'"):
            config.get_attribute_metadata(name)


@pytest.mark.parametrize(
    ("path", "suggestion"),
    [("auto_select_ipu", "IPUConfig.auto_select_ipus"), ("matmul", "IPUConfig.matmuls")],
)
def test_an_unknown_attribute_suggests_a_known_one(path, suggestion):
    config = IPUConfig()
    with pytest.raises(ConfigError, match=f"did you mean {suggestion}"):
        setattr(config, path, 1)
    with pytest.raises(ValueError, match=f"did you mean {suggestion}"):
        getattr(config, path)


def test_a_nested_attribute_is_named_with_its_path():
    with pytest.raises(ConfigError, match=r"IPUConfig\.norms has no attribute 'use_stable'"):
        IPUConfig().norms.use_stable = True


def test_a_category_cannot_be_assigned():
    with pytest.raises(ConfigError, match="is a category of attributes"):
        IPUConfig().matmuls = {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("allow_recompute", 1),
        ("auto_select_ipus", "1"),
        ("auto_select_ipus", True),
        ("select_ipus", [0, "1"]),
        ("selection_order", "AUTO"),
    ],
)
def test_a_wrong_type_is_refused(name, value):
    with pytest.raises(ConfigTypeError, match="wrong type") as caught:
        setattr(IPUConfig(), name, value)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("value", [2, [1, 1], (2,)])
def test_devices_are_selected_by_number_or_by_list(value):
    config = IPUConfig()
    config.auto_select_ipus = value
    config.check()
    assert config.num_devices() == 2


def test_contradictions_are_found_when_the_configuration_takes_effect():
    both = IPUConfig()
    both.auto_select_ipus, both.select_ipus = 1, [0]
    with pytest.raises(ConfigConflictError, match="both auto_select_ipus and select_ipus"):
        both.configure_ipu_system()
    twice = IPUConfig()
    twice.select_ipus = [0, 0]
    with pytest.raises(ConfigError, match="names a device twice"):
        configure_ipu_system(twice)
    outside = IPUConfig()
    outside.experimental.multi_replica_distribution.process_count = 2
    outside.experimental.multi_replica_distribution.process_index = 2
    with pytest.raises(ConfigError, match="process_index"):
        configure_ipu_system(outside)
    with pytest.raises(ConfigTypeError, match="not a configuration"):
        configure_ipu_system({"auto_select_ipus": 1})


def test_copies_are_independent():
    config = IPUConfig()
    other = copy.deepcopy(config)
    other.matmuls.poplar_options["a"] = "b"
    assert config.matmuls.poplar_options == {}
    assert IPUConfig().matmuls.poplar_options == {}


def test_set_ipu_config_writes_this_instance_and_returns_the_configuration(monkeypatch):
    for name, value in {
        "NUM_TOTAL_REPLICAS": 4,
        "NUM_LOCAL_REPLICAS": 2,
        "INSTANCE_INDEX": 1,
    }.items():
        monkeypatch.setenv(f"POPDIST_{name}", str(value))
    monkeypatch.setenv("POPDIST_REPLICA_INDEX_OFFSET", "2")
    monkeypatch.setenv("POPDIST_NUM_IPUS_PER_REPLICA", "1")
    monkeypatch.setenv("POPDIST_IS_UNIFORM_REPLICAS_PER_INSTANCE", "1")
    config = IPUConfig()
    assert popdist.tensorflow.set_ipu_config(config, ipus_per_replica=1) is config
    distribution = config.experimental.multi_replica_distribution
    assert (distribution.process_count, distribution.process_index) == (2, 1)
    assert len(config.select_ipus) == 1

    untouched = popdist.tensorflow.set_ipu_config(IPUConfig(), 1, configure_device=False)
    assert untouched.select_ipus == []

    old = popdist.tensorflow.set_ipu_config(legacy.create_ipu_config())
    assert (old.multi_replica_process_count, old.multi_replica_process_index) == (2, 1)

    with pytest.raises(ConfigConflictError, match="poprun --ipus-per-replica 2"):
        popdist.tensorflow.set_ipu_config(IPUConfig(), ipus_per_replica=2)
    with pytest.raises(ConfigTypeError):
        popdist.tensorflow.set_ipu_config(None)
    for wrong in (0, -1, "1", 1.0):
        with pytest.raises(ConfigTypeError, match="ipus_per_replica of set_ipu_config"):
            popdist.tensorflow.set_ipu_config(IPUConfig(), wrong)


def test_old_options_select_devices_once():
    options = legacy.auto_select_ipus(legacy.create_ipu_config(profiling=True), [1, 2])
    assert options.num_devices() == 3
    with pytest.raises(ConfigConflictError, match="selected already"):
        legacy.select_ipus(options, [0])
    with pytest.raises(ConfigTypeError):
        legacy.select_ipus(legacy.create_ipu_config(), 0)
    with pytest.raises(ConfigError):
        legacy.select_ipus(legacy.create_ipu_config(), [1, 1])


@pytest.mark.parametrize(
    ("devices", "replicas", "ipus_per_replica", "wanted"),
    [(4, 1, 1, 4), (4, 2, 1, 4), (4, 1, 2, 2), (1, 1, 1, None), (2, 2, 1, None), (2, 1, 2, None)],
)
def test_devices_for_more_replicas_than_there_are(
    monkeypatch, devices, replicas, ipus_per_replica, wanted
):
    here = replace(popdist.topology(), num_local_replicas=replicas, num_total_replicas=replicas)
    monkeypatch.setattr(popdist, "topology", lambda: here)
    monkeypatch.setattr(popdist, "getNumIpusPerReplica", lambda: ipus_per_replica)
    config = IPUConfig()
    config.auto_select_ipus = devices
    try:
        config.configure_ipu_system()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            total = ipu.ops.cross_replica_ops.cross_replica_sum(tf.constant(2.0))
    finally:
        note_selected(1)
    assert float(total) == 2
    expected = [] if wanted is None else [f"--num-replicas {wanted}"]
    assert [word for one in caught for word in expected if word in str(one.message)] == expected
    assert sum("PD419" in str(one.message) for one in caught) == len(expected)


def test_a_model_that_is_trained_on_fewer_replicas_than_selected_devices():
    config = IPUConfig()
    config.auto_select_ipus = 3
    try:
        config.configure_ipu_system()
        with ipu.ipu_strategy.IPUStrategy().scope():
            model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            with pytest.warns(UserWarning, match=r"PD419.*asks for 3 replicas, and this process"):
                model.fit(tf.zeros([4, 2]), tf.zeros([4, 1]), verbose=0)
    finally:
        note_selected(1)
