"""Larger PopART programs, with the published imports: they train what one process trains."""

import numpy as np

from tests.programs.launching import LARGER, run

FOUR_REPLICAS = ("--num-instances=2", "--num-replicas=4")


def assert_equal_weights(file, reference):
    with np.load(file) as found, np.load(reference) as expected:
        assert sorted(found) == sorted(expected)
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5)


def test_epochs_with_validation_on_rank_0(enabled, tmp_path):
    program = LARGER / "popart_validation.py"
    job, one = tmp_path / "job", tmp_path / "one"
    job.mkdir()
    one.mkdir()
    ranks, _ = run("horovodrun", program, f"--folder={job}", environment=enabled)
    # Horovod adds the ranks' gradients, each of a mean: alike are twice the rate and the batch.
    twice = ["--batch-size=32", "--learning-rate=0.4"]
    (alone,), _ = run("alone with names", program, f"--folder={one}", *twice)

    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert ranks[0]["digest"] == ranks[1]["digest"]
    assert ranks[0]["losses"] != ranks[1]["losses"]
    mean = np.mean([rank["losses"] for rank in ranks], axis=0)
    np.testing.assert_allclose(mean, alone["losses"], rtol=1e-3)
    assert_equal_weights(job / "weights.npz", one / "weights.npz")

    assert ranks[1]["accuracies"] == []
    assert ranks[0]["accuracies"] == alone["accuracies"]
    assert len(alone["accuracies"]) == 3
    assert alone["accuracies"][-1] > 0.93


def test_a_schedule_with_momentum_and_accumulation_can_be_resumed(tmp_path):
    program = LARGER / "popart_schedule.py"
    whole, half, rest, one = (
        tmp_path / f"{name}.onnx" for name in ("whole", "half", "rest", "one")
    )

    def job(*arguments):
        return run("poprun with names", program, *arguments, options=FOUR_REPLICAS)[0]

    ranks = job(f"--save={whole}")
    first = job(f"--save={half}", "--until=3")
    second = job(f"--resume={half}", f"--save={rest}")
    (alone,), _ = run("alone with names", program, "--micro-batch-size=32", f"--save={one}")

    assert ranks[0]["digest"] == ranks[1]["digest"]
    assert ranks[0]["losses"] != ranks[1]["losses"]
    mean = np.mean([rank["losses"] for rank in ranks], axis=0)
    np.testing.assert_allclose(mean, alone["losses"], rtol=1e-4)
    assert_equal_weights(f"{whole}.npz", f"{one}.npz")
    # Bit for bit, velocities included: they would show in the steps after.
    for rank in range(2):
        assert first[rank]["losses"] + second[rank]["losses"] == ranks[rank]["losses"]
        assert second[rank]["digest"] == ranks[rank]["digest"]
