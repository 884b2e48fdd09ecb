"""Errors are what programs for PopART catch, and begin with what those programs compare."""

import pickle

import pytest

from popdist.errors import PopdistError
from popdist_onnx import errors


@pytest.mark.parametrize(
    ("error", "parents"),
    [
        (errors.popart_exception, (PopdistError, RuntimeError)),
        (errors.popart_internal_exception, (errors.popart_exception,)),
        (errors.popart_runtime_error, (errors.popart_exception,)),
        (errors.poplar_runtime_error, (errors.poplar_exception, PopdistError)),
        (errors.poplar_recoverable_runtime_error, (errors.poplar_runtime_error,)),
        (errors.poplibs_exception, (PopdistError,)),
        (errors.OutOfMemoryException, (errors.popart_exception,)),
        (errors.ArgumentError, (errors.popart_exception, TypeError)),
        (errors.ValueRangeError, (errors.popart_exception, ValueError)),
        (errors.OptionError, (errors.popart_exception, AttributeError)),
        (errors.NotOnHostError, (errors.popart_exception, NotImplementedError)),
    ],
)
def test_the_published_family(error, parents):
    assert issubclass(error, parents[0])
    assert all(issubclass(error, parent) for parent in parents)


def test_the_published_sentence_comes_first():
    error = errors.popart_exception("PD500", "Unknown tensor 'x'", value=1, hint="write y")
    assert error.args[0].startswith("Unknown tensor 'x'")
    assert str(error).splitlines() == [
        "Unknown tensor 'x' [PD500]",
        "  seen:     1",
        "  hint:     write y",
    ]


def test_the_first_argument_is_the_sentence_alone_also_after_pickling():
    raised = errors.ValueRangeError("PD510", "Invalid rank", value=3, hint="use 2")
    for error in (raised, pickle.loads(pickle.dumps(raised))):  # noqa: S301 - ours
        assert error.args == ("Invalid rank",)
        assert str(error).splitlines()[0] == "Invalid rank [PD510]"
        assert "use 2" in str(error)
