"""Comparisons in the first steps: each way to run a step, and the switches of checks.

The other instance is `Peers`, a stand-in for Horovod that hands in what the test says.
"""

import warnings

import pytest
import tensorflow as tf

from popdist_tf.checks import STATE, VARIABLES
from popdist_tf.checks.first_steps import FirstSteps, Weights
from popdist_tf.checks.rows import warn_of_equal_rows, warn_of_sizes
from popdist_tf.collectives.host import HostCollectives
from tests.popdist_tf.peers import Peers

AT = 3
WEIGHTS = [("one", [[1.0, 2.0]]), ("two", [[3.0]])]


def other(row):
    """Another digest of the second weight."""
    return row + tf.constant([[0, 1]], row.dtype)


def step_of(check, says):
    """A step that compares two weights in its third run."""
    first = FirstSteps(HostCollectives(Peers((1, 1), 0, says), 2, 0), None)
    values = [(name, [tf.constant(value) for value in values]) for name, values in WEIGHTS]
    weights = [Weights(frozenset({AT}), check, "they differ:", values)]
    return lambda: first.compare((), weights)


def runs_of(mode, check, says):
    """Runs of a step, until one fails; the number of the failing run, and its error."""
    with tf.Graph().as_default() if mode == "session" else tf.init_scope():
        step = step_of(check, says)
        if mode == "function":
            run = tf.function(step, autograph=False)
        elif mode == "session":
            made, session = step(), tf.compat.v1.Session()
            run = lambda: session.run(made)  # noqa: E731 - as the other two
        else:
            run = step
        number = 0
        try:
            for number in range(1, AT + 3):  # noqa: B007 - read where a run fails
                run()
        except tf.errors.InvalidArgumentError as error:
            return number, str(error)
    return None


@pytest.mark.parametrize("mode", ["eager", "function", "session"])
def test_weights_are_compared_once_and_named(mode, monkeypatch):
    assert runs_of(mode, STATE, None) is None
    number, text = runs_of(mode, STATE, other)
    assert number == AT
    assert "they differ: two" in text
    monkeypatch.setenv("POPDIST_SKIP_CHECKS", "rows, state")
    assert runs_of(mode, STATE, other) is None


@pytest.mark.parametrize("mode", ["eager", "function", "session"])
def test_a_warning_does_not_end_the_step(mode, capfd, monkeypatch):
    assert runs_of(mode, VARIABLES, other) is None
    assert capfd.readouterr().err.count("they differ: two") == 1
    monkeypatch.setenv("POPDIST_SKIP_CHECKS", "all")
    assert runs_of(mode, VARIABLES, other) is None
    assert "they differ" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "say"),
    [("rows", lambda: warn_of_equal_rows(2)), ("sizes", lambda: warn_of_sizes("3 rows"))],
)
def test_a_warning_can_be_switched_off_by_its_name(name, say, monkeypatch):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        say()
        monkeypatch.setenv("POPDIST_SKIP_CHECKS", name)
        say()
    assert len(caught) == 1
