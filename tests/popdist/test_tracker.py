"""Metrics for trackers in a job of one instance, and what is refused."""

import csv
import os

import pytest

import popdist
from popdist.errors import ArgumentError, BackendError


def rows(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return [{name: row[name] for name in row if name != "time"} for row in csv.DictReader(file)]


def test_each_step_is_a_row_at_once_and_a_new_metric_a_column(tmp_path):
    tracker = popdist.track(tmp_path / "new" / "folder")
    assert tracker.log({"loss": 0.5}) == {"loss": 0.5}
    assert rows(tmp_path / "new" / "folder") == [{"step": "1", "loss": "0.5"}]
    tracker.log({"loss": 0.25, "accuracy": 0.75}, step=10)
    tracker.log({"accuracy": 1.0})
    assert rows(tmp_path / "new" / "folder") == [
        {"step": "1", "loss": "0.5", "accuracy": ""},
        {"step": "10", "loss": "0.25", "accuracy": "0.75"},
        {"step": "11", "loss": "", "accuracy": "1.0"},
    ]


def test_a_second_run_adds_rows_and_loses_none(tmp_path):
    for loss in (2.0, 1.0):
        with popdist.track(tmp_path) as tracker:
            tracker.log({"loss": loss, "a, b": loss})
    assert rows(tmp_path) == [
        {"step": "1", "loss": "2.0", "a, b": "2.0"},
        {"step": "1", "loss": "1.0", "a, b": "1.0"},
    ]


def test_a_file_of_the_users_own_columns_keeps_them(tmp_path):
    (tmp_path / "metrics.csv").write_text("epoch,note\n1,mine\n")
    popdist.track(tmp_path).log({"loss": 1.0}, step=3)
    kept, added = rows(tmp_path)
    assert kept == {"epoch": "1", "note": "mine", "step": "", "loss": ""}
    assert (added["epoch"], added["loss"]) == ("", "1.0")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a link to another user")
def test_a_link_that_another_user_has_planted_is_replaced(tmp_path):
    other, planted = tmp_path / "other.csv", tmp_path / "runs" / "metrics.csv"
    other.write_text("mine\n")
    planted.parent.mkdir()
    planted.symlink_to(other)
    os.chown(planted, 12345, 12345, follow_symlinks=False)
    popdist.track(planted.parent).log({"loss": 1.0})
    assert other.read_text() == "mine\n"
    assert [row["loss"] for row in rows(planted.parent)] == ["1.0"]


def test_an_unknown_writer_is_refused_before_a_file_is_made(tmp_path):
    with pytest.raises(ArgumentError, match=r"(?s)track was given a writer.*'mlflow'"):
        popdist.track(tmp_path / "runs", to=["csv", "mlflow"])
    assert not (tmp_path / "runs").exists()


def test_instances_that_nothing_connects_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(BackendError, match=r"hvd.init\(\) before popdist.track"):
        popdist.track(tmp_path)
