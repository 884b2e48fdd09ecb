"""What is said about a job that did not end well."""

import signal

import pytest

from popdist.poprun.output.failure_report import failure_report
from popdist.poprun.plan.placement import place
from popdist.poprun.supervisor.outcome import Outcome
from tests.popdist.poprun.plan.test_placement import job

TWO = place(job(2, 2))


def ended(outcome, index, code=0, number=0, tail=b"", lost=""):
    one = outcome.record(index)
    one.pid, one.guard, one.began = 100 + index, 200 + index, "1"
    one.ended, one.code, one.signal, one.tail, one.lost = True, code, number, tail, lost
    return one


def test_a_good_end_needs_no_words():
    outcome = Outcome()
    outcome.mpirun_code = 0
    assert failure_report(outcome, TWO) == ""
    assert outcome.exit_code == 0


def test_an_mpirun_that_does_not_end_makes_no_failure_of_a_good_job():
    outcome = Outcome()
    outcome.mpirun_code, outcome.forced = -signal.SIGKILL, True
    ended(outcome, 0)
    last = ended(outcome, 1)
    assert "mpirun did not end" in failure_report(outcome, TWO)
    assert outcome.exit_code == 0
    last.ended = False
    assert outcome.exit_code == 137
    last.ended, last.code = True, 3
    outcome.first_failure = last
    assert outcome.exit_code == 3
    assert "mpirun" not in failure_report(outcome, TWO)


def test_the_first_failure_is_named_with_its_last_lines_unless_they_were_printed():
    outcome = Outcome()
    outcome.mpirun_code = 1
    ended(outcome, 0, number=signal.SIGTERM)
    outcome.first_failure = ended(outcome, 1, code=3, tail="früher\nlast words\n".encode()[1:])
    assert "words" not in failure_report(outcome, TWO)
    text = failure_report(outcome, TWO, only=0)
    assert "instance 1 on localhost (rank 1, PID 101) ended with exit code 3" in text
    assert "poprun:   last words" in text
    assert text.endswith("exit code 3")
    assert outcome.exit_code == 3


def test_the_users_line_ends_an_error_that_a_library_raised():
    outcome = Outcome()
    frame = (
        'Traceback (most recent call last):\n  File "/home/me/train.py", line 7, in main\n    f()\n'
    )
    library = '  File "/usr/lib/python3.11/json/decoder.py", line 1, in raw_decode\n    raise\n'
    one = outcome.first_failure = ended(outcome, 1, code=1)
    one.tail = f"{frame}{library}ValueError: no\n".encode()
    text = failure_report(outcome, TWO)
    assert "poprun:   at /home/me/train.py, line 7, in main\n" in text
    assert "ValueError" not in text
    text = failure_report(outcome, TWO, only=0)
    assert "poprun:   ValueError: no\npoprun:   at /home/me/train.py, line 7, in main: f()" in text
    one.tail = f"{frame}ValueError: no\n".encode()
    assert "train.py" not in failure_report(outcome, TWO)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("No module named 'tensorflow.python.ipu'", "poprun --sdk-names gives popdist's modules"),
        ("No module named 'popdist'", "/venv/bin/python has no popdist; that of"),
        ("No module named 'popdist.torch'", "import popdist_torch"),
        ("module 'horovod' has no attribute 'torch'", "here/horovod.py hides the package horovod"),
        ("No module named 'horovod.torch'; 'horovod' is not a package", "here/horovod.py hides"),
        ("cannot import name 'optim' from 'horovod' (x)", "here/horovod.py hides"),
        ("module 'torch' has no attribute 'tensr'", ""),
        ("No module named 'tensorflow'", ""),
    ],
)
def test_an_import_that_fails_gets_a_hint(error, hint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "horovod.py").touch()
    outcome = Outcome()
    outcome.first_failure = ended(outcome, 0, code=1, tail=f"ImportError: {error}\n".encode())
    text = failure_report(outcome, TWO, program=("/venv/bin/python", "-u", "here/train.py"))
    assert f"poprun: hint: {hint}" in text if hint else "hint" not in text


@pytest.mark.parametrize(
    ("number", "words"), [(signal.SIGKILL, "memory"), (signal.SIGSEGV, "SIGSEGV")]
)
def test_signals(number, words):
    outcome = Outcome()
    outcome.first_failure = ended(outcome, 0, number=number)
    assert words in failure_report(outcome, TWO)
    assert outcome.exit_code == 128 + number


def test_an_interrupt_comes_before_what_it_caused():
    outcome = Outcome()
    outcome.interrupted = signal.SIGINT
    outcome.first_failure = ended(outcome, 0, number=signal.SIGKILL)
    text = failure_report(outcome, TWO)
    assert "SIGINT" in text
    assert "instance 0 did not end when asked to" in text
    assert outcome.exit_code == 130


def test_mpirun_itself():
    outcome = Outcome()
    outcome.mpirun_code = -signal.SIGKILL
    assert "mpirun was killed" in failure_report(outcome, TWO)
    assert outcome.exit_code == 137
    outcome.mpirun_code = 1
    assert "mpirun ended with exit code 1" in failure_report(outcome, TWO)
    assert outcome.exit_code == 1


def test_an_mpirun_that_ends_well_without_its_instances():
    outcome = Outcome()
    outcome.mpirun_code = 0
    ended(outcome, 0)
    one = outcome.record(1)
    one.pid, one.guard = 101, 201
    assert outcome.exit_code == 1
    assert "no word about an end came from instance 1" in failure_report(outcome, TWO)
