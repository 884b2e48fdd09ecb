"""poprun's partitions and variables with the GPUs of this machine."""

import os
import subprocess
import sys

import torch

import popdist
import popdist.poptorch
from popdist.poprun.partitions.devices import find_cluster
from tests.distributed.jobs import LAUNCHER, run_command, run_job


def uuids():
    said = subprocess.run(
        ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return said.stdout.split()


def place():
    popdist.init()
    chosen = torch.device("cuda", popdist.getDeviceId())
    torch.cuda.set_device(chosen)  # as the documentation says
    return {
        "id": popdist.getDeviceId(),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "count": torch.cuda.device_count(),
        "sum": torch.arange(4, device=chosen).sum().item(),
    }


def test_a_partition_gives_an_instance_its_gpu():
    (answer,) = run_job(place, instances=1, options=["--vipu-partition=mine"])
    assert answer["visible"] in uuids()
    assert (answer["count"], answer["sum"]) == (1, 6)


def test_the_default_cluster_is_the_gpus():
    assert {device.uuid for device in find_cluster(None).devices} == {*uuids()}


def test_more_devices_than_gpus_are_refused():
    count = len(uuids()) + 1
    code, said = run_command(
        [*LAUNCHER, "--vipu-partition=mine", "-np", str(count), sys.executable, "-c", "0"]
    )
    assert code
    assert "PD130" in said
