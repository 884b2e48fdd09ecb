"""A job's programs and what they start know the SDK's names where poprun is told so."""

import sys

from tests.distributed.jobs import LAUNCHER, run_command

PROGRAM = """
import multiprocessing
import popdist

def name(_):
    import popart
    return popart.__name__

if __name__ == "__main__":
    import horovod.popart as hvd
    import popart
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (found,) = pool.map(name, [0])
    print(popdist.getInstanceIndex(), popart.__name__, hvd.__name__, found, flush=True)
"""


def test_every_instance_and_its_workers_know_the_names(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    job = [*LAUNCHER, "-np", "2", "-x", f"PYTHONPATH={tmp_path}", "--sdk-names"]
    code, output = run_command([*job, sys.executable, "train.py"], cwd=tmp_path)
    assert code == 0, output
    found = "popdist_onnx popdist_onnx.horovod popdist_onnx"
    assert sorted(output.splitlines()) == [f"{index} {found}" for index in (0, 1)]


def test_without_the_option_a_program_is_told_of_it(tmp_path):
    (tmp_path / "train.py").write_text("import poptorch")
    code, output = run_command([*LAUNCHER, "-np", "2", sys.executable, "train.py"], cwd=tmp_path)
    assert code == 1
    assert "No module named 'poptorch'" in output
    assert "poprun --sdk-names" in output


def test_every_instance_is_told_the_version_of_its_ipus(tmp_path):
    (tmp_path / "train.py").write_text(
        "import popdist, poptorch\n"
        "found = poptorch.ipuHardwareIsAvailable(), poptorch.ipuHardwareVersion()\n"
        "print(popdist.getInstanceIndex(), *found, flush=True)\n"
    )
    job = [*LAUNCHER, "-np", "2", "--sdk-names"]
    code, output = run_command([*job, "--ipu-version=2", sys.executable, "train.py"], cwd=tmp_path)
    assert code == 0, output
    assert sorted(output.splitlines()) == ["0 True 2", "1 True 2"]
    code, output = run_command([*job, sys.executable, "train.py"], cwd=tmp_path)
    assert code == 1
    assert "poprun --ipu-version 2" in output
