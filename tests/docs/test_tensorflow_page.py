"""The programs of the TensorFlow page run as they are printed."""

import re
import sys

import pytest

from tests.distributed.jobs import LAUNCHER, ROOT, run_command


@pytest.mark.parametrize(("index", "replicas"), [(0, 4), (1, 2)])
def test_the_keras_programs_train_in_two_instances(tmp_path, index, replicas):
    page = (ROOT / "docs" / "tensorflow.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(programs) == 2
    program = programs[index]
    path = tmp_path / "train.py"
    path.write_text(program + "print(hash(model.get_weights()[0].tobytes()))\n")
    code, output = run_command(
        [*LAUNCHER, "--num-instances=2", f"--num-replicas={replicas}", sys.executable, path],
        env={"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONHASHSEED": "0"},
    )
    assert code == 0, output
    first, second = (line for line in output.splitlines() if line.lstrip("-").isdigit())
    assert first == second
