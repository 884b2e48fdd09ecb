"""The program of the TensorFlow page runs as it is printed."""

import re
import sys

from tests.distributed.jobs import LAUNCHER, ROOT, run_command


def test_the_keras_program_trains_in_two_instances(tmp_path):
    page = (ROOT / "docs" / "tensorflow.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "train.py"
    path.write_text(program + "print(hash(model.get_weights()[0].tobytes()))\n")
    code, output = run_command(
        [*LAUNCHER, "--num-instances=2", "--num-replicas=4", sys.executable, path],
        env={"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONHASHSEED": "0"},
    )
    assert code == 0, output
    first, second = (line for line in output.splitlines() if line.lstrip("-").isdigit())
    assert first == second
