"""Which exchanges a session needs for its results; products stand for exchanges here."""

import pytest
import tensorflow as tf

from popdist_tf.together import sessions


@pytest.fixture
def product(monkeypatch):
    monkeypatch.setattr(sessions, "_EXCHANGE", "MatMul")
    one = tf.constant([[1.0]])
    return lambda name: tf.matmul(one, one, name=name)


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.mark.usefixtures("graph")
def test_all_that_a_result_depends_on_counts(product):
    first, second = product("first"), product("second")
    with tf.control_dependencies([second]):
        both = first + 1.0
    assert sessions.exchanges([both]) == ["first", "second"]
    assert sessions.exchanges([first]) == ["first"]
    assert sessions.exchanges([tf.constant(1.0)]) == []


@pytest.mark.usefixtures("graph")
def test_what_is_fed_is_not_computed(product):
    first = product("first")
    both = first + product("second")
    assert sessions.exchanges([both], [first]) == ["second"]


@pytest.mark.usefixtures("graph")
def test_functions_branches_and_loops_count(product):
    @tf.function(autograph=False)
    def function(number):
        def branch():
            return product("branch")[0, 0]

        chosen = tf.cond(number > 0, branch, lambda: number)
        return tf.while_loop(
            lambda total: total < 9.0, lambda total: total + product("loop")[0, 0], [chosen]
        )

    assert sessions.exchanges(tf.nest.flatten(function(tf.constant(1.0)))) == ["branch", "loop"]


@pytest.mark.usefixtures("graph")
def test_a_data_set_calls_its_functions_later(product):
    dataset = tf.data.Dataset.range(2).map(lambda _: product("later"))
    iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
    assert sessions.exchanges([iterator.initializer]) == []
