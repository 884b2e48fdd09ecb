import copy
import subprocess
import sys
import textwrap

import pytest

import popdist
import popdist.poptorch
import popdist_torch

BLOCKED = {
    "useIpuId": lambda options: options.useIpuId,
    "replicationFactor": lambda options: options.replicationFactor,
    "Distributed.disable": lambda options: options.Distributed.disable,
    "Distributed.setEnvVarNames": lambda options: options.Distributed.setEnvVarNames,
    "Distributed.configureProcessId": lambda options: options.Distributed.configureProcessId,
}


def test_without_a_launcher_there_is_one_process_with_one_replica():
    options = popdist.poptorch.Options()
    assert isinstance(options, popdist_torch.Options)
    assert options.Distributed.processId == 0
    assert options.Distributed.numProcesses == 1
    assert options.replication_factor == 1


@pytest.mark.parametrize("name", BLOCKED)
@pytest.mark.parametrize("arguments", [(), (1,), (1, 2)])
def test_what_the_launcher_decides_cannot_be_called(name, arguments):
    options = popdist.poptorch.Options()
    with pytest.raises(RuntimeError, match=f"Cannot call `{name}` with popdist.poptorch.Options"):
        BLOCKED[name](options)(*arguments)


def test_blocked_calls_stay_blocked_in_copies():
    options = copy.deepcopy(popdist.poptorch.Options())
    with pytest.raises(RuntimeError, match="Cannot call"):
        options.Distributed.disable()


def test_the_topology_sets_replicas_and_processes(launched):
    launched(
        num_total_replicas=8,
        num_local_replicas=2,
        replica_index_offset=6,
        num_instances=4,
        instance_index=3,
        num_ipus_per_replica=2,
        local_instance_index=1,
        device_id=4,
    )
    for options in (
        popdist.poptorch.Options(),
        popdist.poptorch.Options(2),
        popdist.poptorch.Options(ipus_per_replica=2),
    ):
        assert options.replication_factor == 2
        assert (options.Distributed.processId, options.Distributed.numProcesses) == (3, 4)
        assert options.placement.first_replica == 6
        assert options.ipu_id == 4


def test_another_number_of_devices_per_replica_is_an_error(launched):
    launched(num_total_replicas=2, num_local_replicas=2)
    with pytest.raises(popdist.PopdistError, match="PD004"):
        popdist.poptorch.Options(4)


def test_instances_may_differ_in_their_number_of_replicas(launched):
    launched(
        num_total_replicas=3,
        num_local_replicas=1,
        replica_index_offset=2,
        uniform=False,
        num_instances=2,
        instance_index=1,
    )
    placement = popdist.poptorch.Options().placement
    assert (placement.first_replica, placement.local_replicas) == (2, 1)
    assert (placement.total_replicas, placement.num_processes) == (3, 2)


def test_an_offline_job_never_attaches(launched):
    launched(offline=True)
    options = popdist.poptorch.Options()
    assert options.connection_type == popdist_torch.ConnectionType.Never
    assert not options.exists("ipu_id")


def test_replicas_that_were_assigned_past_the_launcher_are_noticed(launched):
    launched(num_total_replicas=4, num_local_replicas=2, num_instances=2, instance_index=0)
    options = popdist.poptorch.Options()
    options.replication_factor = 4
    with pytest.raises(RuntimeError, match="another number of replicas"):
        popdist_torch.DataLoader(options, range(100))


def test_the_launcher_says_where_compiled_programs_go(launched):
    launched(executable_cache_path="/cache")
    assert popdist.poptorch.Options().cachePath == "/cache"


def test_to_dict_leaves_freezing_alone():
    options = popdist.poptorch.Options()
    options.outputMode(popdist_torch.OutputMode.All)
    thawed = options.toDict()
    assert thawed["ipu_id"] == 0
    options.deviceIterations(2)
    options._freeze()
    assert options.toDict() == {**thawed, "device_iterations": 2}
    with pytest.raises(AttributeError, match="frozen"):
        options.deviceIterations(3)


def run(program, *, path=()):
    code = "import sys\n" + "".join(f"sys.path.insert(0, {str(p)!r})\n" for p in path)
    done = subprocess.run(
        [sys.executable, "-c", code + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_door_opens_the_whole_package_and_the_package_the_door():
    run(
        "import popdist.poptorch; popdist.poptorch.Options(); assert popdist.getNumInstances() == 1"
    )
    run("import popdist; popdist.poptorch.Options()")


def test_the_door_loads_no_other_framework():
    run(
        """
        import popdist.poptorch
        assert not {"tensorflow", "onnx", "onnxruntime", "horovod"} & set(sys.modules)
        """
    )


REAL_POPTORCH = """
    import enum

    class ConnectionType(enum.Enum):
        Always, OnDemand, Never = range(3)

    class _options:
        class _DistributedOptions:
            def configureProcessId(self, process_id, num_processes):
                self.place = (process_id, num_processes)
            def disable(self):
                self.place = (0, 1)

    options = _options

    class Options:
        def __init__(self):
            self.Distributed = options._DistributedOptions()
        def replicationFactor(self, n):
            self.factor = n
        def useIpuId(self, n):
            self.device = n
        def connectionType(self, kind):
            self.kind = kind
"""


def test_where_the_real_poptorch_is_installed_its_options_are_the_base(tmp_path):
    (tmp_path / "poptorch.py").write_text(textwrap.dedent(REAL_POPTORCH))
    run(
        """
        import poptorch
        import popdist.poptorch
        options = popdist.poptorch.Options()
        assert isinstance(options, poptorch.Options)
        assert (options.factor, options.device) == (1, 0)
        assert options.Distributed.place == (0, 1)
        for call in (options.replicationFactor, options.Distributed.disable):
            try:
                call(1)
            except RuntimeError as error:
                assert "Cannot call" in str(error)
            else:
                raise SystemExit("not blocked")
        assert "popdist_torch" not in sys.modules
        """,
        path=[tmp_path],
    )
