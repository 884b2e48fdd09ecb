"""Hooks that end a training on one worker: which are found in advance, and what others become."""

import functools

import pytest
import tensorflow.compat.v1 as tf

from popdist_tf.errors import AgreementError
from popdist_tf.estimator.updates import StopTogether, _may_stop
from tests.popdist_tf.strategies.job import Job


def end(run_context):
    run_context.request_stop()


def end_if(wanted, run_context):
    if wanted:
        end(run_context)


def look(run_context):
    return run_context.session


class Patience:
    def ask(self, run_context):
        end_if("plateau", run_context)


def hook_of(act, **attributes):
    """A hook that calls a function with itself and the context of a run."""

    class Hook(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            del run_values
            act(self, run_context)

    made = Hook()
    vars(made).update(attributes)
    return made


def by_name(_, context):
    context.request_stop()


def in_a_list(_, context):
    return [end(one) for one in [context]]


def by_another_object(_, context):
    Patience().ask(context)


def by_its_rule(hook, context):
    hook.rule.ask(context)


def by_its_function(hook, context):
    hook.rule(context)


def looking(_, context):
    return look(context)


@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        (hook_of(by_name), True),
        (hook_of(in_a_list), True),
        (hook_of(by_another_object), True),
        (hook_of(by_its_rule, rule=Patience()), True),
        (hook_of(by_its_function, rule=end), True),
        (hook_of(end_if), True),
        (hook_of(functools.partial(end_if)), True),
        (hook_of(looking), False),
        (tf.train.StopAtStepHook(num_steps=3), False),
        (tf.train.LoggingTensorHook({}, every_n_iter=1), False),
    ],
    ids=range(10),
)
def test_hooks_that_may_stop_are_found_in_their_code(hook, expected):
    assert _may_stop(hook) is expected


@pytest.mark.parametrize("place", ["before_run", "after_run"])
def test_an_end_that_no_code_names_is_an_error(place):
    runs = []

    def sneak(_, context, *values):
        runs.append(values)
        if len(runs) == 2:
            getattr(context, f"request_{'stop'}")()

    hook = type("Hook", (tf.train.SessionRunHook,), {place: sneak})()
    assert not _may_stop(hook)
    with tf.Graph().as_default():
        step = tf.constant(1.0)
        hooks = [hook, StopTogether(Job(1), [hook])]
        with tf.train.MonitoredSession(hooks=hooks) as session:
            session.run(step)  # the instances ask each other once
            with pytest.raises(AgreementError, match="by code that no hook names"):
                session.run(step)


def test_hooks_of_tensorflow_stop_all_by_the_step():
    with tf.Graph().as_default():
        count = tf.train.get_or_create_global_step().assign_add(1)
        stop = tf.train.StopAtStepHook(num_steps=3)
        hooks = [stop, StopTogether(Job(1), [stop])]
        with tf.train.MonitoredSession(hooks=hooks) as session:
            done = 0
            while not session.should_stop():
                session.run(count)
                done += 1
    assert done == 3
