"""What travels, and how; each pickle is read by a Python that knows nothing of this one."""

import pickle
import subprocess
import sys
import types
from pathlib import Path

import pytest

from popdist.errors import ArgumentError, ContractError, PopdistError
from popdist.runner import pickles
from popdist.runner.caller import JobError

ROOT = str(Path(__file__).parents[3])
READ = """
import sys
sys.path.insert(0, {root!r})
from popdist.runner.pickles import load
import pickle
from popdist.runner.streams import Stream
about, *call = [Stream([data]) for data in pickle.load(sys.stdin.buffer)]
sys.path[:0] = load([about])["path"]
function, args, kwargs = load(call)
print(function(*args, **kwargs))
"""


def called_elsewhere(function, *args, **kwargs):
    program = [sys.executable, "-c", READ.format(root=ROOT)]
    parts = pickles.pack(function, args, kwargs)
    packed = pickle.dumps([part.read() for part in parts])
    done = subprocess.run(program, input=packed, stdout=subprocess.PIPE, check=True, cwd="/")
    return done.stdout.decode().strip()


def plus(one, two=0):
    return one + two


def test_functions_of_modules_and_closures_travel():
    assert called_elsewhere(divmod, 7, 2) == "(3, 1)"
    assert called_elsewhere(plus, 1, two=2) == "3"
    factor = 5
    assert called_elsewhere(lambda x: x * factor, 3) == "15"


def test_a_module_that_cannot_be_imported_elsewhere_travels_whole(monkeypatch):
    module = types.ModuleType("made_by_exec")
    exec("def shout(x):\n    return word() + x\ndef word():\n    return 'hey '", module.__dict__)  # noqa: S102 - as notebooks' and templates' modules are made
    monkeypatch.setitem(sys.modules, "made_by_exec", module)
    assert called_elsewhere(module.shout, "you") == "hey you"


def test_without_cloudpickle_importable_names_still_travel(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert called_elsewhere(plus, 1, two=2) == "3"
    function = types.FunctionType(plus.__code__, {}, "plus")
    function.__module__ = "__main__"
    with pytest.raises(ArgumentError, match="PD112") as raised:
        pickles.dump(function)
    assert "pip install cloudpickle" in str(raised.value)


@pytest.mark.parametrize(
    "error",
    [
        PopdistError("PD004", "no", value=3, accepted="4", hint="5"),
        ContractError("PD001", "bad"),
        JobError("PD113", "instance 1", exit_code=3, instance=1, traceback="Traceback"),
    ],
)
def test_our_errors_travel_with_all_they_say(error):
    copy = pickles.load(pickles.dump(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__
