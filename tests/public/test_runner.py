"""The runner itself, on small programs of ours: public ones are run by ``make test-public``."""

import sys

import pytest

from tests.public import inventory, manifest, page, suites, verdicts
from tests.public.__main__ import examine, main
from tests.public.manifest import Manifest, Program
from tests.public.running import Run

TRAIN = """
import sys
import poptorch, torch

class WithLoss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(2, 1)

    def forward(self, x, y):
        return poptorch.identity_loss(((self.model(x) - y) ** 2).mean(), "none")

torch.manual_seed(1)
model = WithLoss()
options = poptorch.Options()
index, count = options.Distributed.processId, options.Distributed.numProcesses
optimizer = poptorch.optim.SGD(model.parameters(), lr=float(open("rate.txt").read()))
training = poptorch.trainingModel(model, options, optimizer=optimizer)
for _ in range(3):
    x, y = torch.randn(8, 2), torch.randn(8, 1)
    training(*(part.chunk(count)[index].contiguous() for part in (x, y)))
"""


@pytest.fixture
def sources(tmp_path):
    """A checkout with a program that trains, and one that stops."""
    folder = tmp_path / "sources" / "us" / "ours" / "v1" / "program"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    (folder / "rate.txt").write_text("0.1")
    (folder / "stop.py").write_text('raise RuntimeError("as planned")\n')
    return tmp_path / "sources"


@pytest.fixture(autouse=True)
def room(monkeypatch, tmp_path):
    monkeypatch.setattr("tests.public.__main__.BUILD", tmp_path / "build")


def record_of(sources, *command, **changes):
    program = Program("program", "us/ours", "v1", command, **changes)
    return examine(program, Manifest("ours", "Ours", {}, (program,)), sources)


def test_a_program_that_trains_has_equal_parameters_and_the_gradients_of_one_process(sources):
    record = record_of(sources, "train.py")
    assert record["verdict"] == "trains", record
    assert record["compared"]["equal"] is True
    assert record["compared"]["distance"] <= 1e-5
    assert record["predicted"] == "fine"
    alone, job = record["runs"]
    assert len(alone["ranks"]) == 1
    assert [rank["rank"] for rank in job["ranks"]] == [0, 1]
    assert alone["ranks"][0]["updates"] == job["ranks"][1]["updates"] == [3]


def test_a_program_whose_data_cannot_be_divided_runs_in_one_process(sources):
    record = record_of(sources, "train.py", divides=False, reason="one graph")
    assert (record["verdict"], record["reason"]) == ("trains alone", "one graph")
    assert [run["instances"] for run in record["runs"]] == [1]


def test_a_program_that_changes_nothing_does_not_train(sources):
    (sources / "us" / "ours" / "v1" / "program" / "rate.txt").write_text("0")
    record = record_of(sources, "train.py")
    assert (record["verdict"], record["reason"]) == ("differs", "the parameters did not change")


def test_a_program_that_stops_has_its_own_error_as_the_reason(sources):
    record = record_of(sources, "stop.py")
    assert record["verdict"] == "stops"
    assert record["reason"] == "one instance: RuntimeError: as planned"


def test_a_program_that_does_not_end_in_time_keeps_its_result(sources, monkeypatch, tmp_path):
    folder = sources / "us" / "ours" / "v1" / "program"
    (folder / "wait.py").write_text("import time; time.sleep(60)\n")
    program = Program("program", "us/ours", "v1", ("wait.py",), limit=1)
    monkeypatch.setattr(page, "SEEN", tmp_path)
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(manifest, "read_all", lambda: [Manifest("ours", "Ours", {}, (program,))])
    monkeypatch.setattr(sys, "argv", ["tests.public", str(sources)])
    for before in ({}, {program.key: {"verdict": "trains", "predicted": "fine"}}):
        page.keep("ours", before)
        assert main() == bool(before)
        found = page.recorded("ours")[program.key]
        assert found["verdict"] == ("trains" if before else "not run")
    assert record_of(sources, "wait.py", limit=1)["reason"] == "one instance: no end within 1 s"


def test_a_program_without_a_command_is_not_run(sources):
    record = record_of(sources, reason="it is a web page")
    assert (record["verdict"], record["reason"]) == ("not run", "it is a web page")


SHORT = """
import numpy as np, tensorflow as tf

(images, labels), _ = tf.keras.datasets.mnist.load_data()
assert len(images) == 64, len(images)
model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)])
model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices((images / 255, np.eye(10)[labels])).repeat().batch(8)
model.fit(data, steps_per_epoch=100, epochs=5)
assert model.optimizer.iterations == 3, model.optimizer.iterations
"""


def test_a_program_without_options_is_shortened(sources):
    (sources / "us" / "ours" / "v1" / "program" / "short.py").write_text(SHORT)
    record = record_of(sources, "short.py", rows=64, steps=3, trains=False)
    assert record["verdict"] == "runs", record


def rank(number, digest="a", losses=(1.0,), finite=True):
    return {
        "rank": number, "updates": [len(losses)], "losses": list(losses),
        "digests": [digest], "finite": finite, "moved": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "reason"),
    [
        ([rank(0), rank(1, "b")], "the instances have different parameters"),
        ([rank(0)], "1 of 2 instances trained"),
        ([rank(0, finite=False), rank(1, finite=False)], "the parameters are not finite"),
        ([rank(0), rank(1, losses=(1.0, 1.0))], "the instances made different numbers of calls"),
    ],
)
def test_runs_that_end_well_can_still_differ(ranks, reason):
    program = Program("program", "us/ours", "v1", ("train.py",))
    record = verdicts.judge(program, [Run(1, 0, "", [rank(0)]), Run(2, 0, "", ranks)])
    assert record["verdict"] == "differs"
    assert record["reason"].startswith(reason)


def test_what_trains_is_equal_to_one_process_or_says_why_not():
    unexplained = {
        program.key: found["why"]
        for file in manifest.read_all()
        for program in file.programs
        if (found := page.recorded(file.name).get(program.key, {}).get("compared"))
        and not found["equal"]
        and not program.differs
    }
    assert not unexplained


def test_the_page_is_made_from_the_manifests_and_the_recorded_results():
    assert page.PAGE.read_text() == page.text(), f"{sys.executable} -m tests.public.page"


@pytest.mark.parametrize("name", [file.name for file in manifest.read_all()])
def test_the_check_predicts_what_was_seen(name):
    wrong = {
        key: (record["predicted"], record["verdict"])
        for key, record in page.recorded(name).items()
        if record["verdict"] != "not run"
        and (record["predicted"] == "fine") != (record["verdict"] in page.GOOD)
    }
    assert not wrong


SUITE = """
import os, pytest, popart

def test_right(): pass
def test_wrong(): assert popart.Builder is None, "as planned"
def test_compiler(): raise RuntimeError("no graph of the compiler")
@pytest.mark.skip("not here")
def test_skipped(): pass
@pytest.mark.xfail
def test_expected(): assert False
def test_crash(): os._exit(3)
def test_after(): pass
"""


def test_a_suite_is_counted_although_a_test_ends_its_process(sources, tmp_path):
    (sources / "us" / "ours" / "v1" / "program" / "some_test.py").write_text(SUITE)
    device = {"test_comp.*graph of the compiler": "the compiler"}
    suite = suites.Suite("us/ours", "v1", "program", ("*_test.py",), device=device)
    assert suite.paths(sources) == ["some_test.py"]
    record = suites.run(suite, "some_test.py", sources, tmp_path / "build")
    assert [record[kind] for kind in suites.KINDS] == [2, 3, 1, 1]
    assert record["reasons"] == {"the compiler": 1}
    assert list(record["failures"]) == [
        f"some_test.py::test_{name}" for name in ("wrong", "crash", "after")
    ]
    assert record["failures"]["some_test.py::test_wrong"].startswith("AssertionError: as planned")


RANKS = """
import os, pytest

def test_both(): pass
def test_one(): assert os.environ["OMPI_COMM_WORLD_RANK"] == "0"
def test_skipped_once():
    if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        pytest.skip("on one rank")
"""


def test_a_suite_in_several_processes_passes_where_all_pass(sources, tmp_path):
    (sources / "us" / "ours" / "v1" / "program" / "some_test.py").write_text(RANKS)
    launcher = f"{sys.executable} -m popdist.poprun -np 2"
    command = ("-m", "pytest", "-q")
    suite = suites.Suite(
        "us/ours", "v1", "program", ("*_test.py",), command=command, launcher=launcher
    )
    record = suites.run(suite, "some_test.py", sources, tmp_path / "build")
    assert [record[kind] for kind in suites.KINDS] == [1, 2, 0, 0]
    assert record["failures"]["some_test.py::test_skipped_once"] == "by rank: passed, skipped"


def test_a_suite_can_be_copied_without_the_implementation_beside_it(sources):
    folder = sources / "us" / "ours" / "v1" / "program"
    (folder / "some_test.py").write_text("")
    (folder / "layers").mkdir()
    names = ["__init__.py", "layers", "layers.py", "some_test.py"]
    suite = suites.Suite("us/ours", "v1", "program", ("*_test.py",), copied=("*_test.py",))
    assert suite.ignored(str(folder), names) == ["__init__.py", "layers.py"]
    assert suites.Suite("us/ours", "v1", "program", ()).ignored(str(folder), names) == []


def test_the_page_of_suites_is_made_from_the_recorded_results():
    assert suites.PAGE.read_text() == suites.text(), f"{sys.executable} -m tests.public.suites"


def test_a_row_can_be_that_of_another_tag_with_changes(tmp_path):
    file = tmp_path / "ours.toml"
    file.write_text(
        """title = "Ours"
        [[sources]]
        repository = "us/ours"
        tag = "v2"
        programs = [{ name = "new", command = ["train.py"], poprun = ["--ipus-per-replica=2"] }]
        [[sources]]
        repository = "us/ours"
        tag = "v1"
        programs = [{ name = "old", as = "us/ours@v2/new", seed = 3 }]
        """
    )
    new, old = manifest.read(file).programs
    assert (old.key, old.place, old.seed) == ("us/ours@v1/old", "old", 3)
    assert (old.command, old.poprun, new.seed) == (new.command, new.poprun, None)


def test_folders_of_programs_without_a_row_are_listed(sources):
    checkout = sources / "us" / "ours" / "v1"
    files = {
        "program/more": "poptorch",
        "other": "popxl.ops",
        "tests": "poptorch",
        "plain": "torch",
    }
    for folder, module in files.items():
        (checkout / folder).mkdir()
        (checkout / folder / "code.py").write_text(f"import os\nimport {module}\n")
    rows = [Program("program", "us/ours", "v1"), Program("absent", "us/theirs", "v1")]
    assert [*inventory.without_a_row(rows, sources)] == ["us/ours/v1/other"]


def test_each_record_belongs_to_a_program():
    for file in manifest.read_all():
        assert set(page.recorded(file.name)) <= {program.key for program in file.programs}
