"""State that belongs to one replica and to no program: counters, accumulated gradients, scales.

A strategy would mirror a `tf.Variable` over its replicas. A variable of a graph of TensorFlow 1
would stand among the program's global variables, and so in its checkpoints: a checkpoint of a
program without accumulation could not be restored by one with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

if TYPE_CHECKING:
    from collections.abc import Callable


def new_counter(name: str) -> ReplicaState:
    """A count from zero on.

    Args:
        name: Of the variable.
    """
    return ReplicaState(lambda: tf.constant(0, tf.int64), name)


class ReplicaState(ResourceVariable):  # type: ignore[misc]
    """A variable in no collection, which has its first value when it is first used.

    It is created outside of the loop or function that is being built.

    Args:
        first: Returns the first value.
        name: Of the variable.
    """

    def __init__(self, first: Callable[[], Any], name: str) -> None:
        self._first = first
        self._guards: dict[Any, Any] = {}
        with tf.init_scope():
            super().__init__(first, trainable=False, name=name, collections=[])

    def _with_first_value(self) -> Any:
        """A scope whose operations run when the variable has a value."""
        if not self._in_graph_mode:  # eager code has run the assignment
            return tf.control_dependencies([])
        graph = tf.compat.v1.get_default_graph()
        place = (graph, graph._get_control_flow_context())  # noqa: SLF001 - no public way
        if place not in self._guards:
            with tf.control_dependencies(None):
                self._guards[place] = tf.cond(
                    self.is_initialized(),
                    tf.no_op,
                    lambda: self.assign(self._first(), read_value=False),
                )
        return tf.control_dependencies([self._guards[place]])

    def _read_variable_op(self, no_copy: bool = False) -> Any:
        with self._with_first_value():
            return super()._read_variable_op(no_copy)

    def assign_add(self, *args: Any, **kwargs: Any) -> Any:
        """Adds a value to the variable, as of `tf.Variable`."""
        with self._with_first_value():
            return super().assign_add(*args, **kwargs)
