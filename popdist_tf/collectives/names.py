"""Names by which the ranks of a job pair their collectives.

Horovod pairs operations across ranks by the name of the graph node. Names that TensorFlow derives
from input tensors shift as soon as one rank builds an op, a layer or an optimizer more than the
others, and the job stalls. Our names count the collectives in the outermost graph that is being
built, so they depend only on the order of the collectives themselves.
"""

from __future__ import annotations

import re
from typing import Any

import tensorflow.compat.v2 as tf
from tensorflow.python.eager import def_function

from popdist_tf.patches import surround

_COUNTERS = "_popdist_collectives"
_NO_LETTER = re.compile(r"[^A-Za-z0-9_.-]")


def collective_name(kind: str, tensor_name: str | None = None) -> str | None:
    """A name for the next collective of the graph that is being built; None in eager code.

    The name is the same on every rank that builds the same sequence of collectives with that
    ``tensor_name``. In eager code, Horovod pairs operations by their order and ignores names.
    """
    if tf.executing_eagerly():
        return None
    if tensor_name is not None:
        # Horovod uses the part behind the last slash as the name.
        kind = f"{kind}_{_NO_LETTER.sub('.', tensor_name)}"
    # The counters are attributes of their graph. (A graph collection would end up in checkpoints.)
    graph = _outermost(tf.compat.v1.get_default_graph())
    if not hasattr(graph, _COUNTERS):
        setattr(graph, _COUNTERS, {})
    counters = getattr(graph, _COUNTERS)
    index = counters.get(kind, 0)
    counters[kind] = index + 1
    return f"popdist_{kind}_{index}"


def pairing_name(value: Any, explicit: str | None) -> str | None:
    """The name by which the published collectives pair a program's tensor; None in eager code.

    It is the name that the program gives, else the name of the tensor or variable. So ranks may
    call the collectives in different orders.
    """
    if explicit is not None:
        return explicit
    if tf.executing_eagerly():
        return None
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else None


def _outermost(graph: Any) -> Any:
    while True:
        outer = getattr(graph, "outer_graph", None)
        # TensorFlow's global default graph is the outer graph of functions called from eager code.
        # A count kept there would differ as soon as one rank retraces more often than another.
        if outer is None or not (outer.building_function or _is_v1_graph(outer)):
            return graph
        graph = outer


def _is_v1_graph(graph: Any) -> bool:
    return not tf.compat.v1.executing_eagerly_outside_functions() and not graph.building_function


# Functions inside of a graph that TensorFlow builds twice.
#
# It builds a function that creates variables again, without creating them, and runs that. Inside of
# another function, both would count in the same graph. Where one rank has created the variables
# before (evaluating a model creates those of metrics in Keras 3), it would count once.


def _build_first(known: Any, function: Any, *args: Any, **kwargs: Any) -> None:
    graph = None if tf.executing_eagerly() else _outermost(tf.compat.v1.get_default_graph())
    before = dict(getattr(graph, _COUNTERS, {}))
    known(function, *args, **kwargs)
    # Where the first graph runs after all, it is a branch beside the second.
    if graph is not None and function._created_variables:  # noqa: SLF001 - no public way
        setattr(graph, _COUNTERS, before)


surround(def_function.Function, "_initialize", "names", _build_first)
