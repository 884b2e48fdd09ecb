"""The six-step loop and the transformer under poprun."""

import re

from tests.distributed.jobs import LAUNCHER, ROOT, run_command
from tests.distributed.warm import python


def run(program, instances, replicas, *arguments):
    return run_command(
        [
            *LAUNCHER,
            f"--num-instances={instances}",
            f"--num-replicas={replicas}",
            *python("torch"),
            ROOT / "examples" / program,
            *arguments,
        ],
        timeout=200,
    )


def test_the_six_step_loop_trains_resumes_and_draws_its_losses(tmp_path):
    saved, drawn = tmp_path / "run.pt", tmp_path / "loss.png"
    code, output = run("torch_six_steps.py", 2, 2, "--epochs=1", f"--checkpoint={saved}")
    assert code == 1, output  # it says so where a model is not good yet
    code, output = run(
        "torch_six_steps.py", 2, 2, "--epochs=8", f"--checkpoint={saved}", f"--plot={drawn}"
    )
    assert code == 0, output
    assert "2 rank(s) x 16 samples = global batch 32, resuming after 1 epochs" in output
    assert output.count("trained at") == 1
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_the_transformers_weights_do_not_depend_on_the_layout():
    digests = set()
    for instances in (1, 2):
        code, output = run(
            "torch_transformer.py", instances, 4, "--placement-invariant", "--epochs=4"
        )
        assert code == 0, output
        digests |= set(re.findall("digest of the weights ([0-9a-f]{16})", output))
    assert len(digests) == 1
