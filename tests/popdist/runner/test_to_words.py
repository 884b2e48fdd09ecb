from pathlib import Path

import pytest

import popdist
from popdist.errors import CODES, UsageError
from popdist.poprun.options.parser import parse
from popdist.poprun.options.table import OPTIONS
from popdist.runner.caller import JobError, run, to_words

TEXTS = {"help", "version", "version-format", "completion", "export-config", "overwrite-config",
         "emit", "emit-image", "emit-name", "compare-alone", "nnodes", "node-rank", "master-addr",
         "master-port"}  # fmt: skip
VALUES = {
    "n": 3, "port": 8080, "seconds": 1.5, "name": "p1", "hosts": ["a", "b"], "yes|no": True,
    "file": Path("f"), "dir": Path("d"), "arg": "-x A=1", "": True,
}  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_of_a_job_is_a_keyword(option):
    keyword = option.name.replace("-", "_")
    value = option.kind.choices[0] if option.kind.choices else VALUES[option.kind.metavar]
    if option.kind.metavar == "yes|no":
        value = True
    if option.name in TEXTS:
        with pytest.raises(UsageError, match="PD111") as raised:
            to_words({keyword: value})
        assert "use poprun itself" in str(raised.value)
        return
    words = to_words({keyword: value})
    if option.repeatable:
        assert to_words({keyword: [value, value]}) == words * 2
    if option.name != "config":  # which would be read
        assert option.name in parse(words).given


@pytest.mark.parametrize("function", ["train.py", None, 3])
def test_what_cannot_be_called_is_refused_before_a_job_starts(function):
    with pytest.raises(UsageError, match="PD111") as raised:
        run(function, num_instances=2)
    assert "calls a function" in str(raised.value)
    assert "poprun -np 2" in str(raised.value)


def test_values_are_written_as_they_are_typed():
    words = to_words(
        {"num_instances": 2, "timeout": 0.5, "tag_output": False, "host": ("a", "b"), "verbose": 2,
         "env": {"A": "1", "B": "x y"}, "log_dir": None, "sdk_names": False}
    )  # fmt: skip
    assert words == [
        "--num-instances=2", "--timeout=0.5", "--tag-output=no", "--host=a,b", "--verbose",
        "--verbose", "--env=A=1", "--env=B=x y",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"num_instance": 2}, "num_instances"),
        ({"learning_rate": 2}, "args and kwargs"),
        ({"num-instances": 2}, "num_instances"),
        ({"np": 2}, "did you mean num_instances?"),
        ({"timeout": object()}, "a text, a number"),
        ({"sdk_names": "yes"}, "True or False"),
        ({"num_instances": [1, 2]}, "a text, a number"),
    ],
)
def test_a_wrong_keyword_or_value_is_named(options, hint):
    with pytest.raises(UsageError, match="PD111") as raised:
        to_words(options)
    assert hint in str(raised.value)


def test_contradictions_are_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr(
        "popdist.runner.caller.run_process", lambda *_, **__: pytest.fail("started")
    )
    with pytest.raises(UsageError, match="PD101"):
        run(print, num_instances=3, num_replicas=2)
    with pytest.raises(UsageError, match="PD100"):
        run(print, num_instances=0)
    with pytest.raises(popdist.PopdistError, match="PD112") as raised:
        run(print, args=((one for one in "ab"),))
    assert "generator" in str(raised.value)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"args": 3}, "args=(3,)"),
        ({"args": "ab"}, "args=('ab',)"),
        ({"kwargs": ["x"]}, "kwargs={"),
    ],
)
def test_arguments_of_the_function_need_their_form(given, hint):
    with pytest.raises(UsageError, match="PD111") as raised:
        run(print, **given)
    assert hint in raised.value.hint


def test_it_is_published_with_its_error():
    assert popdist.run is run
    assert popdist.JobError is JobError
    assert {"PD111", "PD112", "PD113", "PD114", "PD115"} <= set(CODES)
