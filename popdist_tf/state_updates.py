"""Updates that layers make of their own state, in graphs that run only what is asked for.

Batch normalisation moves its averages, spectral normalisation its vectors, by assignments that
nothing in the model depends on. Eager code and `tf.function` run them. A graph of TensorFlow 1 runs
what a result depends on, so there the averages would stay where they started, without a word.
Compiled code runs all of it; `StateUpdates` makes the results of a function depend on such updates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.python.ops import control_flow_util

if TYPE_CHECKING:
    from types import TracebackType

_ASSIGNMENTS = {
    "Assign",
    "AssignAdd",
    "AssignAddVariableOp",
    "AssignSub",
    "AssignSubVariableOp",
    "AssignVariableOp",
}
_RUNNING = {"Exit", "QueueEnqueueV2", "StatelessWhile", "While"}
"""Operations that a compiled computation runs even if it does not return them: loops, outfeeds."""
_PASSING_ON = {"Enter", "Identity", "Switch", "RefEnter", "RefIdentity", "RefSwitch"}


class StateUpdates:
    """Collects the updates of layers' state that are built inside a ``with`` statement.

    These are assignments to variables that are not trained. Not among them: a variable's
    initialisation, the global step, local variables (those of `tf.compat.v1.metrics`, whose updates
    a program asks for by themselves), and what stands in a branch or loop of its own.

    Args:
        compiled: Whether loops and outfeeds count as well: a program may not return them from a
            computation that is compiled as a whole.

    Attributes:
        operations: The assignments, once the ``with`` statement has ended.
    """

    def __init__(self, *, compiled: bool = False) -> None:
        self.operations: list[Any] = []
        self._types = _ASSIGNMENTS | _RUNNING if compiled else _ASSIGNMENTS
        self._graph: Any = None
        self._before = 0

    def __enter__(self) -> StateUpdates:  # noqa: PYI034 - `Self` came with Python 3.11
        if not tf.executing_eagerly():
            graph = tf.compat.v1.get_default_graph()
            # Functions of TensorFlow 2 run their side effects by themselves.
            if getattr(graph, "experimental_acd_manager", None) is None:
                self._graph, self._before = graph, len(graph.get_operations())
                self._place = graph._get_control_flow_context()  # noqa: SLF001 - no public way
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._graph is None or kind is not None:
            return
        excepted = _handles(tf.compat.v1.trainable_variables())
        excepted |= _handles(tf.compat.v1.local_variables())
        step = tf.compat.v1.train.get_global_step(self._graph)
        excepted |= _handles([] if step is None else [step])
        for operation in self._graph.get_operations()[self._before :]:
            # A loop's exit is in the context around it.
            here = control_flow_util.GetOutputContext(operation) is self._place
            if not here or operation.type not in self._types:
                continue
            if operation.type in _ASSIGNMENTS:
                handle = _source(operation.inputs[0])
                is_first_value = operation.name == f"{handle.name}/Assign"
                if is_first_value or handle.name in excepted:
                    continue
            self.operations.append(operation)

    def before(self, results: Any) -> Any:
        """Results that exist only when the updates have been made.

        An update that an operation among the results makes, such as the slots of an optimizer, is
        left to that operation: a loss need not wait for it.

        Args:
            results: A structure of tensors, operations, and anything else.

        Returns:
            The same structure.
        """
        flat = tf.nest.flatten(results) if self.operations else []
        made = _needed_by([one for one in flat if isinstance(one, tf.Operation)])
        operations = [one for one in self.operations if one not in made]
        if not operations:
            return results

        def after_updates(one: Any) -> Any:
            if isinstance(one, tf.Operation):
                return tf.group(one, *operations)
            if tf.is_tensor(one) or isinstance(one, tf.IndexedSlices):
                with tf.control_dependencies(operations):
                    return tf.identity(one)
            return one

        return tf.nest.map_structure(after_updates, results)


def _needed_by(operations: list[Any]) -> set[Any]:
    """Operations, and all that run before them."""
    found, waiting = set(operations), list(operations)
    while waiting:
        one = waiting.pop()
        before = {*one.control_inputs, *(tensor.op for tensor in one.inputs)} - found
        found |= before
        waiting += before
    return found


def _source(tensor: Any) -> Any:
    """The operation that a variable's handle comes from, outside of loops and branches."""
    operation = tensor.op
    while True:
        captured = {id(inner): outer for outer, inner in getattr(operation.graph, "captures", ())}
        if id(operation.outputs[0]) in captured:
            operation = captured[id(operation.outputs[0])].op
        elif operation.type in _PASSING_ON:
            operation = operation.inputs[0].op
        else:
            return operation


def _handles(variables: Any) -> set[str]:
    components = (one for variable in variables for one in getattr(variable, "values", (variable,)))
    handles = (getattr(one, "handle", None) for one in components)
    return {_source(handle).name for handle in handles if tf.is_tensor(handle)}
