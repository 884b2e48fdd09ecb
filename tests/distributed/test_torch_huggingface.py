"""Hugging Face programs under poprun: the same numbers as under torchrun, and as in one process."""

import json
import sys

import numpy as np
import pytest

from tests.distributed.huggingface import LOOPS, TRAINERS
from tests.distributed.jobs import LAUNCHER, run_command
from tests.distributed.warm import python

PROGRAM = ["-m", "tests.distributed.huggingface"]


def answers_of(command, folder):
    code, output = run_command(command, timeout=240)
    assert code == 0, output
    return [json.loads(part.read_text()) for part in sorted(folder.glob("answer.*.json"))]


@pytest.fixture(scope="module")
def exchanged(tmp_path_factory):
    """The same over popdist's exchange; a warm process would have imported torch before."""
    folder = tmp_path_factory.mktemp("exchanged")
    options = ["-np", "2", "--ddp=popdist", "--timeout=200"]
    return answers_of([*LAUNCHER, *options, sys.executable, *PROGRAM, folder], folder)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What each process came to, by launcher; "alone" is one process without a launcher."""
    program = [*python("torch"), *PROGRAM]
    torchrun = [*python("torch"), "-m", "torch.distributed.run", "--nproc-per-node=2"]
    commands = {
        "poprun": [*LAUNCHER, "-np", "2", "--timeout=200", *program],
        "torchrun": [*torchrun, "--no-python", *program],
        "alone": program,
    }
    found = {}
    for launcher, command in commands.items():
        folder = tmp_path_factory.mktemp(launcher)
        words = [folder, "loops"] if launcher == "alone" else [folder]
        found[launcher] = answers_of([*command, *words], folder)
    assert [len(parts) for parts in found.values()] == [2, 2, 1]
    return found


@pytest.mark.parametrize(
    "name", [*(f"trainer: {n}" for n in TRAINERS), *(f"loop: {n}" for n in LOOPS)]
)
def test_poprun_and_torchrun_come_to_the_same(answers, name):
    first, second = answers["poprun"]
    assert first["processes"] == second["processes"] == 2
    assert first[name]["weights"] == second[name]["weights"]
    assert first[name] == answers["torchrun"][0][name]
    assert second[name] == answers["torchrun"][1][name]


@pytest.mark.parametrize(
    "name", [*(f"trainer: {n}" for n in TRAINERS), *(f"loop: {n}" for n in LOOPS)]
)
def test_popdists_exchange_comes_to_the_same(answers, exchanged, name):
    for ours, theirs in zip(exchanged, answers["torchrun"], strict=True):
        assert ours["popdist exchanges"]
        assert ours[name] == theirs[name]


@pytest.mark.parametrize("name", LOOPS)
def test_loops_train_as_one_process_does(answers, name):
    seen, alone = answers["poprun"][0][f"loop: {name}"], answers["alone"][0][f"loop: {name}"]
    assert seen["metrics"][0] == 11  # no row of the last, uneven batch counts twice
    assert seen["restored"]
    if name != "uneven":  # accelerate repeats rows where there are too few
        np.testing.assert_allclose(seen["weights"], alone["weights"], rtol=0, atol=1e-12)
        np.testing.assert_allclose(seen["losses"], alone["losses"], rtol=0, atol=1e-12)
        assert seen["metrics"] == alone["metrics"]


def test_trainers_count_each_row_once_and_resume_where_they_stood(answers):
    for answer in answers["poprun"]:
        for name in TRAINERS:
            # With dataloader_drop_last, Trainer leaves rows out of evaluation as well.
            counts = (12, 6) if name == "dropped" else (13, 7)
            seen = answer[f"trainer: {name}"]
            assert (seen["evaluated"]["eval_count"], seen["predicted"]) == counts
        saved, resumed = answer["trainer: saved"], answer["trainer: resumed"]
        assert resumed["weights"] == saved["weights"]
        assert resumed["steps"] == saved["steps"]
        stopped = answer["trainer: stopped"]
        assert stopped["steps"] < 6 * saved["steps"] / 2
        losses = [log["eval_loss"] for log in stopped["logs"] if "eval_loss" in log]
        assert stopped["evaluated"]["eval_loss"] == min(losses)
