"""The MPIJob: the published fields, and the same job."""

import pytest
import yaml

from popdist.errors import UsageError
from popdist.poprun.options.parser import parse
from popdist.poprun.plan.job import make_job
from popdist.poprun.plan.kubernetes import manifest
from popdist.poprun.plan.placement import place

# What Kubeflow's v2beta1 knows, as far as it is used here: field to type, nested.
CONTAINER = {"name": str, "image": str, "command": list}
REPLICAS = {"replicas": int, "restartPolicy": str, "template": {"spec": {"containers": list}}}
SCHEMA = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str},
    "spec": {
        "slotsPerWorker": int,
        "mpiImplementation": str,
        "launcherCreationPolicy": str,
        "runPolicy": {"cleanPodPolicy": str, "backoffLimit": int, "activeDeadlineSeconds": int},
        "mpiReplicaSpecs": {"Launcher": REPLICAS, "Worker": REPLICAS},
    },
}


def emitted(*words, program=("python3", "train.py", "--lr", "0.1"), image="reg/team/popdist:1"):
    options = ["--emit=mpijob", *([f"--emit-image={image}"] if image else []), *words]
    line = parse([*options, *program])
    job = make_job(line, {"PATH": "/nowhere", "A_TOKEN": "x"})
    return yaml.safe_load(manifest(line, job, place(job)))


def check(value, schema):
    assert value.keys() <= schema.keys()
    for key, one in value.items():
        if isinstance(schema[key], dict):
            check(one, schema[key])
        else:
            assert type(one) is schema[key]


def test_fields_and_types_are_those_of_the_operator():
    found = emitted("-np", "4", "--host=a,b", "--timeout=1h")
    check(found, SCHEMA)
    for role in found["spec"]["mpiReplicaSpecs"].values():
        [container] = role["template"]["spec"]["containers"]
        check(container, CONTAINER)
    assert (found["apiVersion"], found["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    assert found["spec"]["mpiImplementation"] == "OpenMPI"
    assert found["spec"]["launcherCreationPolicy"] == "WaitForWorkersReady"


def test_it_is_the_same_job_with_pods_for_hosts():
    found = emitted("-np", "6", "--num-replicas=12", "-H", "a,b,c", "-x", "A=1 '\" 2", "-v")["spec"]
    assert found["slotsPerWorker"] == 2
    launcher, worker = (found["mpiReplicaSpecs"][role] for role in ("Launcher", "Worker"))
    assert (launcher["replicas"], worker["replicas"]) == (1, 3)
    [container] = launcher["template"]["spec"]["containers"]
    assert container["command"][0] == "poprun"
    there = parse(container["command"][1:])
    assert there.program == ("python3", "train.py", "--lr", "0.1")
    assert there.given == {"num-instances", "num-replicas", "env", "verbose"}
    assert (there.values["num-instances"], there.values["num-replicas"]) == (6, 12)
    assert there.values["env"] == ("A=1 '\" 2",)


def test_in_the_pod_hosts_come_from_the_operators_file(tmp_path):
    # As the operator writes it, with names that only the cluster's DNS knows.
    path = tmp_path / "hostfile"
    path.write_text("job-worker-0.job.default.svc slots=2\njob-worker-1.job.default.svc slots=2\n")
    line = parse(["--num-instances=4", "true"])
    job = make_job(line, {"OMPI_MCA_orte_default_hostfile": str(path), "PATH": "/bin"})
    assert [(host.name, host.slots) for host in job.hosts] == [
        ("job-worker-0.job.default.svc", 2), ("job-worker-1.job.default.svc", 2),
    ]  # fmt: skip
    assert [one.host.name[:12] for one in place(job)] == ["job-worker-0"] * 2 + ["job-worker-1"] * 2


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (("python3", "dir/Train_Big.py"), "popdist-train-big"),
        (("echo",), "popdist-echo"),
        (("...",), "popdist"),
    ],
)
def test_names_are_made_for_kubernetes(program, name):
    assert emitted(program=program)["metadata"]["name"] == name
    assert emitted("--emit-name=my-job", program=program)["metadata"]["name"] == "my-job"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--emit-name=My_Job"], "cannot name a job"),
        (["-np", "3", "--host=a,b"], "same number of slots"),
        (["-x", "A_TOKEN=s3cret"], "secret"),
    ],
)
def test_what_cannot_be_written(words, what):
    with pytest.raises(UsageError, match=what) as caught:
        emitted(*words)
    assert caught.value.code == "PD108"
    assert "s3cret" not in str(caught.value)


def test_the_image_is_required():
    with pytest.raises(UsageError, match="--emit-image"):
        emitted(image=None)


def test_a_secret_may_be_forwarded_by_name():
    [container] = emitted("-x", "A_TOKEN")["spec"]["mpiReplicaSpecs"]["Launcher"]["template"][
        "spec"
    ]["containers"]
    assert "--env=A_TOKEN" in container["command"]
